"""messages: encoding round trips within the limits; anything else is refused."""

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dht import defaults
from shoal.dht.errors import BadMessage
from shoal.dht.kademlia import messages
from shoal.dht.kademlia.messages import (
    Aged,
    Find,
    FindReply,
    StoreRequest,
    batches,
    decode_codes,
    encode_codes,
)
from shoal.transport.decoding import typed
from tests.dht.nodes import blob, contact, contacts, random_key, sealed
from tests.dht.records.test_record import VALUES

KEYS = tuple(random_key(Random(number)) for number in range(40))
RECORD = sealed(blob(1))
FIND = Find(KEYS[:2], KEYS[2:3], 7, ("blob",), contact(1).packed)
FOUND = FindReply(((Aged(3, RECORD),), ()), (tuple(contacts(3)), (), tuple(contacts(2))))
STORE = StoreRequest((Aged(0, RECORD), Aged(9, RECORD)), contact(1).packed)


def test_encoding_round_trips() -> None:
    assert Find.decode(FIND.encode()) == FIND
    assert Find.decode(Find(KEYS[:1]).encode()) == Find(KEYS[:1])
    assert FindReply.decode(FOUND.encode(), FIND) == FOUND
    assert StoreRequest.decode(STORE.encode()) == STORE
    assert decode_codes(encode_codes(["", "full"]), 2) == ("", "full")


def test_a_contact_is_encoded_once_per_reply() -> None:
    many = tuple(contacts(20))
    find = Find(KEYS[:32])
    once = FindReply(((),), (many,)).encode()
    often = FindReply(((),) * 32, (many,) * 32).encode()
    assert len(often) < len(once) + 32 * 40
    assert FindReply.decode(often, find).nearest == (many,) * 32


def test_the_farthest_contacts_beyond_the_limit_are_dropped() -> None:
    lists = tuple(tuple(contacts(20, 1 + 20 * n)) for n in range(36))
    answer = FindReply(((),) * 32, lists)
    found = FindReply.decode(answer.encode(), Find(KEYS[:32], KEYS[32:36]))
    for whole, part in zip(lists, found.nearest, strict=True):
        assert part == whole[: len(part)] and len(part) >= 15
    assert len(answer.encode()) <= defaults.MESSAGE_LIMIT


def test_ages_are_clamped() -> None:
    data = msgpack.packb({"records": [[2**63, RECORD]]})
    assert StoreRequest.decode(data).records[0].age == defaults.AGE_LIMIT


def test_most_is_clamped() -> None:
    assert Find.decode(msgpack.packb({"keys": [], "most": 2**64 - 1})).most == defaults.FIND_MOST


def test_records_are_split_into_few_messages() -> None:
    small = [Aged(0, b"x" * 100)] * 1000
    assert [len(batch) for batch in batches(small)] == [256, 256, 256, 232]
    large = [Aged(0, b"x" * 2048)] * 70
    assert [len(batch) for batch in batches(large)] == [32, 32, 6]
    for batch in batches(large):
        assert StoreRequest.decode(StoreRequest(batch).encode()).records == batch
    assert list(batches([])) == []


DECODERS: list[Callable[[bytes], object]] = [
    Find.decode,
    lambda data: FindReply.decode(data, FIND),
    StoreRequest.decode,
    lambda data: decode_codes(data, 2),
]
GOOD = [FIND.encode(), FOUND.encode(), STORE.encode(), encode_codes(["", "full"])]


@pytest.mark.parametrize(
    ("which", "changes"),
    [
        (0, {"keys": None}),
        (0, {"keys": [b"x"]}),
        (0, {"keys": list(KEYS[:33])}),
        (0, {"near": list(KEYS[:5])}),
        (0, {"most": -1}),
        (0, {"most": True}),
        (0, {"most": 1.5}),
        (0, {"kinds": [1]}),
        (0, {"kinds": ["x" * 17]}),
        (0, {"kinds": ["x"] * 9}),
        (0, {"serves": "me"}),
        (0, {"serves": b"x" * 32}),
        (1, {"records": []}),
        (1, {"records": [[], [], []]}),
        (1, {"records": [[[1, RECORD]] * 15, []]}),
        (1, {"records": [[[1, b"x" * 2049]], []]}),
        (1, {"nearest": [[0], []]}),
        (1, {"nearest": [[99], [], []]}),
        (1, {"nearest": [[-1], [], []]}),
        (1, {"nearest": [[0] * 21, [], []]}),
        (1, {"contacts": [7]}),
        (1, {"contacts": [b"x" * 513]}),
        (2, {"records": [[-1, RECORD]]}),
        (2, {"records": [[0]]}),
        (2, {"records": [RECORD]}),
        (2, {"records": [[0, b"x" * 2048]] * 33}),
        (2, {"records": [[0, b""]] * 257}),
        (3, {"codes": [""]}),
        (3, {"codes": ["", "x" * 33]}),
        (3, {"codes": ["", "\x1b"]}),
    ],
)
def test_invalid_messages_are_refused(which: int, changes: dict[str, Any]) -> None:
    fields = msgpack.unpackb(GOOD[which]) | changes
    with pytest.raises(BadMessage):
        DECODERS[which](msgpack.packb(fields))


@given(st.integers(0, 3), st.data())
def test_any_bytes_are_decoded_or_refused(which: int, data: st.DataObject) -> None:
    """Random bytes, flipped bits, any value in any field: `BadMessage` or a message."""
    kind = data.draw(st.sampled_from(["invent", "flip", "field"]))
    if kind == "invent":
        attempt = data.draw(st.binary(max_size=2_000))
    elif kind == "flip":
        bad = bytearray(GOOD[which])
        bad[data.draw(st.integers(0, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        attempt = bytes(bad)
    else:
        fields = msgpack.unpackb(GOOD[which])
        name = data.draw(st.sampled_from(sorted(fields)))
        attempt = msgpack.packb(fields | {name: data.draw(VALUES)})
    try:
        DECODERS[which](attempt)
    except BadMessage as error:
        assert error.code == "bad-request"


def test_a_message_costs_little_memory() -> None:
    size = defaults.MESSAGE_LIMIT
    bombs = [
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * size,
        b"\x81\xa1x" * (size // 3),
        b"\xdc\x04\x00" * (size // 3),
        b"\x81\xa4keys\xdd\x00\x02\x00\x00" + b"\xc0" * (size - 20),
        b"\x00" * (size + 1),
    ]
    tracemalloc.start()
    for bomb in bombs:
        for decode in DECODERS:
            with pytest.raises(BadMessage):
                decode(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 2**20  # at most 1,024 levels of 1,024 items


MUCH: list[list[list[int]]] = [[[] for _ in range(1_000)] for _ in range(75)]
"""Nested lists that take a hundred times as long to read as records, and as much memory."""


@pytest.mark.parametrize(
    "fields",
    [
        {"records": [[0, RECORD]], "further": MUCH},
        {"records": MUCH},
        {"records": [[0, RECORD, MUCH]]},
        {"records": [[0] * 1_000] * 75},
        {"records": [[MUCH, RECORD]]},
        {"records": [], "serves": MUCH},
    ],
)
@pytest.mark.parametrize("defended", [True, False])
def test_fields_beyond_the_format_are_not_read(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], defended: bool
) -> None:
    """Twin: decoding everything takes many times the memory of the message."""
    payload = msgpack.packb(fields)
    if not defended:
        build = msgpack.unpackb
        monkeypatch.setattr(messages, "read", lambda kind, data, **_: typed(kind, build(data)))
    tracemalloc.start()
    try:
        with suppress(BadMessage):
            assert StoreRequest.decode(payload).records == (Aged(0, RECORD),)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (peak < 4 * len(payload)) is defended
    with pytest.raises(BadMessage):
        Find.decode(payload)
    if not defended:
        return
    with pytest.raises(BadMessage):
        StoreRequest.decode(payload + b"\x00")


def test_a_reply_names_no_more_contacts_than_requested() -> None:
    """Each contact takes 30 µs to decode."""
    found = msgpack.unpackb(FOUND.encode())
    found["contacts"] = [each.packed for each in contacts(3 * defaults.K)]
    assert FindReply.decode(msgpack.packb(found), FIND)
    found["contacts"].append(contact(100).packed)
    with pytest.raises(BadMessage):
        FindReply.decode(msgpack.packb(found), FIND)


def test_an_own_message_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(BadMessage):
        StoreRequest((Aged(0, b"x" * 2048),) * 200).encode()

"""Entries survive encoding unchanged, and anything else is refused."""

import hashlib
import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.state import defaults
from shoal.state.errors import BadEntry
from shoal.state.feeds.entry import (
    DOMAIN,
    FORKED,
    MAX_EPOCH,
    NO_PARENT,
    SEALED_BYTES,
    Entry,
    FeedName,
    Head,
    Proof,
    client_of,
    open_entry,
    open_proof,
    parse_entry,
    read_stored,
    seal_entry,
)
from shoal.transport.identity import Identity
from shoal.transport.signed import seal

ALICE = Identity.from_seed(b"a" * 32)
BOB = Identity.from_seed(b"b" * 32)


def entry(identity: Identity = ALICE, **changes: Any) -> Entry:
    said: dict[str, Any] = {"epoch": 9, "seq": 3, "parent": b"p" * 32, "made": 5}
    said["update"] = b"\0\0"
    kind, part = changes.pop("kind", "jobs"), changes.pop("part", 0)
    return seal_entry(identity, kind, part, **said | changes)


def body_of(header: object, update: bytes = b"\0\0") -> bytes:
    raw: bytes = msgpack.packb(header)
    return struct.pack(">H", len(raw)) + raw + update


def header(**changes: Any) -> dict[str, Any]:
    """Return a header with fields replaced, or removed if the change is None."""
    raw = msgpack.unpackb(entry().sealed)[2]
    fields = msgpack.unpackb(raw[2 : 2 + int.from_bytes(raw[:2])]) | changes
    return {key: value for key, value in fields.items() if value is not None}


def sealed(**changes: Any) -> bytes:
    return seal(ALICE, DOMAIN, body_of(header(**changes)))


def code_of(data: bytes) -> str:
    with pytest.raises(BadEntry) as error:
        open_entry(data)
    return error.value.code


def test_an_entry_comes_back_as_it_was() -> None:
    mine = entry()
    assert open_entry(mine.sealed) == mine == read_stored(mine.sealed)
    assert parse_entry(mine.sealed).checked() == mine
    assert mine.name == FeedName(ALICE.peer, "jobs", 0)
    assert (mine.epoch, mine.seq, mine.parent, mine.made) == (9, 3, b"p" * 32, 5)
    assert mine.size == len(mine.sealed)


def test_the_hash_covers_author_and_body() -> None:
    """It does not cover the signature: an author can sign one body in many ways without a fork."""
    mine = entry()
    public_key, _, raw = msgpack.unpackb(mine.sealed)
    told = struct.pack(">I", len(DOMAIN)) + DOMAIN.encode() + public_key + raw
    assert mine.hash == hashlib.sha256(told).digest()
    assert entry(BOB).hash != mine.hash != entry(made=6).hash
    assert read_stored(msgpack.packb([public_key, bytes(64), raw])).hash == mine.hash


def test_fields_of_later_versions_survive() -> None:
    later = sealed(more={"deep": [1, 2]})
    assert open_entry(later).sealed == later
    assert open_entry(later).hash != entry().hash


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": 7},
        {"kind": None},
        {"part": "0"},
        {"part": False},
        {"epoch": 0},
        {"epoch": MAX_EPOCH + 1},
        {"epoch": 1.0},
        {"epoch": True},
        {"seq": -1},
        {"seq": None},
        {"parent": b"short"},
        {"parent": "p" * 32},
        {"made": -1},
        {"made": None},
        {"more": bytes(defaults.ENTRY_HEADER_BYTES)},
    ],
    ids=str,
)
def test_fields_are_typed_and_bounded(changes: dict[str, Any]) -> None:
    assert code_of(sealed(**changes)) == "bad-entry"


@pytest.mark.parametrize("changes", [{"kind": "poems"}, {"part": 1}, {"part": -1}, {"kind": ""}])
def test_unknown_kinds_and_parts_are_refused(changes: dict[str, Any]) -> None:
    assert code_of(sealed(**changes)) == "unknown-kind"


def test_a_part_of_a_parted_kind() -> None:
    assert entry(kind="shards", part=15).name.part == 15
    assert code_of(sealed(kind="shards", part=16)) == "unknown-kind"


def test_a_signature_is_valid_only_for_its_author_and_bytes() -> None:
    public_key, signature, raw = msgpack.unpackb(entry().sealed)
    other = body_of(header(made=6))
    for forged in (
        [BOB.public_key, signature, raw],
        [public_key, signature, other],
        [public_key, bytes(64), raw],
        msgpack.unpackb(seal(ALICE, "shoal/member/1", raw)),
    ):
        assert code_of(msgpack.packb(forged)) == "bad-signature"


def test_an_entry_has_one_canonical_form() -> None:
    """Its bytes count towards its feed's limits, so no forwarding node may lengthen them."""
    public_key, signature, raw = msgpack.unpackb(entry().sealed)
    long_header = b"\x93\xc5\x00\x20" + public_key + b"\xc4\x40" + signature
    assert code_of(long_header + msgpack.packb(raw)) == "bad-envelope"
    assert code_of(b"\xdc\x00\x03" + entry().sealed[1:]) == "bad-envelope"
    assert code_of(entry().sealed + b"\0") == "bad-envelope"


def test_a_header_with_a_repeated_field_is_refused() -> None:
    """Otherwise readers would disagree on which of the two counts."""
    raw = msgpack.packb(header())
    twice = bytes([raw[0] + 1]) + raw[1:] + msgpack.packb("seq") + msgpack.packb(4)
    assert msgpack.unpackb(twice)["seq"] == 4
    assert code_of(seal(ALICE, DOMAIN, struct.pack(">H", len(twice)) + twice)) == "bad-entry"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0",
        b"\0\0",
        b"\0\x01\xc1",
        b"\0\x05\xdf\xff\xff\xff\xff",
        b"\0\x7f\x80",
        body_of([]),
        body_of([["kind", "jobs"]]),
        body_of(list(header().items())),
        body_of({1: 2}),
    ],
    ids=bytes.hex,
)
def test_bodies_without_a_header_are_refused(raw: bytes) -> None:
    assert code_of(seal(ALICE, DOMAIN, raw)) == "bad-entry"


def test_a_large_entry_makes_no_large_objects() -> None:
    """Control: a msgpack decoder turns 256 KiB of empty maps into 18 MB."""
    full = defaults.SNAPSHOT_BYTES
    for raw in (b"\xdd\0\x04\0\0" + b"\x80" * full, b"\x93" * full, b"\x93\xc0\xc0" * 9999):
        tracemalloc.start()
        with pytest.raises(BadEntry):
            open_entry(raw)
        with pytest.raises(BadEntry):
            open_entry(seal(ALICE, DOMAIN, raw))
        assert tracemalloc.get_traced_memory()[1] < 8 * full
        tracemalloc.stop()
    tracemalloc.start()
    msgpack.unpackb(b"\xdd\0\x04\0\0" + b"\x80" * full)
    assert tracemalloc.get_traced_memory()[1] > 40 * full
    tracemalloc.stop()


def test_the_size_is_checked_first() -> None:
    assert code_of(bytes(SEALED_BYTES + 1)) == "too-large"
    full = entry(update=bytes(defaults.SNAPSHOT_BYTES))
    assert open_entry(full.sealed) == full and full.size <= SEALED_BYTES
    larger = body_of(header(), bytes(defaults.SNAPSHOT_BYTES + 1))
    assert code_of(seal(ALICE, DOMAIN, larger)) == "bad-entry"


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_garbage_is_refused_with_a_message(data: bytes) -> None:
    code_of(data)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_every_changed_byte_is_noticed(data: st.DataObject) -> None:
    mine = bytearray(entry().sealed)
    at = data.draw(st.integers(0, len(mine) - 1))
    mine[at] ^= data.draw(st.integers(1, 255))
    code_of(bytes(mine))


def test_heads_are_ordered_by_number_below_a_fork() -> None:
    heads = [Head(1, 0, b"z"), Head(1, 1, b"b"), Head(2, 0, b"a"), Head(MAX_EPOCH, 7, b""), FORKED]
    assert sorted(heads, reverse=True) == heads[::-1]


def test_two_entries_with_one_number_prove_a_fork() -> None:
    one, other = entry(made=1), entry(made=2)
    proof = Proof.of(one, other)
    assert proof == Proof.of(other, one) == open_proof(*proof.sealed)
    assert proof.name == one.name


@pytest.mark.parametrize(
    "other",
    [
        entry(),
        entry(BOB, made=1),
        entry(seq=4),
        entry(epoch=8),
        entry(kind="claims"),
        entry(kind="shards", part=1),
    ],
    ids=str,
)
def test_other_pairs_of_entries_prove_nothing(other: Entry) -> None:
    with pytest.raises(BadEntry) as error:
        Proof.of(entry(), other)
    assert error.value.code == "bad-proof"


def test_one_body_under_two_signatures_proves_nothing() -> None:
    mine = entry()
    public_key, _, raw = msgpack.unpackb(mine.sealed)
    with pytest.raises(BadEntry):
        Proof.of(mine, read_stored(msgpack.packb([public_key, bytes(64), raw])))


def test_a_proof_from_a_peer_is_checked() -> None:
    public_key, _, raw = msgpack.unpackb(entry(made=2).sealed)
    with pytest.raises(BadEntry) as error:
        open_proof(entry().sealed, msgpack.packb([public_key, bytes(64), raw]))
    assert error.value.code == "bad-signature"


def test_client_ids_differ_by_author_feed_and_epoch() -> None:
    names = [
        FeedName(identity.peer, kind, part)
        for identity in (ALICE, BOB)
        for kind, part in (("jobs", 0), ("shards", 0), ("shards", 1))
    ]
    clients = {client_of(name, epoch) for name in names for epoch in (1, 2, 2**53 - 1)}
    assert len(clients) == 18 and all(0 < client < 2**32 for client in clients)
    assert client_of(names[0], 1) == 2093177280, "as docs/spec/state.md says"


def test_an_epoch_begins_without_a_parent() -> None:
    assert len(NO_PARENT) == 32 and not any(NO_PARENT)

"""record: sealing round trips, and anything else is refused."""

import tracemalloc
from functools import lru_cache
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.dht import defaults
from shoal.dht.errors import BadRecord
from shoal.dht.records import record as record_module
from shoal.dht.records.record import (
    DOMAIN,
    BlobBody,
    PeerBody,
    open_record,
    opened,
    seal_record,
    time_code,
)
from shoal.transport.identity import Identity
from shoal.transport.signed import seal
from tests.dht.nodes import WALL, identity, record, sealed
from tests.dht.records.test_kinds import BLOB, BODIES, KV, PEER, ROOT, SHARD

ALICE, BOB = identity(1), identity(2)
RUNS = range(defaults.BLOB_RUNS)


def raw(author: Identity = ALICE, domain: str = DOMAIN, **changes: Any) -> bytes:
    """Seal a record made by hand; None removes a field."""
    fields = {"kind": "blob", "made": 5, "ttl": 60, "root": ROOT, "size": 1, "chunks": 1} | changes
    kept = {name: value for name, value in fields.items() if value is not None}
    return seal(author, domain, msgpack.packb(kept))


def code_of(data: bytes) -> str:
    with pytest.raises(BadRecord) as caught:
        open_record(data)
    return caught.value.code


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.kind)
def test_a_record_round_trips(body: Any) -> None:
    data = seal_record(ALICE, body, made=7, ttl=60)
    found = open_record(data)
    assert (found.author, found.body, found.made, found.ttl) == (ALICE.peer, body, 7, 60)
    assert (found.key, found.slot, found.sealed, found.gone) == (body.key, body.slot, data, False)
    assert len(data) <= defaults.RECORD_BYTES


def test_a_withdrawal_has_the_same_slot_as_its_record() -> None:
    gone = record(KV, gone=True)
    assert gone.gone and gone.place == record(KV).place


def test_the_largest_bodies_fit() -> None:
    runs = tuple((15_000 * n, 15_000 * n + 7_000) for n in range(defaults.BLOB_RUNS))
    blob = BlobBody(ROOT, 2**60, defaults.CHUNKS_LIMIT, runs)
    assert open_record(sealed(blob)).body == blob
    short = "/dns4/" + "a" * 120 + ".example/tcp/40001"
    peer = PeerBody(ALICE.peer, (short,) * defaults.PEER_ADDRESSES)
    assert open_record(sealed(peer)).body == peer


def test_unknown_fields_and_kinds_survive() -> None:
    assert open_record(raw(news={"a": [1, 2]})).sealed == raw(news={"a": [1, 2]})
    other = raw(kind="lease", parts=["a"], slot="b")
    assert open_record(other).sealed == other


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (raw(domain="shoal/member/1"), "bad-signature"),
        (raw()[:-1] + b"\0", "bad-signature"),
        (b"", "bad-signature"),
        (b"\x93\xc4\x20", "bad-signature"),
        (raw()[:3] + bytes(32) + raw()[35:], "bad-signature"),
        (raw(junk=b"x" * defaults.RECORD_BYTES), "too-large"),
        (raw(made=None), "bad-type"),
        (raw(made=0), "bad-type"),
        (raw(made=2**64 - 1), "bad-type"),
        (raw(made=5.0), "bad-type"),
        (raw(made=True), "bad-type"),
        (raw(ttl=59), "bad-type"),
        (raw(ttl=172_801), "bad-type"),
        (raw(ttl="60"), "bad-type"),
        (raw(gone=1), "bad-type"),
        (raw(kind=None), "bad-type"),
        (raw(provider=BOB.peer), "not-provider"),
        (raw(provider=7), "not-provider"),
        (seal(ALICE, DOMAIN, b"\xc1"), "bad-type"),
        (seal(ALICE, DOMAIN, b"\x91" * 1500), "bad-type"),
        (seal(ALICE, DOMAIN, b"\xdf\xff\xff\xff\xff"), "bad-type"),
        (seal(ALICE, DOMAIN, msgpack.packb({1: 2})), "bad-type"),
        (seal(ALICE, DOMAIN, msgpack.packb([1, 2])), "bad-type"),
    ],
)
def test_invalid_records_are_refused(data: bytes, code: str) -> None:
    assert code_of(data) == code


def test_a_signature_of_another_author_is_refused() -> None:
    """Replacing the key makes the record name an author that has not signed it."""
    mine, theirs = raw(), raw(BOB)
    assert mine[3:35] == ALICE.public_key
    assert code_of(mine[:3] + theirs[3:35] + mine[35:]) == "bad-signature"


def test_an_own_record_out_of_bounds_is_not_sealed() -> None:
    for body in (replace(SHARD, stop=-1), PeerBody(BOB.peer, ()), replace(BLOB, size=-1)):
        with pytest.raises(BadRecord):
            seal_record(ALICE, body, made=5, ttl=60)
    with pytest.raises(BadRecord):
        seal_record(ALICE, PEER, made=5, ttl=1)


@pytest.mark.parametrize(
    ("hours", "code"),
    [(0, ""), (1.9, ""), (2.1, "far-future"), (-2.9, ""), (-3.1, "expired"), (1e6, "far-future")],
)
def test_clocks_may_be_an_hour_off_on_both_sides(hours: float, code: str) -> None:
    assert time_code(record(BLOB, made=WALL + hours * 3600), WALL) == code


@given(st.data())
def test_any_bytes_are_decoded_or_refused(data: st.DataObject) -> None:
    """Flipped, cut or random bytes give `BadRecord`."""
    kind = data.draw(st.sampled_from(["flip", "cut", "invent", "body"]))
    good = raw()
    if kind == "flip":
        index = data.draw(st.integers(0, len(good) - 1))
        bad = bytearray(good)
        bad[index] ^= 1 << data.draw(st.integers(0, 7))
        attempt = bytes(bad)
    elif kind == "cut":
        attempt = good[: data.draw(st.integers(0, len(good) - 1))]
    elif kind == "invent":
        attempt = data.draw(st.binary(max_size=3_000))
    else:
        attempt = seal(ALICE, DOMAIN, data.draw(st.binary(max_size=1_900)))
    with pytest.raises(BadRecord):
        open_record(attempt)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(st.sampled_from(BODIES), st.data())
def test_any_value_in_any_field_is_decoded_or_refused(body: Any, data: st.DataObject) -> None:
    """The record is signed by its author, which may write any value."""
    fields = {"kind": body.kind, "made": 5, "ttl": 60, **body.fields()}
    name = data.draw(st.sampled_from(sorted(fields)))
    packed = msgpack.packb(fields | {name: data.draw(VALUES)})
    try:
        found = open_record(seal(ALICE, DOMAIN, packed))
    except BadRecord:
        return
    assert len(found.key) == 32 and len(found.slot) <= 128


def test_decoding_takes_memory_in_proportion_to_the_bytes() -> None:
    bombs = [
        b"\x9f" * 1_900,
        b"\xdc\xff\xff" * 600,
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdf\x0f\xff\xff\xff",
        msgpack.packb({str(n): [] for n in range(400)}),
    ]
    tracemalloc.start()
    for bomb in bombs:
        assert code_of(seal(ALICE, DOMAIN, bomb)) == "bad-type"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("defended", [True, False])
def test_caching_verified_records_takes_little_memory(
    monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """A record of 500 bytes with many runs takes 17,000 once decoded. Twin: if as many bodies as
    signatures are cached, any peer can make a node use 70 MB for them."""
    if not defended:
        monkeypatch.setattr(record_module, "opened", lru_cache(4096)(opened.__wrapped__))
    wide = [
        seal_record(
            ALICE,
            BlobBody(
                ROOT, 2**40, 10**6, tuple((n * 999 + 3 * k, n * 999 + 3 * k + 1) for k in RUNS)
            ),
            made=n,
            ttl=60,
        )
        for n in range(1, 1_001)
    ]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for each in wide:
            open_record(each)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert (taken < 12e6) is defended


def test_a_record_with_a_repeated_key_is_refused() -> None:
    """Implementations would differ in which value counts."""
    fields = {"kind": "blob", "made": 5, "ttl": 60, "root": ROOT, "size": 1, "chunks": 1}
    body = msgpack.packb(fields)
    twice = bytes([body[0] + 1]) + body[1:] + msgpack.packb("ttl") + msgpack.packb(61)
    with pytest.raises(BadRecord):
        open_record(seal(ALICE, DOMAIN, twice))

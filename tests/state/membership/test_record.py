"""Records survive encoding unchanged, and anything else is refused."""

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.state import defaults
from shoal.state.errors import BadRecord, Forged
from shoal.state.membership import record as record_module
from shoal.state.membership.record import (
    DOMAIN,
    Aim,
    Capacity,
    MemberRecord,
    Rank,
    ShardRecord,
    decode_record,
    encode_record,
    open_record,
    peek,
    seal_record,
)
from shoal.transport.identity import Identity, PeerId
from shoal.transport.signed import seal, unseal

ALICE = Identity.from_seed(b"a" * 32)
BOB = Identity.from_seed(b"b" * 32)
ROOT = "ab" * 32
CAPACITY = Capacity(4, 2**33, True, 2e9)
RECORD = MemberRecord(
    peer=ALICE.peer,
    seq=7,
    addresses=("/ip4/192.0.2.1/tcp/4001",),
    stored=(ROOT,),
    runs=(5, 9),
    aims=(Aim(ROOT, 3, 9, Rank.CLAIMS),),
)


def fields(**changes: Any) -> bytes:
    """Return a record's body with fields replaced."""
    known: dict[str, Any] = msgpack.unpackb(encode_record(RECORD))
    return msgpack.packb({**known, **changes})  # type: ignore[no-any-return]


def test_a_record_survives_encoding() -> None:
    sealed = seal_record(ALICE, RECORD)
    assert open_record(sealed) == RECORD
    assert peek(sealed) == (ALICE.peer, 7)


def test_a_record_without_an_aim_is_unchanged_and_extra_fields_are_ignored() -> None:
    record = replace(RECORD, aims=())
    assert b"aims" not in encode_record(record)
    assert decode_record(ALICE.peer, encode_record(record)) == record
    later = decode_record(ALICE.peer, fields(aims=[[ROOT, 0, 4, 9, 5, "more"]]))
    assert later.aims == (Aim(ROOT, 0, 4, Rank.FIXED, 5),)


@pytest.mark.parametrize(
    "aim",
    [
        *(7, {}, [], [ROOT, 0, 1], ["xy", 0, 1, 1], [ROOT, 2, 1, 1], [ROOT, -1, 1, 1]),
        *([ROOT, 0, 1, -1], [ROOT, 0, True, 1], [ROOT, 0, defaults.MAX_LAYERS + 1, 1]),
    ],
)
def test_an_aim_out_of_bounds_is_refused(aim: Any) -> None:
    with pytest.raises(BadRecord):
        decode_record(ALICE.peer, fields(aims=[aim]))


def test_a_model_has_one_aim_and_their_number_is_bounded() -> None:
    aims = [[f"{number:02x}" * 32, 0, 1, 1] for number in range(defaults.AIMS + 1)]
    assert len(decode_record(ALICE.peer, fields(aims=aims[:-1])).aims) == defaults.AIMS
    for bad in (aims, [aims[0], aims[1], aims[0]]):
        with pytest.raises(BadRecord):
            decode_record(ALICE.peer, fields(aims=bad))


def test_a_full_record_fits() -> None:
    full = replace(
        RECORD,
        addresses=tuple(f"/dns4/{'a.' * 120}x{n}x/tcp/40001/p2p/{BOB.peer}" for n in range(10, 26)),
        stored=(ROOT,) * defaults.STORED,
        runs=tuple(defaults.MAX_SEQ - 1 - n for n in range(defaults.SHARDS)),
        aims=tuple(
            Aim(f"{number:02x}" * 32, defaults.MAX_LAYERS, defaults.MAX_LAYERS, Rank.FIXED, 1 << 60)
            for number in range(defaults.AIMS)
        ),
    )
    assert open_record(seal_record(ALICE, full)) == full


def test_unknown_fields_survive_in_the_sealed_bytes() -> None:
    later = fields(colour="blue")
    sealed = seal(ALICE, DOMAIN, later)
    assert open_record(sealed) == RECORD
    assert b"colour" in sealed


def test_addresses_of_a_later_version_are_left_out() -> None:
    sealed = fields(addresses=["/ip4/192.0.2.1/udp/1/quic-v9", "/ip4/192.0.2.1/tcp/4001"])
    assert decode_record(ALICE.peer, sealed) == RECORD


@pytest.mark.parametrize("place", [10, 50, 150, -1])
def test_a_changed_byte_is_noticed(place: int) -> None:
    sealed = bytearray(seal_record(ALICE, RECORD))
    sealed[place] ^= 1
    with pytest.raises(Forged):
        open_record(bytes(sealed))


def test_a_signature_of_another_domain_does_not_count() -> None:
    with pytest.raises(Forged):
        open_record(seal(ALICE, "shoal/other/1", encode_record(RECORD)))


def test_a_record_over_the_size_is_refused() -> None:
    large = seal(ALICE, DOMAIN, fields(colour="x" * defaults.RECORD_BYTES))
    for read in (open_record, peek):
        with pytest.raises(Forged):
            read(large)


@pytest.mark.parametrize(
    "wrong",
    [
        {"seq": 0},
        {"seq": -1},
        {"seq": True},
        {"seq": 1.5},
        {"seq": defaults.MAX_SEQ},
        {"seq": 2**63},
        {"addresses": "x"},
        {"addresses": [1]},
        {"addresses": [""] * (defaults.ADDRESSES + 1)},
        {"stored": [ROOT] * (defaults.STORED + 1)},
        {"stored": [b"x"]},
        {"stored": ["AB" * 32]},
        {"stored": [ROOT + "0"]},
        {"stored": None},
        {"runs": [-1]},
        {"runs": [True]},
        {"runs": [1.0]},
        {"runs": (defaults.MAX_SEQ,)},
    ],
)
def test_values_out_of_bounds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRecord):
        open_record(seal(ALICE, DOMAIN, fields(**wrong)))


def test_fields_that_belong_in_feeds_are_ignored() -> None:
    """These fields belong in feeds, and are ignored in a record."""
    said = {"version": "9", "models": [["tiny", ROOT, 12, 1]], "shards": [1], "capacity": {}}
    assert open_record(seal(ALICE, DOMAIN, fields(**said))) == RECORD


def test_an_own_record_out_of_bounds_is_not_signed() -> None:
    shard = ShardRecord(ROOT, True, 0, 3, True, "", 1)
    said: list[dict[str, Any]] = [{"version": "1"}, {"shards": (shard,)}, {"capacity": CAPACITY}]
    wrong: list[dict[str, Any]] = [{"runs": [-1]}, {"stored": ("x",)}]
    for each in (*said, *wrong):
        with pytest.raises(BadRecord):
            seal_record(ALICE, replace(RECORD, **each))


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=80)
    | st.binary(max_size=80),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(), inner, max_size=8),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(msgpack.unpackb(fields()), ANYTHING))
    | ANYTHING
)
def test_any_value_is_a_record_or_refused(value: Any) -> None:
    try:
        found = decode_record(ALICE.peer, msgpack.packb(value))
    except BadRecord:
        return
    assert decode_record(ALICE.peer, encode_record(found)) == found


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_as_forged_or_bad(data: bytes) -> None:
    for read in (open_record, peek):
        with pytest.raises(BadRecord):
            read(data)


def test_the_authors_peer_id_is_not_repeated_in_its_addresses() -> None:
    peer, relay = ALICE.peer, BOB.peer
    addresses = (
        f"/ip4/9.9.9.9/tcp/4001/p2p/{peer}",
        f"/ip4/8.8.8.8/tcp/4001/p2p/{relay}/p2p-circuit/p2p/{peer}",
        "/ip4/9.9.9.9/tcp/443",
    )
    record = MemberRecord(peer, 1, addresses)
    body = encode_record(record)
    assert peer.encode() not in body and relay.encode() in body
    assert decode_record(peer, body) == record
    bare = body.replace(b"/p2p/" + relay.encode(), b"/p2p/" + b"x" * len(relay))
    assert len(decode_record(peer, bare).addresses) == 2, "invalid addresses are left out as before"


def test_a_record_with_a_repeated_key_is_refused() -> None:
    """Implementations would differ in which value counts."""
    body = encode_record(MemberRecord(ALICE.peer, 7, ()))
    twice = bytes([body[0] + 1]) + body[1:] + msgpack.packb("seq") + msgpack.packb(8)
    with pytest.raises(BadRecord):
        decode_record(ALICE.peer, twice)
    with pytest.raises(Forged):
        peek(seal(ALICE, DOMAIN, twice))


def test_a_record_that_was_checked_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = list[bytes]()

    def noted(domain: str, data: bytes, *, limit: int) -> tuple[PeerId, bytes]:
        checked.append(data)
        return unseal(domain, data, limit=limit)

    monkeypatch.setattr(record_module, "unseal", noted)
    small = seal_record(ALICE, replace(RECORD, seq=77))
    assert open_record(small) is open_record(bytes(bytearray(small)))
    assert checked == [small]
    aims = tuple(Aim(f"{number:064x}", 3, 9, Rank.CLAIMS) for number in range(defaults.AIMS))
    roots = tuple(f"{number:064x}" for number in range(defaults.STORED))
    large = seal_record(ALICE, replace(RECORD, seq=78, stored=roots, aims=aims))
    assert len(large) > defaults.OPENED_BYTES
    assert open_record(large) == open_record(large)
    assert checked == [small, large, large], "records that take much memory are not remembered"


def test_a_wrong_signature_is_refused_after_the_right_one() -> None:
    sealed = seal_record(ALICE, replace(RECORD, seq=79))
    open_record(sealed)
    for _ in range(2):
        with pytest.raises(Forged):
            open_record(sealed[:-1] + bytes([sealed[-1] ^ 1]))

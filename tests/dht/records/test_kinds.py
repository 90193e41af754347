"""recordkinds: fields are type-checked and limited; keys and slots follow from them."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.dht import defaults
from shoal.dht.errors import BadRecord
from shoal.dht.records.kinds import (
    BlobBody,
    Body,
    KvBody,
    NameBody,
    OtherBody,
    PeerBody,
    ShardBody,
    kv_key,
    longest_runs,
    read_body,
)
from tests.dht.nodes import identity

ME = identity(1).peer
ROOT, OTHER = "ab" * 32, "cd" * 32
PEER = PeerBody(ME, ("/ip4/192.0.2.1/tcp/4001",))
SHARD = ShardBody(ROOT, 0, 6, True, False, "float16", 12.5)
BLOB = BlobBody(ROOT, 10 * 2**20, 10, ((0, 3), (5, 6), (8, 10)))
KV = KvBody(ROOT, "float16", "", "salt", OTHER, ROOT, 3, (0, 6))
NAME = NameBody("llama-3.2-1b", ROOT, 16, 2**31)
BODIES: tuple[Body, ...] = (PEER, SHARD, BLOB, KV, NAME, OtherBody("lease", ("a", "b"), "c"))


def fields(body: Body, **changes: Any) -> dict[str, Any]:
    """Return the fields of a body as decoded, with some replaced; None removes a field."""
    found: dict[str, Any] = msgpack.unpackb(
        msgpack.packb({"kind": body.kind, **body.fields(), **changes})
    )
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.kind)
def test_a_body_round_trips(body: Body) -> None:
    assert read_body(ME, fields(body)) == body
    assert read_body(ME, fields(body, later="more")) == body


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.kind)
def test_a_missing_field_is_refused(body: Body) -> None:
    optional = {"ranges"}
    for name in body.fields().keys() - optional:
        with pytest.raises(BadRecord):
            read_body(ME, fields(body, **{name: None}))


WRONG: list[tuple[Body, str, Any]] = [
    (PEER, "addresses", "text"),
    (PEER, "addresses", ["x"] * (defaults.PEER_ADDRESSES + 1)),
    (PEER, "addresses", ["x" * (defaults.ADDRESS_BYTES + 1)]),
    (PEER, "addresses", ["\x1b[2J"]),
    (PEER, "addresses", [7]),
    (SHARD, "root", ROOT.upper()),
    (SHARD, "root", ROOT + "\n"),
    (SHARD, "root", bytes(32)),
    (SHARD, "start", -1),
    (SHARD, "start", 7),
    (SHARD, "stop", defaults.LAYERS_LIMIT + 1),
    (SHARD, "stop", 6.0),
    (SHARD, "head", 1),
    (SHARD, "precision", "x" * (defaults.PRECISION_BYTES + 1)),
    (SHARD, "speed", float("nan")),
    (SHARD, "speed", float("inf")),
    (SHARD, "speed", True),
    (BLOB, "chunks", 0),
    (BLOB, "chunks", defaults.CHUNKS_LIMIT + 1),
    (BLOB, "size", -1),
    (BLOB, "size", 2**61),
    (BLOB, "size", True),
    (BLOB, "ranges", [0]),
    (BLOB, "ranges", [0, 0]),
    (BLOB, "ranges", [0, 2, 0, 2]),
    (BLOB, "ranges", [0, 11]),
    (BLOB, "ranges", [-1, 2]),
    (BLOB, "ranges", [0, 2.0]),
    (BLOB, "ranges", [1, 1] * (defaults.BLOB_RUNS + 1)),
    (KV, "blocks", 0),
    (KV, "blocks", 2**64 - 1),
    (KV, "layers", [0]),
    (KV, "layers", [6, 0]),
    (KV, "adapter", "x"),
    (KV, "tip", ""),
    (NAME, "name", ""),
    (NAME, "name", "x" * (defaults.NAME_BYTES + 1)),
    (NAME, "name", "a\nb"),
    (NAME, "layers", 0),
    (OtherBody("lease", (), ""), "kind", "Lease!"),
    (OtherBody("lease", (), ""), "kind", "x" * 17),
    (OtherBody("lease", (), ""), "parts", ["x"] * 9),
    (OtherBody("lease", (), ""), "slot", "x" * 129),
]


@pytest.mark.parametrize(("body", "name", "value"), WRONG)
def test_a_field_out_of_bounds_is_refused(body: Body, name: str, value: Any) -> None:
    with pytest.raises(BadRecord) as caught:
        read_body(ME, fields(body, **{name: value}))
    assert caught.value.code == "bad-type"


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.kind)
def test_a_record_about_another_provider_is_refused(body: Body) -> None:
    with pytest.raises(BadRecord) as caught:
        read_body(ME, fields(body, provider=identity(2).peer))
    assert caught.value.code == "not-provider"
    assert read_body(ME, fields(body, provider=ME)) == body


def test_a_speed_is_clamped() -> None:
    for value, taken in ((-3, 0.0), (2**63, defaults.SPEED_LIMIT), (5, 5.0)):
        found = read_body(ME, fields(SHARD, speed=value))
        assert isinstance(found, ShardBody) and found.speed == taken


@given(st.sets(st.integers(0, 400)))
def test_runs_of_chunks_round_trip(held: set[int]) -> None:
    runs: list[tuple[int, int]] = []
    for index in sorted(held):
        if runs and runs[-1][1] == index:
            runs[-1] = runs[-1][0], index + 1
        else:
            runs.append((index, index + 1))
    kept = longest_runs(runs)
    assert len(kept) == min(len(runs), defaults.BLOB_RUNS)
    body = replace(BLOB, chunks=401, ranges=kept)
    assert read_body(ME, fields(body)) == body


def test_the_longest_runs_are_kept() -> None:
    runs = [(10 * n, 10 * n + 1 + (n % 2)) for n in range(2 * defaults.BLOB_RUNS)]
    assert longest_runs(runs) == tuple(run for run in runs if run[1] - run[0] == 2)


def test_keys_and_slots() -> None:
    assert KV.key == kv_key(ROOT, "float16", "", "salt", OTHER)
    assert KV.key == replace(KV, tip=OTHER, blocks=1, layers=(6, 9)).key
    assert KV.key != replace(KV, salt="").key
    assert {KV.slot, replace(KV, tip=OTHER).slot} == {ROOT, OTHER}
    assert SHARD.slot == "0:6:float16" and SHARD.key == replace(SHARD, start=1).key
    assert SHARD.key != BLOB.key
    assert NAME.slot == ROOT and NAME.key == replace(NAME, root=OTHER).key
    assert PEER.key != PeerBody(identity(2).peer, ()).key

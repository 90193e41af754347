"""The view of shards by model, which placement and routing use."""

from dataclasses import replace

import pytest

from shoal.state import defaults
from shoal.state.feeds.entry import FeedName
from shoal.state.feeds.kinds import part_of_root
from shoal.state.membership.record import ShardRecord
from shoal.state.views.placements import Placements, shard_fact, shard_key
from shoal.transport.identity import Identity, PeerId

ALICE, BOB = (Identity.from_seed(seed * 32).peer for seed in (b"a", b"b"))
ROOT, OTHER = "1" * 64, "f" * 64


def shard(root: str, start: int, stop: int) -> ShardRecord:
    return ShardRecord(root, start == 0, start, stop, stop == 22, "bf16", 4096)


def serve(view: Placements, peer: PeerId, number: int, what: ShardRecord) -> None:
    name = FeedName(peer, "shards", part_of_root(what.root))
    view.changed(name, shard_key(what.root, number), shard_fact(what))


def test_members_that_serve_a_model() -> None:
    view = Placements()
    low, high, whole = shard(ROOT, 0, 11), shard(ROOT, 11, 22), shard(OTHER, 0, 22)
    serve(view, ALICE, 1, high)
    serve(view, ALICE, 0, low)
    serve(view, BOB, 0, high)
    serve(view, BOB, 0, whole)
    assert view.get(ROOT) == {ALICE: (low, high), BOB: (high,)}
    assert view.get(OTHER) == {BOB: (whole,)} and set(view.roots()) == {ROOT, OTHER}
    assert view.of(BOB) == (high, whole) and view.of(ALICE) == (low, high)


def test_a_moved_and_a_removed_shard() -> None:
    view = Placements()
    watch = view.watch()
    serve(view, ALICE, 0, shard(ROOT, 0, 11))
    serve(view, ALICE, 0, shard(ROOT, 4, 9))
    assert view.get(ROOT) == {ALICE: (shard(ROOT, 4, 9),)}
    change = watch.next_now()
    assert change is not None and change.subject == ROOT and change.value is view.get(ROOT)
    view.changed(FeedName(ALICE, "shards", 1), shard_key(ROOT, 0), None)
    assert view.get(ROOT) is None and view.of(ALICE) == ()


@pytest.mark.parametrize(
    ("part", "key", "change"),
    [
        (2, shard_key(ROOT, 0), {}),  # another model's part
        (1, ROOT, {}),
        (1, ROOT + "/", {}),
        (1, ROOT + "/10", {}),
        (1, ROOT + "/g", {}),
        (1, ROOT[1:] + "/0", {}),
        (1, shard_key(ROOT, 0), {"start": 11}),
        (1, shard_key(ROOT, 0), {"start": 10**9, "stop": 10**9 + 1}),
        (1, shard_key(ROOT, 0), {"stop": None}),
        (1, shard_key(ROOT, 0), {"dtype": "x" * 17}),
        (1, shard_key(ROOT, 0), {"class": "x" * 65}),
        (1, shard_key(ROOT, 0), {"class": 7}),
        (1, shard_key(ROOT, 0), {"costs": 7}),
        (1, shard_key(ROOT, 0), {"costs": [0.1, 0.1]}),
        (1, shard_key(ROOT, 0), {"costs": [0.1, 0.1, 0.1, 0.1]}),
        (1, shard_key(ROOT, 0), {"costs": [0.1, 0.1, float("nan")]}),
        (1, shard_key(ROOT, 0), {"costs": [0.1, 0.1, float("inf")]}),
        (1, shard_key(ROOT, 0), {"costs": ["0.1", 0.1, 0.1]}),
    ],
)
def test_malformed_shards_are_refused(part: int, key: str, change: dict[str, object]) -> None:
    view = Placements()
    view.changed(FeedName(ALICE, "shards", part), key, shard_fact(shard(ROOT, 0, 11)) | change)
    assert view.bad == 1 and not list(view.roots()) and view.of(ALICE) == ()


def test_measured_costs_of_a_shard() -> None:
    view = Placements()
    measured = replace(shard(ROOT, 0, 11), costs=(0.01, 0.002, 1e-7))
    serve(view, ALICE, 0, measured)
    assert view.of(ALICE) == (measured,)
    assert "costs" not in shard_fact(shard(ROOT, 0, 11))  # unknown ones take no room


def test_numbers_are_clamped() -> None:
    view = Placements()
    told = shard_fact(shard(ROOT, 0, 11)) | {"start": -5, "stop": 10**9, "tokens": 2**62}
    told["costs"] = [-1.0, 1e9, 0]
    view.changed(FeedName(ALICE, "shards", 1), shard_key(ROOT, 3), told)
    (found,) = view.of(ALICE)
    assert (found.start, found.stop) == (0, defaults.MAX_LAYERS)
    assert found.kv_tokens_free == defaults.MAX_TOKENS
    assert found.costs == (0.0, defaults.MAX_STEP_S, 0.0)

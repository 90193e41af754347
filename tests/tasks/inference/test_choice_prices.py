"""The cost model prices windows of drafts, and what the gateway has measured corrects it."""

from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from shoal.state.directory import Directory
from shoal.tasks.engine.interface import Parts
from shoal.tasks.inference.chain import Chains
from shoal.tasks.inference.choice import Choice
from shoal.tasks.inference.courier import Courier
from shoal.tasks.routing.beliefs import Observed, Shard, StageTimes, Times
from shoal.tasks.routing.paths import Hop
from shoal.transport.host.seam import Host
from tests.tasks.fake_swarm import FakeHost, peer_of

ROOT, OWN, OTHER = "ab" * 32, peer_of(1), peer_of(2)
ROUTE = (
    Hop(OWN, Parts(True, 0, 3, False), "float32"),
    Hop(OTHER, Parts(False, 3, 6, True), "float32"),
)
COSTS = (0.01, 0.001, 1e-6)


class FakeShard(NamedTuple):
    root: str
    embedding: bool
    start: int
    stop: int
    head: bool
    costs: tuple[float, float, float]


def member(hop: Hop, costs: tuple[float, float, float]) -> Any:
    parts = hop.parts
    shard = FakeShard(ROOT, parts.embedding, parts.start, parts.stop, parts.head, costs)
    return SimpleNamespace(shards=[shard], capacity=None)


def choice(members: dict[str, Any]) -> Choice:
    trips = {OWN: 0.0, OTHER: 0.04}
    courier = SimpleNamespace(peer=OWN, round_trip=trips.get, rate=lambda peer: 1e6)
    return Choice(
        cast(Host, FakeHost()),
        cast(Courier, courier),
        cast(Directory, SimpleNamespace(members=lambda: members)),
        cast(Chains, SimpleNamespace(avoided=tuple)),
    )


def prices(chosen: Choice, activations: str = "exact") -> Any:
    run: Any = SimpleNamespace(
        peers=(OWN, OTHER), chain=ROUTE, prompt=1000, activations=activations
    )
    model: Any = SimpleNamespace(root=ROOT, arch=None, hidden=1000)
    return chosen.window_prices(run, model)


def test_the_published_costs_of_the_shards_and_the_links_count() -> None:
    chosen = choice({hop.peer: member(hop, COSTS) for hop in ROUTE})
    row = 0.001 + 1001 * 1e-6
    found = prices(chosen)
    assert found.round_s == pytest.approx(2 * (0.01 + row) + 0.04 + 4000 / 1e6, rel=0.01)
    assert found.row_s == pytest.approx(2 * row + 4000 / 1e6, rel=0.01)
    assert found.step_s == pytest.approx(0.01 + row)
    packed = prices(chosen, "int8")
    assert found.row_s - packed.row_s == pytest.approx((4000 - 1032) / 1e6), "int8 on the way"


def test_what_was_measured_of_a_stage_corrects_its_claim() -> None:
    chosen = choice({hop.peer: member(hop, COSTS) for hop in ROUTE})
    before = prices(chosen)
    claimed = Times(3e-4, 3e-3)  # of three layers of an unknown model
    stages = [StageTimes(Shard(hop.peer, ROOT, hop.parts), claimed, None) for hop in ROUTE]
    chosen.router.beliefs.observed(stages, Observed(1.0, 0.0, 0, 0.06, 0.0, 10), 0.0)
    assert prices(chosen).step_s == pytest.approx(10 * before.step_s)


def test_shards_without_costs_and_stages_that_have_left_are_priced_by_what_is_believed() -> None:
    chosen = choice({OWN: member(ROUTE[0], (0.0, 0.0, 0.0))})
    found = prices(chosen)
    assert found.step_s == pytest.approx(4000 / 1e6), "the link is slower than three unknown layers"
    assert found.round_s == pytest.approx(3e-3 + 0.04 + 4000 / 1e6, rel=0.02)
    assert found.row_s == pytest.approx(3e-4 + 4000 / 1e6)

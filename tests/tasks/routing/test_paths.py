"""The shortest path over shards, in predicted seconds."""

import itertools
import time
from dataclasses import dataclass, field
from random import Random

import pytest

from shoal.tasks.engine.interface import Parts
from shoal.tasks.routing.paths import NOTHING_SENT, Hop, HopTimes, Search, Sending, StageCost
from shoal.transport.identity import PeerId

LAYERS = 12


def hop(name: str, start: int, stop: int) -> Hop:
    return Hop(PeerId(name), Parts(start == 0, start, stop, stop == LAYERS), "float32")


@dataclass
class Given:
    """Costs as tables: a stage's by peer, a link's by the two peers."""

    stages: dict[str, StageCost] = field(default_factory=dict)
    links: dict[tuple[str, str], float] = field(default_factory=dict)
    sends: dict[tuple[str, str], Sending] = field(default_factory=dict)
    unlinked: frozenset[str] = frozenset()
    own: PeerId | None = None

    def stage(self, hop: Hop) -> StageCost:
        return self.stages.get(hop.peer, StageCost(0.0, 0.1, 0.01, 0.01))

    def link(self, one: PeerId | None, other: PeerId) -> float:
        pair = (str(one or "gateway"), str(other))
        return self.links.get(pair, self.links.get(pair[::-1], 0.02))

    def hop_times(self, one: PeerId | None, hop: Hop) -> HopTimes:
        sent = self.sends.get((str(one), hop.peer), NOTHING_SENT)
        return HopTimes(self.link(one, hop.peer) / 2, *sent)

    def opening(self, peer: PeerId) -> float:
        return 0.5 if peer in self.unlinked else 0.0


def best(costs: Given, *hops: Hop, tokens: int = 100, avoid: str = "") -> str:
    search = Search(LAYERS, costs, b"", frozenset(map(PeerId, avoid)), tokens)
    chain = search.best(hops)
    return "".join(each.peer for each in chain) if chain else ""


def test_the_faster_of_two_replicas_is_taken() -> None:
    slow = StageCost(0.0, 0.1, 0.01, 0.05)
    assert best(Given({"a": slow}), hop("a", 0, 12), hop("b", 0, 12)) == "b"


def test_one_slow_machine_loses_to_a_chain_of_fast_ones() -> None:
    slow = StageCost(0.0, 5.0, 0.0, 0.5)
    hops = hop("a", 0, 12), hop("b", 0, 6), hop("c", 6, 12)
    assert best(Given({"a": slow}), *hops) == "bc"
    assert best(Given(), *hops) == "a"


def test_a_queue_counts_once_and_slow_tokens_count_for_each() -> None:
    queue, slow = StageCost(3.0, 0.1, 0.0, 0.01), StageCost(0.0, 0.1, 0.0, 0.06)
    hops = hop("a", 0, 12), hop("b", 0, 12)
    assert best(Given({"a": queue, "b": slow}), *hops, tokens=10) == "b"
    assert best(Given({"a": queue, "b": slow}), *hops, tokens=1000) == "a"


def test_the_link_between_two_stages_counts() -> None:
    hops = hop("a", 0, 6), hop("b", 6, 12), hop("c", 6, 12)
    assert best(Given(links={("a", "b"): 0.2}), *hops) == "ac"
    assert best(Given(links={("a", "c"): 0.2}), *hops) == "ab"


def test_the_rate_of_the_link_between_two_stages_counts() -> None:
    """A prompt takes as long as its slowest part, and a further token a row on each link."""
    a, b, c = hop("a", 0, 6), hop("b", 6, 12), hop("c", 6, 12)
    slow = Given(sends={("a", "b"): Sending(8.0, 0.4, 0.004)})
    assert best(slow, a, b, c) == "ac"
    search = Search(LAYERS, slow, b"")
    through, around = search.cost((a, b)), search.cost((a, c))
    assert through.first_s == pytest.approx(around.first_s - 0.1 + 8.0 + 0.4)
    assert through.token_s == pytest.approx(around.token_s + 0.004)


def test_a_link_that_does_not_exist_yet_costs_more() -> None:
    hops = hop("a", 0, 12), hop("b", 0, 12)
    assert best(Given(unlinked=frozenset("a")), *hops) == "b"
    assert best(Given(unlinked=frozenset("b")), *hops) == "a"


def test_avoided_peers_come_last() -> None:
    slow = StageCost(9.0, 9.0, 0.0, 0.5)
    hops = hop("a", 0, 12), hop("b", 0, 12)
    assert best(Given({"a": slow}), *hops, avoid="b") == "a"
    assert best(Given({"a": slow}), *hops, avoid="ab") == "b"


def test_the_path_is_that_of_brute_force() -> None:
    """Fleets with two to three replicas of each of three ranges, with random costs and links."""
    random = Random(4)
    for _ in range(30):
        ranges = ((0, 4), (4, 8), (8, 12))
        names = iter("abcdefghi")
        stages = [[hop(next(names), *r) for _ in range(random.choice((2, 3)))] for r in ranges]
        hops = [each for group in stages for each in group]
        costs = Given(
            {
                each.peer: StageCost(random.random(), random.random(), 0.01, random.random() / 9)
                for each in hops
            },
            {
                (one.peer, other.peer): random.random() / 9
                for one in hops
                for other in hops
                if one != other
            },
        )
        search = Search(LAYERS, costs, b"", frozenset(), 50)
        every = [search.cost(chain).total(50) for chain in itertools.product(*stages)]
        found = search.best(hops)
        assert found is not None
        assert search.cost(found).total(50) <= 1.06 * min(every)


def test_ten_thousand_shards_of_hostile_members_take_bounded_work() -> None:
    """Each range of layers once, and each boundary reached from all before: without the bound on
    partial chains, this takes seconds."""
    layers = 64
    hops = [
        Hop(PeerId(f"p{start}-{stop}"), Parts(start == 0, start, stop, stop == layers), "float32")
        for start in range(layers)
        for stop in range(start + 1, layers + 1)
    ]
    calls = 0

    class Counting(Given):
        def opening(self, peer: PeerId) -> float:
            nonlocal calls
            calls += 1
            return 0.0

    began = time.process_time()
    assert Search(layers, Counting(), b"").best(hops)
    assert calls <= 3 * len(hops)
    assert time.process_time() - began < 2.0


def test_chains_do_not_mix_dtypes() -> None:
    other = Hop(PeerId("b"), Parts(False, 6, 12, True), "bfloat16")
    assert best(Given(), hop("a", 0, 6), other) == ""
    assert best(Given(), hop("a", 0, 6), other, hop("c", 6, 12)) == "ac"


@pytest.mark.parametrize("broken", [hop("b", 7, 12), hop("b", 5, 12)])
def test_shards_join_exactly(broken: Hop) -> None:
    assert best(Given(), hop("a", 0, 6), broken) == ""

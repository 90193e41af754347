"""Swarms whose nodes decide by speed, with delayed records: no oscillation, no longer holes."""

import math

import pytest

from shoal.netsim.daemons.placements import PlacementSwarm
from shoal.state.membership.record import Rank
from shoal.tasks.defaults import CLAIM_WAIT, FASTER_LOOK, FASTER_SETTLE, MOVE_JITTER
from shoal.tasks.placement.improve import PlanTerms
from shoal.tasks.placement.placing import Placing
from shoal.tasks.placement.plan import Place
from shoal.transport.identity import PeerId
from tests.tasks.placement.fleets import fleet, machine, model

QUIET_S, SETTLED_S, HOLE_S = 7200.0, 1200.0, 30.0


def settles(seed: int) -> None:
    swarm = PlacementSwarm(seed, quiet=QUIET_S)
    found = swarm.run()
    last = max(node.moved_at for node in swarm.nodes)
    assert last < swarm.now - QUIET_S + SETTLED_S, (seed, last)
    assert found.hole_s <= HOLE_S, seed


@pytest.mark.parametrize("seed", (1, 4, 5, 7, 9, 12))
def test_moves_stop_soon_after_the_last_event(seed: int) -> None:
    settles(seed)


@pytest.mark.ci
def test_moves_stop_in_many_swarms() -> None:
    for seed in range(100):
        settles(seed)


def test_speed_makes_swarms_faster_than_memory_alone() -> None:
    gains = []
    for seed in (1, 4, 9, 10, 12, 13):
        by_speed, by_memory = PlacementSwarm(seed), PlacementSwarm(seed, speed=False)
        by_speed.run()
        by_memory.run()
        by_memory.terms = by_speed.terms
        for a, b in zip(by_memory.nodes, by_speed.nodes, strict=True):
            a.rates = b.rates
        gains.append(by_speed.rate().demand / by_memory.rate().demand)
    assert math.prod(gains) ** (1 / len(gains)) > 1.2


A, B, C = machine("a", 4), machine("b", 4), machine("c", 8, 4)
KNOWN = fleet([A, B, C])


def places(rank: Rank = Rank.HOLDS) -> list[Place]:
    return [
        Place(each.peer, each.memory, span, rank, each.rates)
        for each, span in ((A, (0, 4)), (B, (4, 8)))
    ]


def placing(*steady: str) -> tuple[Placing, PlanTerms]:
    """The fast machine `c`, which holds what `a` holds and could hold the whole model."""
    found = Placing(C.peer, C.memory, 0.5)
    found.hold((0, 4))
    known = PlanTerms(model(), KNOWN.links, rates=C.rates, steady=[PeerId(s) for s in steady])
    return found, known


SIZES = model().sizes
DUE = FASTER_SETTLE + 0.5 * MOVE_JITTER * FASTER_LOOK


def test_a_move_for_speed_has_to_last_is_claimed_and_loaded() -> None:
    node, known = placing("a", "b")
    step = node.look(0.0, SIZES, places(), known)
    assert (step.span, step.rank, step.wake) == ((0, 4), Rank.HOLDS, DUE)
    assert node.look(DUE - 1, SIZES, places(), known).rank is Rank.HOLDS
    step = node.look(DUE, SIZES, places(), known)
    assert (step.span, step.rank, step.load) == ((0, 8), Rank.CLAIMS, False)
    step = node.look(DUE + CLAIM_WAIT, SIZES, places(), known)
    assert (step.span, step.rank, step.load) == ((0, 8), Rank.HOLDS, True)
    assert node.look(DUE + 99, SIZES, places(), known).wake == math.inf


def test_it_stays_while_it_cannot_rely_on_the_others() -> None:
    node, known = placing("a")
    for second in range(0, 600, 10):
        step = node.look(second, SIZES, places(), known)
        assert (step.rank, step.load) == (Rank.HOLDS, False)


def test_a_claim_for_speed_is_dropped_if_the_others_lose_their_chain() -> None:
    node, known = placing("a", "b")
    node.look(0.0, SIZES, places(), known)
    assert node.look(DUE, SIZES, places(), known).rank is Rank.CLAIMS
    leaving = [places()[0], places(Rank.CLAIMS)[1]]
    step = node.look(DUE + CLAIM_WAIT, SIZES, leaving, known)
    assert (step.span, step.rank, step.load) == ((0, 4), Rank.HOLDS, False)


def test_facts_that_change_all_the_time_cost_one_look_in_a_while() -> None:
    node, known = placing("a", "b")
    looks = 0
    for second in range(120):
        more = Place(PeerId("z"), 2 * 10**8 + second, (0, 1), Rank.HOLDS)
        before = node.speed.looked_at
        node.look(second, SIZES, [*places(), more], known)
        looks += node.speed.looked_at != before
    assert looks <= 120 / FASTER_LOOK + 1

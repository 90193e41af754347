"""Plans by predicted speed: near brute force, the same at all nodes, few and near stages."""

import time
from itertools import product
from random import Random

import pytest

from shoal.tasks.placement.coverage import Span
from shoal.tasks.placement.fleet import Costs, Demand, Fleet
from shoal.tasks.placement.optimise import optimise
from shoal.tasks.placement.plan import has_chain
from shoal.tasks.placement.predict import TokenRates, rate_of, routes_of
from shoal.tasks.placement.rules import by_memory, evenly, petals, petals_chain
from tests.tasks.placement.fleets import costs, fleet, machine, model

RULES = (evenly, by_memory, petals, petals_chain)


def test_a_model_that_fits_one_machine_is_served_whole_there() -> None:
    found, _ = optimise(costs([machine("a", 8), machine("b", 4, 1.5), machine("c", 4, 1.5)], "xyz"))
    assert found[0] == (0, 8) and routes_of(costs([machine("a", 8)]), {0: (0, 8)}, 1)


def test_fewer_and_nearer_stages_beat_more() -> None:
    machines = [machine(name, 4) for name in "abcd"]
    known = costs(machines, "xyxy")
    found, _ = optimise(known)
    path = routes_of(known, found, 1)[0].machines
    assert {known.peers[each] for each in path} in ({"a", "c"}, {"b", "d"})


def test_the_faster_machine_gets_more_layers() -> None:
    found, _ = optimise(costs([machine("a", 7, 1), machine("b", 7, 5)]))
    assert found[1][1] - found[1][0] == 7


def test_many_sessions_share_the_work_evenly_where_it_is_the_bottleneck() -> None:
    slow = [machine(name, 7) for name in "ab"]
    known = costs(slow, sessions=64)
    found, rate = optimise(known)
    assert sorted(found.values()) == [(0, 4), (4, 8)]
    assert rate > rate_of(known, {0: (0, 7), 1: (7, 8)})


@pytest.mark.parametrize("seed", range(12))
def test_small_fleets_are_placed_within_5_percent_of_brute_force(seed: int) -> None:
    luck = Random(seed)
    machines = [machine(name, luck.uniform(2, 9), luck.uniform(0.5, 8)) for name in "abc"]
    known = Costs(
        fleet(machines, "".join(luck.choices("xy", k=3))),
        model(5),
        Demand(luck.choice((1, 8)), 256, 64),
    )
    spans = [(a, b) for a in range(5) for b in range(a + 1, 6)]
    able: list[list[Span | None]] = [
        [None, *(span for span in spans if known.fits(each, span))] for each in range(3)
    ]
    best = max(
        rate_of(known, {n: span for n, span in enumerate(chosen) if span}).demand
        for chosen in product(*able)
    )
    assert optimise(known)[1].demand >= 0.95 * best


def test_facts_in_another_order_give_the_same_plan() -> None:
    luck = Random(5)
    machines = [machine(f"m{n}", luck.uniform(1, 9), luck.choice((1, 1, 4))) for n in range(8)]
    told, plans = fleet(machines, "xyxyxyxy"), set()
    for seed in range(4):
        Random(seed).shuffle(machines)
        links = list(told.links.items())
        Random(seed).shuffle(links)
        known = Costs(Fleet(tuple(machines), dict(links)), model(), Demand(8, 256, 64))
        found, rate = optimise(known, looks=100)
        plans.add((tuple((known.peers[n], span) for n, span in found.items()), rate))
    assert len(plans) == 1


@pytest.mark.parametrize("seed", range(4))
def test_it_is_never_slower_than_the_simple_rules(seed: int) -> None:
    luck = Random(100 + seed)
    machines = [machine(f"m{n}", luck.uniform(1, 6), luck.uniform(0.5, 9)) for n in range(7)]
    known = costs(machines, "xyxyxyx", sessions=8)
    found, rate = optimise(known, looks=100)
    assert has_chain(8, found.values())
    assert rate >= max(rate_of(known, rule(known)) for rule in RULES)


def test_machines_without_room_have_no_plan() -> None:
    assert optimise(costs([machine("a", 3), machine("b", 3)])) == ({}, TokenRates(0, 0))
    assert optimise(costs([])) == ({}, TokenRates(0, 0))


def test_sessions_have_memory_for_their_keys_and_values() -> None:
    """A position takes 8 kB in all layers, and 50 MB are left beside the first 512."""
    known = Costs(fleet([machine("a", 8)]), model(), Demand(64, 3000, 96))
    assert known.room(0, (0, 8)) == (512 + 5 * 10**7 // 8000) // 3096 == 2
    assert sum(route.sessions for route in routes_of(known, {0: (0, 8)}, 64)) == 2


def test_a_plan_for_many_machines_takes_bounded_time() -> None:
    """The decisions of a daemon: 24 machines at most, in a thread."""
    luck = Random(1)
    machines = [machine(f"m{n:02}", luck.uniform(0.5, 2), luck.uniform(1, 9)) for n in range(24)]
    known = costs(machines, "xyz" * 8, sessions=8)
    began = time.process_time()
    found, _ = optimise(known, looks=80)
    assert has_chain(8, found.values()) and time.process_time() - began < 5.0


def test_parts_of_what_petals_would_place_make_a_chain_of_whole_shards() -> None:
    machines = [machine("a", 5), machine("b", 5, 3), machine("c", 5, 3)]
    known = costs(machines)
    chain = petals_chain(known)
    assert has_chain(8, chain.values()) and not has_chain(8, petals(known).values())
    assert all(petals(known)[n][0] <= a < b <= petals(known)[n][1] for n, (a, b) in chain.items())

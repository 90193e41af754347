"""The model of replicas and gateways answers all requests, repeats, and shows what caches save."""

from random import Random

import pytest

from bench.worlds.routed import (
    BLOCK,
    POLICIES,
    Fleet,
    Outcome,
    Policy,
    Request,
    World,
    arrivals,
)
from shoal.tasks.engine.scheduling.costs import StepCosts

COSTS = StepCosts(fixed=0.04, row=80e-6, attended=4e-9, most_rows=2048)


def conversations(count: int) -> list[Request]:
    """Return requests of 20 conversations that begin alike and then grow by a block each turn."""
    random, turns, found = Random(5), dict[int, int](), list[Request]()
    for number in range(count):
        who = random.randrange(20)
        turns[who] = turns.get(who, 3) + 1
        blocks = (0, *(1000 * (who + 1) + turn for turn in range(turns[who])))
        found.append(Request(number * 0.4, len(blocks) * BLOCK, 20, blocks))
    return found


def run(policy: Policy, seed: int = 1, rate: float = 2.0, **fleet: object) -> Outcome:
    requests = arrivals(conversations(80), 80, rate, seed)
    world = World(Fleet(COSTS, **fleet), requests[30:], policy, seed)  # type: ignore[arg-type]
    world.warm(requests[:30])
    return world.run()


@pytest.mark.parametrize("policy", POLICIES)
def test_all_requests_are_answered_and_a_run_repeats(policy: Policy) -> None:
    outcome = run(policy)
    assert all(0.0 < seconds < 1000.0 for seconds in outcome.first)
    assert outcome.most_probes == (4 if policy == "shoal" else 0)
    assert run(policy).first == outcome.first


def test_conversations_find_their_caches() -> None:
    """By the least load alone, a conversation meets its cache by chance."""
    found, chance = run("shoal"), run("least-loaded")
    assert found.cached / found.rows > 1.3 * chance.cached / chance.rows


def test_a_liar_gets_less_than_its_share_once_it_is_slow() -> None:
    outcome = run("shoal", rate=8.0, replicas=4, gateways=1, liars=1)
    later = outcome.to_liars[20:]
    assert sum(later) / len(later) < 0.25

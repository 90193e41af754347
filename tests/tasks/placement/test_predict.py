"""Predicted rates, and what searches for plans keep of them."""

from random import Random

from shoal.tasks.placement.chains import evenest, within
from shoal.tasks.placement.fleet import Costs
from shoal.tasks.placement.predict import NOTHING, TokenRates, better_rate, rate_of
from tests.tasks.placement.fleets import costs, machine

LAYERS = 8


def drawn(random: Random, sessions: int) -> Costs:
    machines = [machine(f"m{n}", 8.0, random.uniform(0.5, 8.0)) for n in range(4)]
    return costs(machines, "aabb", sessions)


def test_the_evenest_split_is_what_trying_every_limit_finds() -> None:
    random = Random(1)
    for _ in range(50):
        found = drawn(random, 1)
        rooms = [random.randint(1, LAYERS) for _ in found.peers]
        if sum(rooms) < LAYERS:
            continue
        order = range(len(rooms))
        limit = evenest(found, order, rooms, 0)
        assert sum(within(found, order, rooms, 0, limit)) >= LAYERS
        assert limit == 1 or sum(within(found, order, rooms, 0, limit - 1)) < LAYERS


def test_a_rate_that_is_compared_first_is_the_same_later() -> None:
    random = Random(2)
    for sessions in (1, 8):
        for _ in range(40):
            fresh = drawn(random, sessions)
            cut = random.randrange(1, LAYERS)
            spans = {0: (0, cut), 1: (cut, LAYERS), 2: (0, cut), 3: (0, random.randint(1, LAYERS))}
            again = Costs.__new__(Costs)
            again.__dict__.update(fresh.__dict__, rates={})
            rate = rate_of(again, spans)
            assert rate > NOTHING
            for than in (
                TokenRates(rate.demand + 1, 0),
                rate,
                TokenRates(rate.demand, rate.single - 1),
            ):
                assert better_rate(fresh, spans, than) == (rate if rate > than else None)
            assert rate_of(fresh, spans) == rate
    assert rate_of(fresh, {0: (0, 3)}) == NOTHING

"""Packets, bytes, simulation events and objects of a home in an idle swarm.

They are the same on every machine. Costs only go down. A change that raises a number says in the
CHANGELOG what it buys.
"""

import gc

import pytest
import trio

from .homes import Pin, Swarm

SETTLE_S = 240.0  # seconds after joining; a home dials for its last links within two minutes
IDLE_S = 180.0  # seconds that are measured
HOUR = 3600 / IDLE_S
GROWTH = 1.03  # what may be kept more at the end than at the beginning, as a factor

IDLING = {
    25: Pin(62_000, 7_200_000, 89_000, 10_700_000, 306_000),
    100: Pin(1, 1, 1, 1, 1),
}


def kept() -> int:
    """Return how many objects there are."""
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.parametrize(
    "count", [pytest.param(25, marks=pytest.mark.ci), pytest.param(100, marks=pytest.mark.long)]
)
def test_an_idle_hour_costs_a_home_no_more(count: int) -> None:
    swarm = Swarm(count)

    async def main() -> tuple[int, int, int]:
        await swarm.join()
        await trio.sleep(SETTLE_S)
        before, began = kept(), swarm.world.events.count
        for name in swarm.behind:
            swarm.meter.begin(name, swarm.world.events.now, IDLE_S)
        await trio.sleep(IDLE_S)
        return swarm.world.events.count - began, before, kept()

    events, before, after = swarm.world.run(main)
    IDLING[count].check(swarm, events, HOUR)
    assert after <= GROWTH * before, "what an idle swarm keeps in memory must not grow"

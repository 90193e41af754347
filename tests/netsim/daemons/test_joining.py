"""Packets and bytes that a home sends in its first minute. They are the same on every machine.

Costs only go down. A change that raises a number says in the CHANGELOG what it buys.
"""

from typing import Any

import pytest

from .homes import Pin, Swarm


def run(swarm: Swarm, main: Any) -> Any:
    return swarm.world.run(main)


JOINING = {
    25: Pin(5_000, 1_150_000, 8_700, 1_800_000, 24_500),
    100: Pin(5_800, 1_500_000, 10_500, 2_800_000, 31_000),
}
"""Bounds by number of homes, a quarter above the values of 23 November 2026. Those were 3,941
packets, 877 kB, 6,767, 1,407 kB and 19,003 events; for 100 homes, some commits earlier, 4,597,
1,183 kB, 8,357, 2,209 kB and 24,418. Before the upkeep of the DHT used the links that exist, they
were 8,808 packets, 2,061 kB, 12,560, 4,106 kB and 34,097. Before reachable nodes relayed by
default, 25 homes sent 1,611 packets and 610 kB, and the bound was 1,700 packets. The room is wide
because two commits of that day gave medians of 6,473 and 8,808, though neither changed what is
sent."""


@pytest.mark.parametrize(
    "count", [pytest.param(25, marks=pytest.mark.ci), pytest.param(100, marks=pytest.mark.long)]
)
def test_joining_costs_a_home_no_more(count: int) -> None:
    swarm = Swarm(count)

    async def main() -> int:
        began = swarm.world.events.count
        await swarm.join()
        return swarm.world.events.count - began

    events = run(swarm, main)
    JOINING[count].check(swarm, events)
    blocked = sum(known == 0 for known in swarm.listed())
    assert blocked <= count // 20, "only homes limited to web ports may fail to join"
    assert sorted(swarm.listed())[count // 10] >= count

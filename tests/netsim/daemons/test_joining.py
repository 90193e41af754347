"""What a home sends in the first minute after it joins: the same on every machine.

Costs only go down. Whoever raises a number here says in the CHANGELOG what it buys.
"""

from collections import defaultdict
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.host import Host
from shoal.netsim.packet import Addr
from shoal.netsim.population import latency, profiles
from shoal.netsim.population.mix import build, draw, load
from shoal.netsim.trace import SENT, Trace
from shoal.netsim.world import World

PORT = 4001
REACHABLE = 20  # homes for each public node that they are told of
SPREAD_S = 10.0  # in which all homes start
MINUTE_S = 60.0
WHY = "raise the pin only with a reason in the CHANGELOG"


class Meter(Trace):
    """Counts what each host sends from its start on; keeps nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.packets: dict[str, int] = defaultdict(int)
        self.bytes: dict[str, int] = defaultdict(int)
        self.until: dict[str, float] = {}

    def begin(self, host: str, now: float, seconds: float) -> None:
        self.packets[host] = self.bytes[host] = 0
        self.until[host] = now + seconds

    def add(
        self,
        time: float,
        what: str,
        host: str,
        proto: int,
        src: Addr,
        dst: Addr,
        size: int,
        cause: str,
    ) -> None:
        if what == SENT and time < self.until.get(host, 0.0):
            self.packets[host] += 1
            self.bytes[host] += size


@dataclass
class Swarm:
    """Homes as they are drawn, and public nodes that they are told of; no options."""

    count: int

    def __post_init__(self) -> None:
        self.meter = Meter()
        self.world = World(1, latency=latency.matrix(), trace=self.meter)
        self.daemons: list[DaemonHandle] = []
        fibre, world = profiles.link("fibre"), self.world
        number = max(1, self.count // REACHABLE)
        self.public = [world.host(f"p{n}", link=fibre) for n in range(number)]
        places, people = latency.matrix(), load()
        drawn = [
            draw(people, world.streams.get(f"v{n}", "population"), places)
            for n in range(self.count)
        ]
        built = [build(world, f"v{n}", one) for n, one in enumerate(drawn)]
        self.homes = [each.host for each in built if isinstance(each.host, Host)]
        self.behind = [each.name for each in built if each.drawn.kind.nat]

    async def join(self) -> None:
        """All, within a few seconds; returns when each has been there for a minute."""
        random = Random(1)
        for host in self.public:
            await self._start(host, self.daemons[:1], 0.0)
        known = list(self.daemons)
        async with trio.open_nursery() as nursery:
            for host in self.homes:
                some = random.sample(known, min(2, len(known)))
                nursery.start_soon(self._start, host, some, random.uniform(0, SPREAD_S))
        await trio.sleep(MINUTE_S)

    async def _start(self, host: Host, known: list[DaemonHandle], after: float) -> None:
        await trio.sleep(after)
        self.meter.begin(host.name, self.world.events.now, MINUTE_S)
        self.daemons.append(await host.start(Daemon(bootstrap=known, engine=False, port=PORT)))

    def share(self, part: float) -> tuple[int, int]:
        """Packets and bytes that such a part of the homes did not exceed."""
        at = int(part * len(self.behind))
        packets = sorted(self.meter.packets[name] for name in self.behind)
        sizes = sorted(self.meter.bytes[name] for name in self.behind)
        return packets[at], sizes[at]

    def listed(self) -> list[int]:
        return [len(each.node.membership.everybody()) for each in self.daemons]


@dataclass(frozen=True)
class Pin:
    """At most so much: the median home, 95 % of homes, and events of the simulation a daemon."""

    packets: int
    size: int
    packets_95: int
    size_95: int
    events: int

    def check(self, swarm: Swarm, events: int) -> None:
        found = *swarm.share(0.5), *swarm.share(0.95), events // len(swarm.daemons)
        most = self.packets, self.size, self.packets_95, self.size_95, self.events
        assert all(a <= b for a, b in zip(found, most, strict=True)), f"{found}: {WHY}"


def run(swarm: Swarm, main: Any) -> Any:
    return swarm.world.run(main)


JOINING = {
    25: Pin(1_700, 640_000, 3_700, 830_000, 9_900),
    100: Pin(3_000, 1_020_000, 7_000, 2_700_000, 20_000),
}
"""3 to 5 % above 23 November 2026: 1,611 packets, 610 kB, 3,498, 759 kB, 9,439 events; and at 100
daemons 2,887, 974 kB, 6,680, 2,561 kB, 19,013."""


@pytest.mark.parametrize("count", [25, pytest.param(100, marks=pytest.mark.ci)])
def test_joining_costs_a_home_no_more(count: int) -> None:
    swarm = Swarm(count)

    async def main() -> int:
        began = swarm.world.events.count
        await swarm.join()
        return swarm.world.events.count - began

    events = run(swarm, main)
    JOINING[count].check(swarm, events)
    blocked = sum(known == 0 for known in swarm.listed())
    assert blocked <= count // 20, "only homes that let out the web alone have not joined"
    assert sorted(swarm.listed())[count // 10] >= count

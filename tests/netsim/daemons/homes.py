"""A swarm of homes with default options, and a meter of what each of them sends."""

from collections import defaultdict
from dataclasses import dataclass
from random import Random

import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.host import Host
from shoal.netsim.population import latency, profiles
from shoal.netsim.population.mix import build, draw, load
from shoal.netsim.trace.trace import SENT, Record, Trace
from shoal.netsim.world import World

PORT = 4001
REACHABLE = 20  # homes for each public node
SPREAD_S = 10.0  # seconds within which all homes start
MINUTE_S = 60.0
WHY = "raise the pin only with a reason in the CHANGELOG"


class Meter(Trace):
    """Counts what each host sends for a while after `begin`, and stores no packet."""

    def __init__(self) -> None:
        super().__init__()
        self.packets: dict[str, int] = defaultdict(int)
        self.bytes: dict[str, int] = defaultdict(int)
        self.until: dict[str, float] = {}

    def begin(self, host: str, now: float, seconds: float) -> None:
        self.packets[host] = self.bytes[host] = 0
        self.until[host] = now + seconds

    def add(self, record: Record) -> None:
        time, what, host, _, _, _, size, _ = record
        if what == SENT and time < self.until.get(host, 0.0):
            self.packets[host] += 1
            self.bytes[host] += size


@dataclass
class Swarm:
    """Homes drawn from the population, and their public bootstrap nodes, with default options."""

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
        """Start all daemons within a few seconds, and return once each has run for a minute."""
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
        """Return the packets and bytes that this part of the homes did not exceed."""
        at = int(part * len(self.behind))
        packets = sorted(self.meter.packets[name] for name in self.behind)
        sizes = sorted(self.meter.bytes[name] for name in self.behind)
        return packets[at], sizes[at]

    def listed(self) -> list[int]:
        return [len(each.node.membership.everybody()) for each in self.daemons]


@dataclass(frozen=True)
class Pin:
    """Upper bounds: for the median home, for 95 % of homes, and simulation events per daemon."""

    packets: int
    size: int
    packets_95: int
    size_95: int
    events: int

    def check(self, swarm: Swarm, events: int, times: float = 1.0) -> None:
        """Compare `times` the counted values with the bounds."""
        counted = *swarm.share(0.5), *swarm.share(0.95), events // len(swarm.daemons)
        found = tuple(round(count * times) for count in counted)
        most = self.packets, self.size, self.packets_95, self.size_95, self.events
        assert all(a <= b for a, b in zip(found, most, strict=True)), f"{found}: {WHY}"

"""A small internet of whole daemons with faults of every kind, which `workload.py` runs.

The seed draws the links, the routers, the hosts with an engine, and when which fault occurs.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.faults import Faults
from shoal.netsim.host import Host
from shoal.netsim.network.link import Burst, LinkSpec, PipeSpec
from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World

DAEMONS = 9
ROUTERS = (
    *("linux-drop", "linux-accept", "linux-random", "full-cone", "address-restricted"),
    *("eim-apdf", "apdm-apdf", "cgn"),
)
PROFILES = ("desktop", "laptop", "raspberry", "gaming")
FIBRE = LinkSpec(PipeSpec(0.003, 0.001, 5e7, loss=1e-4), PipeSpec(0.003, 0.001, 5e7, loss=1e-4))
Leak = Callable[[Any], int]


class Swarm:
    """The hosts of one seed, and the faults on them."""

    def __init__(self, seed: int, trace: Trace) -> None:
        self.world = World(seed, trace=trace)
        self.faults = Faults(self.world)
        self.luck = Random(seed)
        self.handles: dict[str, DaemonHandle] = {}
        home = self.world.gateway("home", "linux-drop", link=self.link())
        flat = self.world.gateway("flat", "port-restricted", link=self.link())
        kind, igd, six = (
            self.luck.choice(ROUTERS),
            self.luck.random() < 0.5,
            self.luck.random() < 0.5,
        )
        other = self.world.gateway("other", kind, link=self.link(), igd=igd, ipv6=six)
        behind = [None, None, None, home, home, flat, other, other, None]
        self.hosts = [
            self.world.host(
                f"n{number}",
                behind=gateway,
                link=None if gateway else FIBRE if number < 2 else self.link(),
            )
            for number, gateway in enumerate(behind)
        ]

    def link(self) -> LinkSpec:
        """Return a home's link: jitter, loss in bursts, a queue."""
        burst = Burst(0.002, 0.2, 0.3)
        up, down = (
            PipeSpec(
                self.luck.uniform(0.002, 0.03), 0.004, rate, loss=0.003, burst=burst,
                duplicate=0.001, reorder=0.001,
            )
            for rate in (2.5e6, 1.2e7)
        )  # fmt: skip
        return LinkSpec(up, down)

    async def main(self) -> None:
        """Boot, join, fetch, generate; then all the faults; then the end."""
        async with trio.open_nursery() as nursery:
            await self.boot(self.hosts[0], layers=(0, 3), links=3)
            for host in self.hosts[1:DAEMONS]:
                nursery.start_soon(self.join, host)
        with trio.fail_after(20):
            for name in ("n0", "n1"):
                await self.handles[name].serving()
        await trio.sleep(1)
        assert await self.speak("n8", 0), "at first it works"
        async with trio.open_nursery() as nursery:
            for number in (2, 4, 8):
                nursery.start_soon(self.speak, f"n{number}", number)
            nursery.start_soon(self.go_wrong)
            for deed in self.luck.sample(self.deeds(), 3):
                nursery.start_soon(self.later, deed)
        await self.speak("n3", 3)
        await self.handles["n2"].stop()
        await trio.sleep(1)

    async def join(self, host: Host) -> None:
        number = int(host.name[1:])
        await trio.sleep(self.luck.uniform(0, 0.5))
        layers = None if number == 6 else (3, 6)
        await self.boot(
            host,
            bootstrap=[self.handles["n0"]],
            model="tiny",
            layers=layers,
            engine=number in (1, 3, 6),
            profile=self.luck.choice(PROFILES),
            links=3,
        )

    async def boot(self, host: Host, **settings: Any) -> None:
        self.handles[host.name] = await host.start(**settings)

    async def speak(self, name: str, number: int) -> bool:
        """Ask a daemon for text; return whether it replied."""
        took = None
        with trio.move_on_after(6):
            prompt = f"Once upon {number} times"
            took = await self.handles[name].answer_time(prompt, model="tiny", max_tokens=12)
        return took is not None

    def deeds(self) -> list[Callable[[], object]]:
        """Return further possible faults; each seed draws some."""
        faults, luck = self.faults, self.luck
        names = [host.name for host in self.hosts]
        return [
            lambda: faults.clog(luck.sample(names, 2), 0.5),
            lambda: faults.swizzle(names, 2.0),
            lambda: faults.loss(names[:5], names[3:], 0.2),
            lambda: faults.delay(["n0"], names, 0.3),
            lambda: faults.redial("flat"),
            lambda: faults.reboot("other"),
            lambda: faults.step_clock("n3", "n7", seconds=-3600),
            lambda: faults.drift_clock("n6", rate=1e-3),
            lambda: faults.cut("n8", "up"),
            lambda: self.handles["n3"].engine.crash(),
            lambda: setattr(self.hosts[4].disk, "read_only", True),
        ]

    async def later(self, deed: Callable[[], object]) -> None:
        await trio.sleep(self.luck.uniform(0, 3))
        deed()

    async def go_wrong(self) -> None:
        faults = self.faults
        await trio.sleep(self.luck.uniform(0, 0.3))
        crashed, again = self.hosts[1], self.hosts[5]
        await faults.crash(crashed)
        rules = faults.partition(self.hosts[:4], self.hosts[4:])
        await trio.sleep(1)
        self.handles[crashed.name] = await crashed.restart()
        faults.sleep(again)
        await trio.sleep(self.luck.uniform(1, 2))
        faults.heal(*rules)
        faults.resume(again)
        faults.reboot("home", seconds=0.5)
        await trio.sleep(2)


def swarm_world(leak: Leak | None, seed: int, trace: Trace) -> tuple[World, Any]:
    """Return the world and its program; `leak` exposes a property of the machine."""
    swarm = Swarm(seed, trace)
    return swarm.world, swarm.main if leak is None else partial(_leaking, leak, swarm.main)


async def _leaking(leak: Leak, main: Callable[[], Any]) -> None:
    """Let each offloaded work take this many microseconds more."""
    real = SimulatedHost.offload

    async def offload(self: SimulatedHost, work: Any, *args: Any) -> Any:
        result = await real(self, work, *args)
        await trio.sleep(leak(self.host) * 1e-6)
        return result

    SimulatedHost.offload = offload  # type: ignore[method-assign,assignment]
    await main()

"""Chains of simulated homes in Europe, behind their gateways or with open ports, of which some are
lost while they answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.faults import Faults
from shoal.netsim.host import Host
from shoal.netsim.population import latency, profiles
from shoal.netsim.population.mix import Draw, build, draw, load
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from shoal.transport.errors import ShoalError

REGION: Final = "eu"
PUBLIC: Final = 2
"""Nodes with open ports and without engines, which homes join through."""
LINKS: Final = ("fibre", "cable", "dsl")
SETTLE_S: Final = 30.0
PATIENCE_S: Final = 300.0


@dataclass(slots=True)
class Answered:
    """One answer: its text, or the code of its failure."""

    text: str
    tokens: int
    seconds: float
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """The layers that a home serves, and its line and gateway."""

    layers: tuple[int, int]
    home: Draw


class Homes:
    """A swarm of homes, each of which serves given layers. Those `open` have no gateway."""

    def __init__(self, seed: int, *, open_ports: bool) -> None:
        self.world = World(seed, latency=latency.matrix())
        self.faults = Faults(self.world)
        self.homes: dict[str, DaemonHandle] = {}
        self.parts: dict[str, Part] = {}
        self._open = open_ports
        self._random = Random(seed)
        self._made = 0
        self.lost = 0
        self._sites = latency.matrix().of_region(REGION)
        self._public = [
            self.world.host(f"p{n}", link=profiles.link("fibre"), site=self._sites[n])
            for n in range(PUBLIC)
        ]
        self.joins: list[DaemonHandle] = []

    def draw(self) -> Draw:
        """Draw the next home of the population: in Europe, on a wired link, with a gateway."""
        people, places = load(), latency.matrix()
        while True:
            drawn = draw(people, self._random, places)
            if drawn.region.name == REGION and drawn.kind.nat and drawn.link in LINKS:
                break
        drawn = replace(drawn, bad_wifi=False)
        if self._open:
            drawn = replace(drawn, kind=replace(drawn.kind, nat="", carrier=""))
        return drawn

    def _home(self, drawn: Draw) -> Host:
        self._made += 1
        host = build(self.world, f"h{self._made}", drawn).host
        assert isinstance(host, Host)
        return host

    async def start(self, splits: Sequence[tuple[int, int]], copies: int) -> None:
        """Start the public nodes, `copies` homes for each part of the model, and the home that
        asks."""
        for host in self._public:
            daemon = Daemon(bootstrap=self.joins[:1], engine=False)
            self.joins.append(await host.start(daemon))
        async with trio.open_nursery() as nursery:
            for layers in [*splits] * copies:
                nursery.start_soon(self.add, Part(layers, self.draw()))
        asker = Daemon(bootstrap=self.joins, engine=False)
        self.asker: DaemonHandle = await self._home(self.draw()).start(asker)
        await trio.sleep(SETTLE_S)
        with trio.fail_after(PATIENCE_S):
            while (await self.ask(4)).failed:  # noqa: ASYNC110
                await trio.sleep(2)

    async def add(self, part: Part) -> None:
        """Start one more home, with new keys and an empty disk, and wait until it serves its
        layers."""
        host = self._home(part.home)
        more: dict[str, Any] = {"model": "tiny", "layers": part.layers}
        handle: DaemonHandle = await host.start(Daemon(bootstrap=self.joins, **more))
        self.homes[host.name], self.parts[host.name] = handle, part
        await handle.serving()

    async def lose(self, name: str) -> Part:
        """Cut the power of a home for good. Return what it served, and behind which line."""
        del self.homes[name]
        self.lost += 1
        await self.faults.crash(name)
        return self.parts.pop(name)

    async def ask(self, tokens: int, seed: int = 1) -> Answered:
        """Ask for an answer."""
        began = trio.current_time()
        try:
            said = await self.asker.generate(
                "Once upon a time", max_tokens=tokens, raw=True, temperature=0.8, seed=seed
            )
        except (ControlError, ShoalError) as error:
            code = str(getattr(error, "code", "failed"))
            return Answered(str(error), 0, trio.current_time() - began, code)
        return Answered(str(said["text"]), int(said["tokens"]), trio.current_time() - began)

    def in_use(self) -> list[str]:
        """Return the homes that compute for an open session now."""
        return [name for name, each in self.homes.items() if each.node.stage.sessions]

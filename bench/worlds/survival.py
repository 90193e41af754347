"""A chain of simulated daemons with spares, whose stages are killed, stopped or crashed while they
answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any, Final, Literal

import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.daemons.engine import SimulatedEngine
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.faults import Faults
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from shoal.tasks.engine.interface import (
    DEFAULT_TERMS,
    EngineEvent,
    Sampling,
    SessionId,
    SessionTerms,
    TokenEvent,
)
from shoal.tasks.inference.gateway import GatewayEvent, GenerateRequest, TextDelta
from shoal.transport.host.seam import Host

Fault = Literal["power", "stopped", "crash", "hung"]
"""A cut of a stage's power (`kill -9` without a goodbye), SIGSTOP of its daemon, the end of its
engine's worker, and SIGSTOP of that worker."""
FAULTS: Final[tuple[Fault, ...]] = ("power", "stopped", "crash", "hung")
LAYERS: Final = ((0, 2), (2, 4), (4, 6))
LAG: Final = 64
"""Positions that a standby may lack when a fault happens. While it lacks more, the fault waits."""
SETTLE_S: Final = 3.0
"""Virtual seconds between two answers."""


class CountingEngine(SimulatedEngine):
    """Simulated engine that reports when it has computed a token for any session."""

    def __init__(self, host: Host, threads: int, memory: int) -> None:
        assert isinstance(host, SimulatedHost)
        super().__init__(host, threads, memory, "numbers")
        self.count: Callable[[], None] = lambda: None

    async def open(
        self,
        session: SessionId,
        tokens: int,
        on_event: Callable[[EngineEvent], None],
        terms: SessionTerms = DEFAULT_TERMS,
    ) -> int:
        def counted(event: EngineEvent) -> None:
            on_event(event)
            if isinstance(event, TokenEvent):
                self.count()

        return await super().open(session, tokens, counted, terms)


@dataclass(frozen=True, slots=True)
class Told:
    """An answer as its client got it. Times are virtual seconds."""

    text: str
    tokens: int
    seconds: float
    times: tuple[float, ...] = ()  # when pieces of text came

    def pause(self, since: float) -> float:
        """Return the longest time without text after `since`."""
        times = [since, *(time for time in self.times if time > since)]
        return max((b - a for a, b in pairwise(times)), default=0.0)

    def waits(self, fault: float, noticed: float) -> float:
        """Return since when the client waits for the stage that failed at `fault`, until that is
        noticed.

        What later stages had got before the fault still becomes text. Windows of drafts take them
        longer the longer the context is.
        """
        return max((time for time in self.times if fault < time <= noticed), default=fault)


@dataclass
class Chain:
    """Daemons that serve the stages of a chain, each of them twice, and one without an engine that
    asks."""

    world: World
    rng: Random
    prompt: str
    max_tokens: int
    spares: int = 1
    slower: float = 1.0  # than the profile "desktop", by this factor
    links: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, DaemonHandle] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.faults = Faults(self.world)

    async def start(self) -> None:
        """Start all daemons, and wait until each knows the others."""
        first: list[DaemonHandle] = []
        for copy in range(1 + self.spares):
            for number, layers in enumerate(LAYERS):
                name = f"stage{number}-{copy}"
                host = self.world.host(name, **self.links)
                joins: dict[str, Any] = {"bootstrap": first, "model": "tiny"} if first else {}
                speed = PROFILES["desktop"].speed
                speed = replace(speed, factor=self.slower * speed.factor)
                joins["profile"] = replace(PROFILES["desktop"], speed=speed)
                handle = await host.start(layers=layers, engine=CountingEngine, **joins)
                self.stages[name] = handle
                first = first or [handle]
                await handle.serving()
        asker = self.world.host("asker", **self.links)
        self.asker = await asker.start(bootstrap=first, engine=False)
        for daemon in (*self.stages.values(), self.asker):
            await daemon.until(lambda status: status["peers"] == len(self.stages))
        await self.ask()  # starts the text process

    async def ask(self, seed: int = 1) -> Told:
        """Ask for an answer. A failure is its text."""
        found: Told = await self.asker.host.run(self._ask, seed)
        return found

    async def _ask(self, seed: int) -> Told:
        began, times, texts = trio.current_time(), list[float](), list[str]()

        async def emit(event: GatewayEvent) -> None:
            await trio.lowlevel.checkpoint()
            if isinstance(event, TextDelta):
                times.append(trio.current_time())
                texts.append(event.text)
            else:
                self.route = [hop.peer for hop in getattr(event, "stages", ())]

        request = GenerateRequest(
            "tiny",
            self.prompt,
            raw=True,
            max_tokens=self.max_tokens,
            sampling=Sampling(0.8, seed=seed),
        )
        try:
            summary = await self.asker.node.compute.gateway.generate(request, emit)
        except ControlError as error:
            return Told(f"{error.code}: {error.message}", 0, trio.current_time() - began)
        took = trio.current_time() - began
        return Told("".join(texts), summary.tokens, took, tuple(times))

    def stage(self, place: int) -> str:
        """Return the name of the stage that has a place in the latest chain."""
        peers = {daemon.peer: name for name, daemon in self.stages.items()}
        return peers[self.route[place]]

    async def disturbed(self, fault: Fault, place: int, at: int, lag: float) -> tuple[Told, float]:
        """Return an answer during which a stage fails `lag` seconds after token `at`, and the time
        of the fault."""
        now, made, when = trio.Event(), 0, 0.0

        def count() -> None:
            nonlocal made
            made += 1
            if made == at:
                now.set()

        for daemon in self.stages.values():
            if isinstance(daemon.engine, CountingEngine):
                daemon.engine.count = count
        told: list[Told] = []

        async def ask() -> None:
            told.append(await self.ask())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            if at == 0:
                await trio.sleep(0.02)  # the prompt is on its way
            else:
                await now.wait()
            await trio.sleep(lag)
            while not told and self.lag() > LAG:  # noqa: ASYNC110
                await trio.sleep(0.05)
            when = trio.current_time()
            victim = self.stage(place)
            await self.harm(fault, victim)
        await self.repair(fault, victim)
        return told[0], when

    def lag(self) -> int:
        """Return how many positions the standbys of the present chain lack at most, of those that
        get copies."""
        runs = [run for run, _ in self.asker.node.compute.gateway.runs.runs.values()]
        every = [(run, each) for run in runs for each in run.standbys.values() if each.fed]
        return max((run.computed - each.have for run, each in every), default=0)

    async def harm(self, fault: Fault, name: str) -> None:
        """Let a fault happen to a stage."""
        if fault == "power":
            await self.faults.crash(name)
        elif fault == "stopped":
            self.faults.sleep(name)
        elif fault == "crash":
            self.stages[name].engine.crash()
        else:
            self.stages[name].engine.hang()

    async def repair(self, fault: Fault, name: str) -> None:
        """End a fault, and wait until the stage serves again and all know it."""
        if fault == "power":
            self.stages[name] = await self.world.hosts[name].restart()
        elif fault == "stopped":
            self.faults.resume(name)
        for daemon in self.stages.values():
            await daemon.serving()
        for daemon in (*self.stages.values(), self.asker):
            await daemon.until(lambda status: status["peers"] == len(self.stages))
        directory = self.asker.node.directory
        while not all(  # noqa: ASYNC110
            directory.members()[each.peer].shards for each in self.stages.values()
        ):
            await trio.sleep(0.1)
        await trio.sleep(SETTLE_S)


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value that this part of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]

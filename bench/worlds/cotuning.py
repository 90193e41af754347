"""Inference and a tuning on the same workers: one real worker, and three simulated daemons.

Both have the same arrivals of requests with and without a tuning beside them. `Figures` has what a
run with some load has shown.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final

import numpy as np
import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.daemons.engine import SimulatedEngine
from shoal.netsim.daemons.profile import PROFILES, Profile
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.tasks.costs.rates import DeviceRates
from shoal.tasks.engine.adapters import AdapterTerms
from shoal.tasks.engine.families import architecture
from shoal.tasks.engine.interface import (
    DEFAULT_TERMS,
    EngineEvent,
    HiddenEvent,
    Parts,
    SessionId,
    SessionTerms,
    TokenEvent,
)
from shoal.tasks.engine.passes import OpenTuning, PassDone, PassOrder, pass_sizes, tensor_sizes
from shoal.tasks.engine.wire import Buffer
from shoal.tasks.inference.generation import GatewayEvent, GenerateRequest
from shoal.tasks.text.process import TextDelta

from . import engines, tuners

ANSWER: Final = 48  # tokens of an answer
PROMPT: Final = 32
RANK: Final = 8


@dataclass(slots=True)
class Figures:
    """What happened in some seconds: times between tokens, device time, and tuning."""

    seconds: float = 0.0
    gaps: list[float] = field(default_factory=list)  # seconds between two tokens of one answer
    inference_s: float = 0.0  # of the device, or of all devices together
    tuning_s: float = 0.0
    positions: int = 0  # of parts that were computed forward and backward

    def add(self, other: "Figures") -> None:
        """Add another run with the same load."""
        self.seconds += other.seconds
        self.gaps += other.gaps
        self.inference_s += other.inference_s
        self.tuning_s += other.tuning_s
        self.positions += other.positions

    def gap(self, part: float) -> float:
        """Return a quantile of the times between tokens."""
        return sorted(self.gaps)[int(part * len(self.gaps))]


def note(times: Sequence[float], into: Figures) -> None:
    """Record the times of the tokens of an answer."""
    into.gaps += [later - earlier for earlier, later in pairwise(times)]


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Return the times of requests that come at random, `rate` of them in a second."""
    random, now, found = Random(seed), 0.0, list[float]()
    while (now := now + random.expovariate(rate)) < seconds:
        found.append(now)
    return found


# A real worker.


class RealTuning:
    """Forward and backward passes over the whole model in one worker, two parts in progress."""

    def __init__(self, worker: engines.Worker, shape: str) -> None:
        self.worker = worker
        self.done = Figures()
        self._arch = architecture(engines.config(shape))
        parts = Parts(True, 0, self._arch.layers, True)
        terms = AdapterTerms(
            "ab" * 32, RANK, 2.0 * RANK, False, "F32", ("q_proj", "v_proj"),
            tuple(range(self._arch.layers)),
        )  # fmt: skip
        self._sizes = tensor_sizes(terms, self._arch, parts)
        self._parts, self._order = parts, OpenTuning(0, "trainer", False, terms)
        self._name = b"tuning".ljust(16, b".")

    async def open(self) -> None:
        """Open the tuning."""
        values = np.random.default_rng(1).standard_normal(sum(self._sizes), np.float32) * 0.01
        await self.worker.engine.open_tuning(self._name, self._order)
        await self.worker.engine.set_tensors(self._name, values.astype(np.float32).tobytes())

    async def run(self) -> None:
        """Compute parts until cancelled."""
        async with trio.open_nursery() as nursery:
            for part in range(2):
                nursery.start_soon(self._parts_of, part)

    async def _parts_of(self, part: int) -> None:
        wanted = b"\1" * len(self._sizes)
        ids = np.arange(64, dtype=np.int32) + 1
        while True:
            order = PassOrder(part, 1, 64, True, True, False, False, "bfloat16", wanted)
            sizes = pass_sizes(order, self._parts, self._arch.hidden, self._sizes)
            data = ids.tobytes() * 2
            assert len(data) == sizes.payload
            done = await self.worker.engine.tune(self._name, order, data)
            self.done.tuning_s += done.seconds
            self.done.positions += order.positions


async def real(
    worker: engines.Worker, shape: str, rate: float, seconds: float, tuning: RealTuning | None
) -> Figures:
    """Let requests arrive at a worker for some seconds, beside a tuning if there is one."""
    found = Figures(seconds=seconds)
    counting = _Counting(worker, found)

    async def talk(at: float, number: int) -> None:
        await trio.sleep_until(began + at)
        answer = await counting.start(engines.prompt(PROMPT, number, shape), ANSWER)
        await answer.done.wait()
        await worker.stop(answer)
        note(answer.times, found)

    async with trio.open_nursery() as nursery:
        if tuning is not None:
            tuning.done = Figures()
            nursery.start_soon(tuning.run)
        began = trio.current_time()
        async with trio.open_nursery() as talks:
            for number, at in enumerate(arrivals(rate, seconds, 7) if rate else ()):
                talks.start_soon(talk, at, number)
            await trio.sleep(seconds)
        found.seconds = trio.current_time() - began
        nursery.cancel_scope.cancel()
    if tuning is not None:
        found.tuning_s, found.positions = tuning.done.tuning_s, tuning.done.positions
    return found


class _Counting:
    """Starts answers, and counts the device's time for them."""

    def __init__(self, worker: engines.Worker, found: Figures) -> None:
        self._worker, self._found = worker, found

    async def start(self, tokens: Sequence[int], steps: int) -> engines.Answer:
        """Begin to generate."""
        return await self._worker.start(tokens, steps, count=self._count)

    def _count(self, event: TokenEvent) -> None:
        self._found.inference_s += event.seconds


# Three simulated daemons.

LAYERS: Final = ((0, 2), (2, 4), (4, 6))
LINK: Final = LinkSpec(PipeSpec(0.002, rate=125e6), PipeSpec(0.002, rate=125e6))
TUNINGS: Final = 3  # of as many trainers: a stage is to have a pass whenever requests leave it time
MACHINE: Final = Profile(
    "reader",
    PROFILES["desktop"].machine,
    DeviceRates(4e8, 2e9, 4e9),
    offered=2 << 30,
    step_s=1e-3,
)
"""Reads the weights of the embedded model in 50 ms, as a processor those of a model of 1 B."""


class CountingEngine(SimulatedEngine):
    """Simulated engine that counts the seconds of its device."""

    def __init__(self, host: Any, threads: int, memory_bytes: int) -> None:
        super().__init__(host, threads, memory_bytes, "numbers")
        self.seconds = {"inference": 0.0, "tuning": 0.0}

    async def open(
        self,
        session: SessionId,
        tokens: int,
        on_event: Callable[[EngineEvent], None],
        terms: SessionTerms = DEFAULT_TERMS,
    ) -> int:
        def counted(event: EngineEvent) -> None:
            if isinstance(event, TokenEvent | HiddenEvent):
                self.seconds["inference"] += event.seconds
            on_event(event)

        return await super().open(session, tokens, counted, terms)

    async def tune(self, tuning: SessionId, order: PassOrder, data: Buffer) -> PassDone:
        done = await super().tune(tuning, order, data)
        self.seconds["tuning"] += done.seconds
        return done


class Swarm:
    """Three daemons with two layers each, a gateway, and a trainer."""

    def __init__(self, stages: Sequence[CountingEngine], *others: DaemonHandle) -> None:
        self._stages, (self._gateway, self._trainer) = stages, others
        self._gateway.node.compute.gateway.drafting.on = False  # one token at a time

    def _spent(self, what: str) -> float:
        return sum(each.seconds[what] for each in self._stages)

    async def run(self, rate: float, seconds: float, *, tune: bool) -> Figures:
        """Let requests arrive for some seconds, beside a tuning if `tune`."""
        found = Figures()
        tuning = self._trainer.node.compute.tuning
        chains = [tuning.chain(tuners.ROOT, tuners.ARCH) for _ in range(TUNINGS if tune else 0)]
        async with trio.open_nursery() as nursery:
            for chain in chains:
                nursery.start_soon(self._tune, chain, found)
            await trio.sleep(5)  # the tunings have begun
            found.positions = 0
            before = self._spent("inference"), self._spent("tuning")
            began = trio.current_time()
            async with trio.open_nursery() as talks:
                for number, at in enumerate(arrivals(rate, seconds, 7) if rate else ()):
                    talks.start_soon(self._talk, began + at, number, found)
                await trio.sleep(seconds)
            found.seconds = trio.current_time() - began
            found.inference_s = self._spent("inference") - before[0]
            found.tuning_s = self._spent("tuning") - before[1]
            nursery.cancel_scope.cancel()
        for chain in chains:
            await chain.aclose()
        return found

    async def _tune(self, chain: Any, found: Figures) -> None:
        adapter, batch = tuners.adapter(RANK), tuners.batch(4, 64)
        while True:
            await chain.gradients(batch, adapter)
            found.positions += batch.tokens.size

    async def _talk(self, at: float, number: int, found: Figures) -> None:
        await trio.sleep_until(at)
        times = list[float]()

        async def emit(event: GatewayEvent) -> None:
            await trio.lowlevel.checkpoint()
            if isinstance(event, TextDelta):
                times.extend(trio.current_time() for _ in event.tokens)

        words = hashlib.sha256(str(number).encode()).hexdigest()[:16]
        request = GenerateRequest("tiny", words, raw=True, max_tokens=ANSWER, logprobs=True)
        await self._gateway.node.compute.gateway.generate(request, emit)
        note(times, found)


@asynccontextmanager
async def swarm(world: World) -> AsyncIterator[Swarm]:
    """Start the daemons."""
    stages, engines_ = list[DaemonHandle](), list[CountingEngine]()

    def engine(host: Any, threads: int, memory: int) -> CountingEngine:
        engines_.append(CountingEngine(host, threads, memory))
        return engines_[-1]

    for number, layers in enumerate(LAYERS):
        program = Daemon(
            bootstrap=stages[:1], layers=layers, model="tiny", profile=MACHINE, engine=engine
        )
        stages.append(await world.host(f"stage{number}", link=LINK).start(program))
        await stages[-1].serving()
    others = []
    for name in ("gateway", "trainer"):
        program = Daemon(bootstrap=stages[:1], engine=False, profile=MACHINE)
        others.append(await world.host(name, link=LINK).start(program))
    for each in (*stages, *others):
        await each.until(lambda status: status["peers"] == len(LAYERS) + 1)
    await trio.sleep(10)
    yield Swarm(engines_, *others)

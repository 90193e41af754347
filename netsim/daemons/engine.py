"""The engine of a simulated daemon: the daemon's own code, with a worker in this process.

`EngineProcess` starts, calls and restarts its worker as usual. The worker is the real engine core,
with the same frames, on a simulated machine. It computes on numbers (`compute.py`) or with torch on
the real weights, and takes the time of its profile either way.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import msgpack
import trio

from ...tasks.engine.core import Compute, Core
from ...tasks.engine.defaults import HEADER_BYTES
from ...tasks.engine.families import Architecture
from ...tasks.engine.interface import LoadShard
from ...tasks.engine.process import EngineProcess
from ...tasks.engine.wire import Buffer, Header, WireClosed
from ...transport.decoding import decode
from ...transport.host.seam import Host
from .compute import NumberCompute, Stopwatch, Timed, read_chunks
from .realfiles import beside

if TYPE_CHECKING:
    from .host import SimulatedHost

Tokens = Literal["numbers", "model"]
Frame = tuple[Header, memoryview]
_KILLED = -9


def _copied(header: Header, payload: Buffer) -> Frame:
    """Return a frame as it arrives at the other end."""
    return decode(msgpack.packb(header), limit=HEADER_BYTES, tuples=True), memoryview(
        bytearray(payload)
    )


class SimulatedCore(Core):
    """Engine core of a worker on a simulated machine."""

    def __init__(
        self,
        emit: Callable[[Header, Buffer], None],
        host: "SimulatedHost",
        watch: Stopwatch,
        memory_bytes: int,
    ) -> None:
        super().__init__(emit, memory_bytes=memory_bytes)
        self._host = host
        self._watch = watch

    def compute(self, arch: Architecture, shard: LoadShard) -> Compute:
        """Load the weights, and add the time that reading them takes."""
        compute = self.weights(arch, shard)
        self._watch.spent += self._host.disk_seconds()
        return Timed(compute, self._host.profile, self._watch)

    def weights(self, arch: Architecture, shard: LoadShard) -> Compute:
        """Return the weights read from the disk and checked."""
        return NumberCompute(arch, shard, self._host.files)

    def clock(self) -> float:
        return self._host.now() + self._watch.spent

    def available_bytes(self) -> int:
        return self._host.machine().memory_available

    def resident_bytes(self) -> int:
        return self._weight_bytes + self._budget.reserved


class TorchCore(SimulatedCore):
    """Simulated core with the real weights: a simulated swarm generates the same text as a real
    one.
    """

    def weights(self, arch: Architecture, shard: LoadShard) -> Compute:
        from ...tasks.engine.compute import TorchCompute

        chunks = read_chunks(arch, shard, self._host.files)
        with beside(chunks) as real:
            return TorchCompute(arch, _at(shard, real))

    def handle(self, header: Header, payload: memoryview) -> None:
        from ...tasks.engine.compute import computing

        with computing():
            super().handle(header, payload)

    def step(self) -> None:
        from ...tasks.engine.compute import computing

        with computing():
            super().step()


def _at(shard: LoadShard, real: Mapping[str, str]) -> LoadShard:
    """Return the shard with the paths of its chunks replaced by real ones."""
    tensors = [
        replace(tensor, chunks=tuple(real[path] for path in tensor.chunks))
        for tensor in shard.tensors
    ]
    return replace(shard, tensors=tuple(tensors))


class SimulatedWorker:
    """One run of a worker, and the daemon's connection to it."""

    def __init__(self, host: "SimulatedHost", memory_bytes: int, tokens: Tokens) -> None:
        self.pid = host.next_pid()
        self._watch = Stopwatch()
        kind = TorchCore if tokens == "model" else SimulatedCore
        self._core = kind(self._emit, host, self._watch, memory_bytes)
        self._queued: list[Frame] = []  # frames from the daemon that are not flushed yet
        self._inbox: deque[Frame] = deque()
        self._made: list[Frame] = []  # frames that the current step has made
        self._outbox: list[Frame] = [_copied(("ready", 1, "simulated"), b"")]
        self._status: int | None = None
        self._ended = trio.Event()
        self._to_worker = trio.Event()
        self._to_daemon = trio.Event()

    # The daemon's end.

    def put(self, header: Header, payload: Buffer = b"") -> None:
        self._queued.append(_copied(header, payload))

    def flush(self) -> bool:
        if self._status is not None:
            raise WireClosed("the worker has ended")
        self._inbox.extend(self._queued)
        self._queued.clear()
        self._to_worker.set()
        return True

    def receive(self) -> list[Frame]:
        if self._outbox:
            frames, self._outbox = self._outbox, []
            return frames
        if self._status is not None:
            raise WireClosed("the worker has ended")
        return []

    async def wait_readable(self) -> None:
        while not self._outbox and self._status is None:
            self._to_daemon = trio.Event()
            await self._to_daemon.wait()
        await trio.lowlevel.checkpoint()

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close the connection to the worker, which ends the worker."""
        self.end(0)

    # The worker's run.

    async def wait(self) -> int:
        await self._ended.wait()
        assert self._status is not None
        return self._status

    async def stop(self, grace: float) -> None:
        self.end(_KILLED)
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    def end(self, status: int) -> None:
        """End the worker now; frames that it has not sent are lost."""
        if self._status is None:
            self._status = status
            self._made.clear()
            self._to_worker.set()
            self._to_daemon.set()
            self._ended.set()

    async def run(self) -> None:
        """Take frames and compute, one step at a time."""
        while self._status is None:
            if not self._inbox and not self._core.busy:
                self._to_worker = trio.Event()
                await self._to_worker.wait()
                continue
            while self._inbox:
                self._core.handle(*self._inbox.popleft())
            if self._core.busy:
                self._core.step()
            spent = self._watch.take()
            if spent > 0:
                await self._pass(spent)
            else:
                await trio.lowlevel.checkpoint()
            self._deliver()

    async def _pass(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._ended.wait()

    def _emit(self, header: Header, payload: Buffer) -> None:
        self._made.append(_copied(header, payload))

    def _deliver(self) -> None:
        if self._made and self._status is None:
            self._outbox += self._made
            self._made = []
            self._to_daemon.set()


class SimulatedEngine(EngineProcess):
    """Engine of a daemon; `crash` kills its worker."""

    def __init__(
        self,
        host: "SimulatedHost",
        threads: int,
        memory_bytes: int,
        tokens: Tokens,
    ) -> None:
        super().__init__(host, threads=threads, memory_bytes=memory_bytes, connect=self._begin)
        self._simulated = host
        self._memory_bytes = memory_bytes
        self._tokens: Tokens = tokens
        self._worker: SimulatedWorker | None = None

    def crash(self) -> None:
        """Kill the worker process now; the engine starts another one, as in a real daemon."""
        if self._worker is not None:
            self._worker.end(_KILLED)

    async def _begin(
        self, host: Host, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[SimulatedWorker, SimulatedWorker]:
        worker = SimulatedWorker(self._simulated, self._memory_bytes, self._tokens)
        self._simulated.start_soon(worker.run)
        self._worker = worker
        await trio.lowlevel.checkpoint()
        return worker, worker

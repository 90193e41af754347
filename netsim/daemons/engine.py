"""Engine of a simulated daemon: the daemon's own code, with a worker in the same process.

`EngineProcess` starts, calls and restarts its worker as in a real daemon. The worker runs the real
core of the engine, and exchanges the same frames, but on a simulated machine. It computes on
numbers (`compute.py`), or with torch on the real weights. In both cases, it takes the virtual time
that the machine's profile implies.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import msgpack
import msgspec
import trio

from ...tasks.engine.adapters import LoadAdapter
from ...tasks.engine.core import Core
from ...tasks.engine.defaults import HEADER_BYTES
from ...tasks.engine.families import Architecture
from ...tasks.engine.interface import LoadShard
from ...tasks.engine.process import EngineProcess
from ...tasks.engine.shard import Compute
from ...tasks.engine.spans.answers import FrameOutput
from ...tasks.engine.wire import Buffer, Header, Payload, WireClosed
from ...transport.decoding import decode
from ...transport.host.seam import Host
from .compute import NumberCompute, Stopwatch, Timed, read_chunk, read_chunks
from .realfiles import beside

if TYPE_CHECKING:
    from .host import SimulatedHost

Tokens = Literal["numbers", "model"]
Frame = tuple[Header, memoryview]
_KILLED = -9  # exit status of a process that was ended by SIGKILL


def _copied(header: Header, payload: Buffer) -> Frame:
    """Encode and decode a frame, so that the receiver gets a copy of it."""
    return decode(msgpack.packb(header), limit=HEADER_BYTES, tuples=True), memoryview(
        bytearray(payload)
    )


class SimulatedCore(Core):
    """Core of the engine in a worker on a simulated machine."""

    def __init__(
        self,
        emit: Callable[[Header, Buffer], None],
        host: "SimulatedHost",
        watch: Stopwatch,
        memory_bytes: int,
    ) -> None:
        self._host = host  # first, because the core asks the clock
        self._watch = watch
        super().__init__(FrameOutput(emit), memory_bytes=memory_bytes)

    def compute(self, arch: Architecture, shard: LoadShard) -> Compute:
        """Load the weights of a shard, and count the time that reading them takes."""
        compute = self.weights(arch, shard)
        self._watch.spent += self._host.disk_seconds()
        return Timed(compute, self._host.profile, self._watch)

    def weights(self, arch: Architecture, shard: LoadShard) -> Compute:
        """Read the weights of a shard from the disk, and check them."""
        return NumberCompute(arch, shard, self._host.files)

    def clock(self) -> float:
        """Return the virtual time in seconds, including the time counted since the step began."""
        return self._host.now() + self._watch.spent

    def available_bytes(self) -> int:
        """Return the available memory of the simulated machine."""
        return self._host.machine().memory_available

    def host_available_bytes(self) -> int:
        return self.available_bytes()

    def resident_bytes(self) -> int:
        """Return the memory that a real worker would use for weights and KV."""
        return self.used_bytes


class TorchCore(SimulatedCore):
    """Simulated core that computes with torch on the real weights.

    A simulated swarm with this core generates the same text as a real swarm.
    """

    def weights(self, arch: Architecture, shard: LoadShard) -> Compute:
        from ...tasks.engine.compute.torchcompute import TorchCompute

        chunks = read_chunks(arch, shard, self._host.files)
        with beside(chunks) as real:
            return TorchCompute(arch, _at(shard, real))

    def adapter(self, compute: Compute, adapter: LoadAdapter) -> Any:
        pairs = zip(adapter.chunks, adapter.digests, strict=True)
        chunks = {path: read_chunk(path, digest, self._host.files) for path, digest in pairs}
        with beside(chunks) as real:
            paths = tuple(real[path] for path in adapter.chunks)
            return compute.adapt(msgspec.structs.replace(adapter, chunks=paths))

    def handle(self, header: Header, payload: memoryview) -> None:
        from ...tasks.engine.compute.torchcompute import computing

        with computing():
            super().handle(header, payload)

    def step(self) -> None:
        from ...tasks.engine.compute.torchcompute import computing

        with computing():
            super().step()


def _at(shard: LoadShard, real: Mapping[str, str]) -> LoadShard:
    """Return the shard with the paths of its chunks replaced by the paths of real files."""
    tensors = [
        replace(tensor, chunks=tuple(real[path] for path in tensor.chunks))
        for tensor in shard.tensors
    ]
    return replace(shard, tensors=tuple(tensors))


class SimulatedWorker:
    """One run of a worker, and the daemon's connection to the worker."""

    def __init__(self, host: "SimulatedHost", memory_bytes: int, tokens: Tokens) -> None:
        self.pid = host.next_pid()
        self._watch = Stopwatch()
        kind = TorchCore if tokens == "model" else SimulatedCore
        self._core = kind(self._emit, host, self._watch, memory_bytes)
        self._queued: list[Frame] = []  # frames from the daemon that it has not flushed yet
        self._inbox: deque[Frame] = deque()
        self._made: list[Frame] = []  # frames of the current step, sent when the step ends
        self._outbox: list[Frame] = [_copied(("ready", 1, "simulated"), b"")]
        self._status: int | None = None
        self._paused = False
        self._ended = trio.Event()
        self._to_worker = trio.Event()
        self._to_daemon = trio.Event()

    # The daemon's end.

    def put(self, header: Header, payload: Buffer = b"") -> None:
        """Queue a frame to the worker."""
        self._queued.append(_copied(header, payload))

    def flush(self) -> bool:
        """Send the queued frames. Return True, because none is left.

        Raises WireClosed if the worker has ended.
        """
        if self._status is not None:
            raise WireClosed("the worker has ended")
        self._inbox.extend(self._queued)
        self._queued.clear()
        self._to_worker.set()
        return True

    def receive(self) -> list[Frame]:
        """Return the frames that have arrived from the worker.

        Raises WireClosed if the worker has ended.
        """
        if self._outbox:
            frames, self._outbox = self._outbox, []
            return frames
        if self._status is not None:
            raise WireClosed("the worker has ended")
        return []

    def arrived(self, most: int) -> list[tuple[Header, Payload]]:
        """Do the same. No payload is in shared memory."""
        return list(self.receive())

    async def wait_readable(self) -> None:
        """Wait until frames have arrived or the worker has ended."""
        while not self._outbox and self._status is None:
            self._to_daemon = trio.Event()
            await self._to_daemon.wait()
        await trio.lowlevel.checkpoint()

    async def wait_writable(self) -> None:
        """Return at once, because sending never blocks."""
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close the connection, which ends the worker."""
        self.end(0)

    # The worker's run.

    async def wait(self) -> int:
        """Wait until the worker has ended. Return its exit status."""
        await self._ended.wait()
        assert self._status is not None
        return self._status

    async def stop(self, grace: float) -> None:
        """Kill the worker, and wait until it has ended."""
        self.end(_KILLED)
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    def is_stopped(self) -> bool:
        """Return whether `pause` has been called."""
        return self._paused

    def pause(self) -> None:
        """Compute and answer nothing any more, as after SIGSTOP, until the worker is ended."""
        self._paused = True

    def end(self, status: int) -> None:
        """End the worker now. Frames that it has not sent are lost."""
        if self._status is None:
            self._status = status
            self._made.clear()
            self._to_worker.set()
            self._to_daemon.set()
            self._ended.set()

    async def run(self) -> None:
        """Process frames and compute, one step at a time, until the worker is ended."""
        while self._status is None:
            if self._paused:
                await self._ended.wait()
                return
            if not self._inbox and (wait := self._core.wait) != 0:
                self._to_worker = trio.Event()
                with trio.move_on_after(math.inf if wait is None else wait):
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
        """Wait for `seconds` of virtual time, or until the worker is ended."""
        with trio.move_on_after(seconds):
            await self._ended.wait()

    def _emit(self, header: Header, payload: Buffer) -> None:
        """Queue a frame to the daemon until the current step ends."""
        self._made.append(_copied(header, payload))

    def _deliver(self) -> None:
        """Send the queued frames to the daemon."""
        if self._made and self._status is None and not self._paused:
            self._outbox += self._made
            self._made = []
            self._to_daemon.set()


class SimulatedEngine(EngineProcess):
    """Engine of a simulated daemon. Its worker can be killed with `crash`."""

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
        """Kill the worker process now. The engine starts another one, as in a real daemon."""
        if self._worker is not None:
            self._worker.end(_KILLED)

    def hang(self) -> None:
        """Stop the worker process as SIGSTOP does. It neither computes nor answers."""
        if self._worker is not None:
            self._worker.pause()

    async def _begin(
        self, host: Host, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[SimulatedWorker, SimulatedWorker]:
        """Start a worker. Return it twice: as the child process and as the connection to it."""
        worker = SimulatedWorker(self._simulated, self._memory_bytes, self._tokens)
        self._simulated.start_soon(worker.run)
        self._worker = worker
        await trio.lowlevel.checkpoint()
        return worker, worker

"""Serving part of tuning: checks what trainers send, and has the engine compute it.

A trainer of this node calls the same methods without a stream. Spec: docs/spec/tuning.md.
"""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from trio import TaskStatus

from ....transport.errors import CallRefused, LinkClosed
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ....transport.link.calls import Call, Refusal, Reply
from ....transport.link.link import Link
from ....transport.link.serving import IncomingStream
from ....transport.link.stream import Stream
from ...engine.errors import EngineError
from ...engine.passes import OpenTuning, PassDone, TuningEngine, pass_sizes
from ...engine.wire import Buffer
from ...errors import BadMessage, SessionError
from ...inference.courier import Courier
from ...inference.serving.stagesession import ServedShard
from ...usage.metering import UsageMeter, Use
from ...usage.paying import Payers
from ..defaults import BUSY_S, READ_S, RECEIVE_BYTES, TUNING_IDLE, WRITE_S
from ..messages import RunPass, Said, SetTensors, TuneClose, TuneOpen, frame, refused
from .opened import OpenedTuning, OpenedTunings

FindShard = Callable[[TuneOpen], ServedShard]
"""Returns the shard that a message asks for. Raises SessionError `no-shard`."""
_GONE = ("unknown-session", "shard-replaced", "worker-crashed", "engine-unavailable")
"""Codes of an engine that has lost a tuning."""


class TuningStage:
    """Tunings of this node's shards. Without an engine, every one is refused."""

    def __init__(
        self,
        host: Host,
        courier: Courier,
        engine: TuningEngine | None,
        find_shard: FindShard,
        meter: UsageMeter,
        payers: Payers,
    ) -> None:
        self._host = host
        self._courier = courier
        self._engine_or_none = engine
        self._find_shard = find_shard
        self._meter = meter
        self._payers = payers
        self.table = OpenedTunings(courier.peer, courier.network)
        """The open tunings of all trainers."""
        self._used: dict[bytes, ServedShard] = {}  # by the engine's name of a tuning
        self._leaving = False
        self._to_close, self._closing = trio.open_memory_channel[bytes](1024)
        courier.on_link_lost(self._link_lost)
        courier.handle("tune.open", self._on_open)
        courier.handle("tune.close", self._on_close)
        courier.handle_stream("tune.set", self._on_set)
        courier.handle_stream("tune.pass", self._on_pass)

    @property
    def tunings(self) -> int:
        """Number of open tunings."""
        return len(self.table)

    @property
    def passes(self) -> int:
        """Number of passes that are read, computed or answered. They end within minutes, while a
        tuning may stay open for days."""
        return sum(tuning.passes for tuning in self.table)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Close tunings in the engine, and end idle ones, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._close_all)
            task_status.started()
            while True:
                await trio.sleep(TUNING_IDLE / 10)
                for tuning in self.table:
                    if tuning.heard < self._host.now() - TUNING_IDLE and not tuning.passes:
                        self._end(tuning, "idle")

    def leave(self) -> None:
        """Begin no more passes, because the node ends. Trainers then use other stages."""
        self._leaving = True

    async def _close_all(self) -> None:
        async for name in self._closing:
            await self._engine.close_tuning(name)

    @property
    def _engine(self) -> TuningEngine:
        assert self._engine_or_none is not None  # without an engine, no tuning opens
        return self._engine_or_none

    # Requests of a trainer. All methods raise SessionError or EngineError.

    async def open(self, trainer: PeerId, message: TuneOpen) -> None:
        """Open a tuning. Raises SessionError or EngineError if this stage cannot take it."""
        self._find_shard(message)
        payer, use = trainer, Use(trainer, message.root, message.job)
        if not message.reads:  # else it is short, and charged as a session is
            payer = await self._payers.soon(use)
            if payer == trainer:  # later claims on the job must not make its author pay after all
                use = use._replace(job="")
        served = self._find_shard(message)  # others may have been loaded meanwhile
        arch = served.shard.arch
        if self._engine_or_none is None or arch is None:
            raise SessionError("no-shard", "this stage has no engine")
        name = self._host.entropy(16)  # two trainers may choose the same name
        with self.table.opening(trainer, message.tuning, payer):
            order = OpenTuning(served.number, payer, payer == self._courier.peer, message.terms)
            parts = served.shard.parts
            tuning = OpenedTuning(message, trainer, parts, arch, name, use, self._host.now(), payer)
            self._used[name] = served
            served.tunings += 1
            try:
                await self._engine.open_tuning(name, order)
            except BaseException:  # the engine may have opened it all the same
                self._release(name)
                with trio.CancelScope(shield=True):
                    await self._engine.close_tuning(name)
                raise
            self.table.add(tuning)
        self._meter.opened(use)

    def close(self, trainer: PeerId, message: TuneClose) -> None:
        """Close a tuning. Unknown ones are ignored."""
        for tuning in self.table:
            if tuning.name == (trainer, message.tuning):
                self._end(tuning, "cancelled")

    def has(self, trainer: PeerId, message: SetTensors) -> OpenedTuning | None:
        """Return the tuning if its tensors must be sent, or None if the engine has them."""
        tuning = self.table.find(trainer, message.tuning, self._host.now())
        return None if tuning.digest == message.digest else tuning

    async def set(self, tuning: OpenedTuning, digest: bytes, data: Buffer) -> None:
        """Replace the tensors of a tuning. Raises SessionError `bad-adapter` if they have another
        SHA-256."""
        if tuning.setting or tuning.passes:
            raise SessionError("busy", "passes with the tensors so far are in progress")
        tuning.setting = True
        try:
            found = await self._host.offload(hashlib.sha256, data)
            if found.digest() != digest:
                raise SessionError("bad-adapter", "the tensors do not have their hash")
            async with self._engine_errors(tuning):
                await self._engine.set_tensors(tuning.engine_id, data)
            tuning.digest = digest
        finally:
            tuning.setting = False

    def expect(self, trainer: PeerId, message: RunPass) -> tuple[OpenedTuning, int, int]:
        """Check the order of a pass. Return its tuning, and the sizes of payload and answer in
        bytes.

        Raises SessionError if there is no such tuning or its tensors are others, and BadMessage if
        the order is invalid.
        """
        tuning = self.table.find(trainer, message.tuning, self._host.now())
        if self._leaving:
            raise SessionError("no-shard", "this node is stopping")
        if tuning.setting or tuning.digest != message.digest:
            raise SessionError("stale", "the stage has other tensors")
        if message.order.length > tuning.arch.context:
            raise SessionError("too-long", f"the context is {tuning.arch.context}")
        if tuning.order.reads and message.order.back:
            raise SessionError("bad-request", "the tuning was opened to read texts")
        try:
            sizes = pass_sizes(message.order, tuning.parts, tuning.arch.hidden, tuning.sizes)
        except ValueError as error:
            raise BadMessage(str(error)) from None
        return tuning, sizes.payload, sizes.answer

    async def compute(self, tuning: OpenedTuning, message: RunPass, data: Buffer) -> PassDone:
        """Have a pass computed."""
        order = message.order
        async with self._engine_errors(tuning):
            done = await self._engine.tune(tuning.engine_id, order, data)
        tuning.heard = self._host.now()
        self._meter.read(tuning.use, order.positions)
        self._meter.made(tuning.use, tokens=0, seconds=done.seconds)
        return done

    @asynccontextmanager
    async def _engine_errors(self, tuning: OpenedTuning) -> AsyncIterator[None]:
        """End a tuning that the engine has lost."""
        try:
            yield
        except EngineError as error:
            if error.code in _GONE:
                self._end(tuning, error.code)
            raise

    def _end(self, tuning: OpenedTuning, code: str) -> None:
        if self.table.remove(tuning, code):
            self._release(tuning.engine_id)
            self._to_close.send_nowait(tuning.engine_id)

    def _release(self, name: bytes) -> None:
        """Record that a tuning no longer uses its shard."""
        served = self._used.pop(name)
        served.tunings -= 1
        served.used = self._host.now()

    def _link_lost(self, link: Link, code: str) -> None:
        """Close the tunings of a lost trainer."""
        for tuning in self.table:
            if tuning.trainer == link.peer:
                self._end(tuning, "unreachable")

    # Calls and streams.

    async def _on_open(self, call: Call) -> Reply | Refusal:
        try:
            await self.open(call.peer, TuneOpen.parse(call.header))
        except (SessionError, EngineError) as error:
            return Refusal(error.code, error.message)
        return Reply()

    def _on_close(self, call: Call) -> Reply | Refusal:
        try:
            self.close(call.peer, TuneClose.parse(call.header))
        except SessionError as error:
            return Refusal(error.code, error.message)
        return Reply()

    async def _on_set(self, incoming: IncomingStream) -> None:
        stream = incoming.stream
        async with _refusing(stream):
            message = SetTensors.parse(incoming.header)
            tuning = self.has(incoming.peer, message)
            if tuning is not None:
                with self.table.memory(incoming.peer, tuning.tensor_bytes):
                    with trio.fail_after(READ_S):  # a trainer may grant no byte
                        await stream.send(frame(Said("send")))
                    data = await read_exactly(stream, tuning.tensor_bytes)
                    await self.set(tuning, message.digest, data)
            await stream.send(frame(Said("done")))
        await _ended(stream)

    async def _on_pass(self, incoming: IncomingStream) -> None:
        stream = incoming.stream
        async with _refusing(stream):
            message = RunPass.parse(incoming.header)
            tuning, size, answer = self.expect(incoming.peer, message)
            with tuning.in_pass(), self.table.memory(incoming.peer, size + answer):
                data = await read_exactly(stream, size)
                done = await self._computed(stream, tuning, message, data)
                del data
                said = Said(
                    "done", "", "", len(done.data), done.loss, done.counted, done.seconds,
                    done.predicted,
                )  # fmt: skip
                with trio.fail_after(WRITE_S):
                    await stream.send(frame(said))
                    await send_all(stream, done.data)
        await _ended(stream)

    async def _computed(
        self, stream: Stream, tuning: OpenedTuning, message: RunPass, data: Buffer
    ) -> PassDone:
        """Have a pass computed, and send signs of life meanwhile."""
        found: list[PassDone] = []
        errors: list[SessionError | EngineError] = []

        async def compute() -> None:
            try:
                found.append(await self.compute(tuning, message, data))
            except (SessionError, EngineError) as error:
                errors.append(error)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(compute)
            while True:
                await trio.sleep(BUSY_S)
                await stream.send(frame(Said("busy")))
        if errors:
            raise errors[0]
        return found[0]


@asynccontextmanager
async def _refusing(stream: Stream) -> AsyncIterator[None]:
    """Send errors of the block as a refusal."""
    said = None
    try:
        yield
    except (SessionError, EngineError) as error:
        said = refused(error.code, error.message)
    except trio.TooSlowError:
        said = refused("timeout", "the trainer was too slow")
    if said is not None:
        await stream.send(frame(said))


async def _ended(stream: Stream) -> None:
    """End this side of a stream, and wait until the trainer has taken everything."""
    await stream.finish()
    with trio.move_on_after(WRITE_S):
        try:
            while await stream.receive(RECEIVE_BYTES):
                pass  # what a refused trainer still sends is dropped
        except (CallRefused, LinkClosed):
            return


async def read_exactly(stream: Stream, size: int, seconds: float = READ_S) -> bytearray:
    """Read `size` bytes from a stream.

    Raises BadMessage if it ends before, and trio.TooSlowError after `seconds` seconds.
    """
    data = bytearray()  # grows with what arrives, because an announced size costs a peer nothing
    with trio.fail_after(seconds):
        while len(data) < size:
            piece = await stream.receive(min(RECEIVE_BYTES, size - len(data)))
            if not piece:
                raise BadMessage(f"the stream ended after {len(data)} of {size} bytes")
            data += piece
    return data


async def send_all(stream: Stream, data: Buffer) -> None:
    """Send bytes in pieces, so that other tasks run meanwhile."""
    view = memoryview(data).cast("B")
    for at in range(0, len(view), RECEIVE_BYTES):
        await stream.send(bytes(view[at : at + RECEIVE_BYTES]))

"""Asks stages to compute training passes: those of other nodes over streams, and this node's own
directly."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import trio

from ....transport.errors import CallRefused, LinkClosed
from ....transport.identity import PeerId
from ....transport.lane.frame import Priority
from ....transport.link.stream import Stream
from ...engine.errors import EngineError
from ...engine.passes import PassDone
from ...engine.wire import Buffer
from ...errors import SessionError
from ...inference.courier import Courier
from ..defaults import LOOK_S, OPEN_S, PASS_S, READ_S, SILENT_S
from ..messages import (
    FRAME_HEAD,
    RunPass,
    Said,
    SetTensors,
    TuneClose,
    TuneOpen,
    frame_size,
    parse_frame,
    refusal_error,
)
from ..stage.stage import TuningStage, read_exactly, send_all

T = TypeVar("T")


class StageFailed(Exception):
    """Error: a stage refused, is lost, or does not answer. Another chain may compute the pass."""

    def __init__(self, peer: PeerId, error: SessionError) -> None:
        super().__init__(error.message)
        self.peer = peer
        self.error = error


class StageCalls:
    """Requests of the chains of one node to stages. All methods raise StageFailed."""

    def __init__(self, courier: Courier, own: TuningStage) -> None:
        """`own` is this node's stage."""
        self._courier = courier
        self._own = own

    async def open(self, peer: PeerId, message: TuneOpen) -> None:
        """Open a tuning."""
        async with self._failures(peer):
            if peer == self._courier.peer:
                await self._own.open(peer, message)
                return
            await self._courier.meet(peer)
            await self._courier.call(peer, "tune.open", message.header(), timeout=OPEN_S)

    def close(self, peer: PeerId, tuning: bytes) -> None:
        """Let a stage forget a tuning, without waiting for it."""
        if not self._courier.reaches(peer):
            return
        try:
            self._courier.post(
                peer, "tune.close", TuneClose(tuning).header(), priority=Priority.CONTROL
            )
        except (CallRefused, LinkClosed):
            return

    async def set(self, peer: PeerId, message: SetTensors, data: Buffer) -> None:
        """Give a stage the tensors of a tuning, unless it has them."""
        async with self._failures(peer):
            if peer == self._courier.peer:
                lacking = self._own.has(peer, message)
                if lacking is not None:
                    await self._own.set(lacking, message.digest, data)
                return
            stream = await self._open_stream(peer, "tune.set", message.header())
            await self._watched(peer, stream, partial(_set, stream, data))

    async def run(self, peer: PeerId, message: RunPass, data: Buffer, size: int) -> PassDone:
        """Have a pass computed, whose answer has `size` bytes."""
        async with self._failures(peer):
            if peer == self._courier.peer:
                tuning, expected, _ = self._own.expect(peer, message)
                assert len(data) == expected  # this node's own chain has made both
                with tuning.in_pass():
                    return await self._own.compute(tuning, message, data)
            stream = await self._open_stream(peer, "tune.pass", message.header())
            return await self._watched(peer, stream, partial(_run, stream, data, size))

    async def _open_stream(self, peer: PeerId, method: str, header: Mapping[str, object]) -> Stream:
        return await self._courier.open_stream(peer, method, header, Priority.BULK)

    async def _watched(self, peer: PeerId, stream: Stream, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work with a stream, and end the stream.

        Raises the errors of the work, and LinkClosed as soon as the peer's link is quiet.
        """
        done: list[T] = []
        error: Exception = LinkClosed("unreachable", f"{peer} is quiet")

        async def watch() -> None:
            while not self._courier.is_quiet(peer):  # noqa: ASYNC110 - links are only asked
                await trio.sleep(LOOK_S)
            nursery.cancel_scope.cancel()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                try:
                    done.append(await work())
                except _ERRORS as raised:
                    error = raised
                nursery.cancel_scope.cancel()
        finally:
            stream.reset("closed")
        if done:
            return done[0]
        raise error

    @asynccontextmanager
    async def _failures(self, peer: PeerId) -> AsyncIterator[None]:
        """Turn the errors of a stage into StageFailed."""
        try:
            yield
        except LinkClosed as error:
            raise StageFailed(peer, SessionError("unreachable", error.message)) from None
        except (SessionError, EngineError, CallRefused) as error:
            raise StageFailed(peer, refusal_error(error.code, error.message)) from None
        except trio.TooSlowError:
            raise StageFailed(peer, SessionError("timeout", "the stage does not answer")) from None


_ERRORS = (SessionError, EngineError, CallRefused, LinkClosed, trio.TooSlowError)


async def _set(stream: Stream, data: Buffer) -> None:
    """Send tensors, if the stage wants them."""
    with trio.fail_after(PASS_S):  # signs of life alone do not keep a trainer waiting
        said = await _said(stream)
        if said.kind == "send":
            with trio.fail_after(READ_S):
                await send_all(stream, data)
                await stream.finish()
            said = await _said(stream)
    if said.kind != "done":
        raise SessionError("bad-message", f"the stage said `{said.kind}`")


async def _run(stream: Stream, data: Buffer, size: int) -> PassDone:
    """Send the input of a pass, and return its result of `size` bytes."""
    with trio.fail_after(READ_S):
        await send_all(stream, data)
        await stream.finish()
    with trio.fail_after(PASS_S):
        said = await _said(stream)
    if said.kind != "done" or said.size != size:
        raise SessionError("bad-result", f"expected {size} bytes, got {said.size}")
    found = await read_exactly(stream, size)
    return PassDone(said.loss, said.counted, said.seconds, said.predicted, found)


async def _said(stream: Stream) -> Said:
    """Return the next frame that is no mere sign of life.

    Raises SessionError if it is a refusal, and trio.TooSlowError after SILENT_S without any.
    """
    while True:
        size = frame_size(bytes(await read_exactly(stream, FRAME_HEAD, SILENT_S)))
        said = parse_frame(bytes(await read_exactly(stream, size, SILENT_S)))
        if said.kind == "refused":
            raise refusal_error(said.code, said.message)
        if said.kind != "busy":
            return said

"""Copies of a session's KV from a stage to its standby, part by part.

A standby has a session open that computes nothing. Its stage sends it the KV of all positions that
are certain, when the gateway says so, and never so fast that an answer waits for it. When the stage
is lost, the standby takes its place (`session.change`) and lacks only the last positions.
Spec: docs/spec/session.md, *Standbys*.
"""

from collections.abc import Iterator
from typing import Annotated, Final

import trio
from msgspec import Meta

from ....transport.errors import CallRefused, LinkClosed
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ....transport.lane.frame import Priority
from ....transport.link.calls import Call, Refusal, Reply
from ...defaults import (
    COPIES,
    COPY_BYTES,
    COPY_PART_BYTES,
    COPY_QUICK,
    COPY_REST,
    COPY_TIMEOUT,
    MAX_POSITIONS,
    MAX_STAGES,
)
from ...engine.defaults import KV_PART_BYTES
from ...engine.errors import EngineError
from ...engine.interface import Engine, KvRange
from ...engine.kv.blocks import BLOCK
from ...engine.kv.parts import KvShape, range_of
from ...errors import SessionError
from ...message import HeaderMessage
from ..courier import Courier
from ..messages import EpochMessage, SessionMessage
from ..serving.meetings import Meetings
from ..serving.stagesession import StageSession
from ..stagesessions import StageSessions

_PART_MOST: Final = KV_PART_BYTES + (1 << 20)  # bytes of a part with its header, at most

_Peer = Annotated[PeerId, Meta(min_length=1, max_length=64)]
_Index = Annotated[int, Meta(ge=0, lt=MAX_STAGES)]
_Position = Annotated[int, Meta(ge=0, le=MAX_POSITIONS)]


class Copy(EpochMessage, frozen=True):
    """`session.copy`: the gateway has stage `index` copy the KV of the positions below `stop` to
    its standby `to`."""

    index: _Index
    to: _Peer
    stop: _Position


class Part(SessionMessage, frozen=True):
    """`session.part`: a stage sends a part of the KV of a session to its standby at place `index`.
    The part is the payload."""

    gateway: _Peer
    index: _Index


class Copied(HeaderMessage, frozen=True):
    """Reply to `session.copy` and `session.part`: the standby has the KV of `have` positions."""

    have: _Position


class StageCopies:
    """Handlers of `session.copy` at stages, and of `session.part` at standbys."""

    def __init__(
        self,
        host: Host,
        courier: Courier,
        engine: Engine | None,
        sessions: StageSessions,
        meetings: Meetings,
    ) -> None:
        self._host = host
        self._courier = courier
        self._engine = engine
        self._all = sessions
        self._meetings = meetings
        self._copying = 0  # calls in progress
        self.copied_bytes = 0
        """Bytes of KV that standbys have received from here since the start."""
        courier.handle("session.copy", self._on_copy)
        courier.handle("session.part", self._on_part)

    # At the stage.

    async def _on_copy(self, call: Call) -> Reply | Refusal:
        """Copy the next positions, if the gateway's session is here. Reply with how many the
        standby has."""
        try:
            message = Copy.parse(call.header)
            session = self._all.find(call.peer, message, message.index)
            if session.copying or self._copying >= COPIES:
                raise SessionError("busy", "this stage copies already")
            _check_copied(session)
            session.copying, self._copying = True, self._copying + 1
            try:
                await self._meetings.meet(call.peer, (message.to,))
                await self._copy_all(session, message)
            except BaseException:
                session.copied.pop(message.to, None)
                raise
            finally:
                session.copying, self._copying = False, self._copying - 1
            return Reply(Copied(session.copied.get(message.to, 0)).fields())
        except (SessionError, EngineError) as error:
            return Refusal(error.code, error.message)
        except (CallRefused, LinkClosed) as error:  # the standby refuses, or has disappeared
            return Refusal("not-copied", error.message)

    async def _copy_all(self, session: StageSession, message: Copy) -> None:
        """Copy as `_copy`, from the beginning if the standby was opened again since the last copy:
        it has nothing then."""
        try:
            await self._copy(session, message)
        except CallRefused as error:
            if error.code != "gap" or not session.copied.pop(message.to, 0):
                raise
            await self._copy(session, message)

    async def _copy(self, session: StageSession, message: Copy) -> None:
        """Send what the standby lacks, at most COPY_BYTES, one part after the other.

        The sender rests after each part as long as it took, which leaves at least half of the
        uplink to other traffic of this machine. Parts are small where they take long.
        """
        stop = min(message.stop, session.passed) // BLOCK * BLOCK
        sent = 0
        while sent < COPY_BYTES:
            start = session.copied.get(message.to, 0)
            if start >= stop:
                return
            for part in parts_of(session, start, stop, session.copy_size):
                size, took = await self._send(session, message.to, part)
                sent += size
                await trio.sleep(COPY_REST * took)
            _, trip = self._courier.waiting(message.to)
            larger = min(2 * session.copy_size, COPY_BYTES)
            session.copy_size = larger if took < COPY_QUICK + 2 * trip else COPY_PART_BYTES

    async def _send(self, session: StageSession, to: PeerId, part: KvRange) -> tuple[int, float]:
        """Send one part to a standby, and return its size in bytes and the seconds on the way."""
        assert self._engine is not None  # else no session is open
        data = await self._engine.read_kv(session.engine_id, part, "exact")
        began, order = self._host.now(), session.open
        message = Part(order.session, session.gateway, order.index)
        reply = await self._courier.call(
            *(to, "session.part", message.header(), data),
            priority=Priority.BULK,
            timeout=COPY_TIMEOUT,
        )
        session.copied[to] = Copied.parse(reply.header).have
        self.copied_bytes += len(data)
        return len(data), self._host.now() - began

    # At the standby.

    async def _on_part(self, call: Call) -> Reply | Refusal:
        """Write a part into the session of a standby, if it is from the stage that it stands by
        for."""
        try:
            message = Part.parse(call.header)
            session = self._standing(call.peer, message)
            part = _checked(call.payload)
        except (SessionError, EngineError) as error:
            return Refusal(error.code, error.message)
        session.copying = True
        try:
            assert self._engine is not None  # else no session is open
            length = await self._engine.write_kv(session.engine_id, part)
        except EngineError as error:
            return Refusal(error.code, error.message)
        finally:
            session.copying = False
        if session.open.standby is not None:
            session.passed = session.computed = session.reached = length
        return Reply(Copied(length).fields())

    def _standing(self, sender: PeerId, message: Part) -> StageSession:
        """Return the standby's session for a part. Raises SessionError if it is not one of the
        sender's."""
        session = self._all.open.get((message.gateway, message.session, message.index))
        if session is None or session in self._all.opening:
            raise SessionError("unknown-session", "no such session is open here")
        if session.open.standby is None or sender != session.open.standby:
            raise SessionError("not-yours", "parts come from the stage that a standby is for")
        if session.copying:
            raise SessionError("busy", "a part of this session is being written")
        session.heard = self._host.now()
        return session


def parts_of(session: StageSession, start: int, stop: int, size: int) -> Iterator[KvRange]:
    """Yield the parts of the next whole blocks of a session, as many as have about `size` bytes in
    all layers, at least one.

    Each part has about `size` bytes, or one block of one layer.
    """
    held = session.served.shard
    first, last = held.parts.start, held.parts.stop
    shape = KvShape(held.kv_heads, held.head_dim, held.dtype)
    block = shape.layer_bytes(BLOCK, "exact")
    layers = max(1, min(last - first, size // block))
    end = min(start + BLOCK * max(1, size // (block * (last - first))), stop)
    for layer in range(first, last, layers):
        yield KvRange(start, end, layer, min(layer + layers, last))


def _check_copied(session: StageSession) -> None:
    """Raise SessionError `not-copied` if the KV of a session cannot be copied."""
    if not session.served.shard.kv_heads or session.open.pooled:
        raise SessionError("not-copied", "the state of this session cannot be copied")


def _checked(payload: bytes | memoryview) -> bytes:
    """Return a part. Raises SessionError if it is too large or not exact, and EngineError if it is
    malformed."""
    if len(payload) > _PART_MOST:
        raise SessionError("bad-message", f"a part of {len(payload)} bytes is too large")
    _, form = range_of(memoryview(payload))
    if form != "exact":
        raise SessionError("bad-message", "a standby takes exact copies only")
    return bytes(payload)

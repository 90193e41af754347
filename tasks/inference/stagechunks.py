"""KV of other nodes for the sessions of a stage, and what they leave behind for others."""

from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import trio
from trio import TaskStatus

from ...transport.errors import LinkClosed
from ...transport.identity import PeerId
from ...transport.lane.frame import Priority
from ..chunks.connector import WantingSession
from ..chunks.store import KvOrigin
from ..engine.interface import NAME_BYTES, SessionId
from ..engine.kv.blocks import BLOCK
from ..engine.kv.parts import KvShape
from .courier import Courier
from .messages import Held
from .serving.stagesession import StageSession


class Connector(Protocol):
    """The part of a `ChunkConnector` that a stage uses."""

    async def brought(self, wanted: WantingSession) -> tuple[int, PeerId | None]: ...
    async def beside(self, wanted: WantingSession, ready: trio.Event) -> None: ...
    def keep(self, session: SessionId) -> None: ...
    def refute(self, peer: PeerId, gateway: PeerId) -> None: ...
    def saved(self, origin: KvOrigin, names: bytes) -> None: ...


class StageChunks:
    """The stage's side of a connector. Without one, everything is computed here."""

    def __init__(self, courier: Courier, connector: Connector | None = None) -> None:
        self._courier = courier
        self._connector = connector
        self._tasks: trio.Nursery | None = None

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fetch for sessions that compute, until cancelled."""
        async with trio.open_nursery() as self._tasks:
            task_status.started()
            await trio.sleep_forever()

    async def brought(self, session: StageSession, names: bytes, cached: int, *, busy: bool) -> int:
        """Bring KV of other nodes into a session that is open in the engine, where that is faster
        than computing it. Return the session's length.

        `names` are those of the prompt's full blocks, of which `cached` positions are here. A stage
        fetches while it computes, unless it is `busy` with other sessions, whose time that would
        take. All stages of a chain must leave out the same positions, so their gateway says which
        (`Open.skips`), and hears what is here. Others fetch first.
        """
        held, order = session.served.shard, session.open
        if self._connector is None or not names or not held.kv_heads:
            return cached
        wanted = WantingSession(
            session.engine_id,
            _origin(session),
            names,
            cached,
            session.exact,
            KvShape(held.kv_heads, held.head_dim, held.dtype),
            session.served.speed.costs,
            session.use_provider,
        )
        able = not (order.resume or order.pooled) and (session.single or order.skips)
        session.skips = able and not session.single
        if able and not busy and wanted.chunks > 1 and self._tasks is not None:
            ready, begins = trio.Event(), trio.Event()
            self._tasks.start_soon(self._beside, self._connector, session, wanted, ready, begins)
            await ready.wait()
            begins.set()
            return cached
        length, session.source = await self._connector.brought(wanted)
        if session.skips and length:
            self._connector.keep(session.engine_id)
        return length

    async def _beside(
        self,
        connector: Connector,
        session: StageSession,
        wanted: WantingSession,
        ready: trio.Event,
        begins: trio.Event,
    ) -> None:
        """Fetch until the session ends, or has what it needs. Tell the gateway of a chain what has
        arrived, and that no more will, unless it hears that when the session `begins`."""
        last = 0, wanted.cached

        def tell(start: int, stop: int) -> None:
            nonlocal last
            last = start if start > wanted.cached else 0, stop
            self._tell(session, *last)

        session.fetching = session.skips
        try:
            with session.fetch:
                told = replace(wanted, held=tell) if session.skips else wanted
                await connector.beside(told, ready)
        finally:
            session.fetching = False
            known = begins.is_set() or last[1] > wanted.cached
            if known and not session.fetch.cancel_called:
                self._tell(session, *last)
            ready.set()

    def _tell(self, session: StageSession, start: int, stop: int) -> None:
        """Tell the gateway of a chain which positions of a session are here."""
        order = session.open
        if session.skips:
            held = Held(order.session, order.epoch, order.index, start, stop, session.fetching)
            with suppress(LinkClosed):  # the session ends with its gateway
                self._courier.post(
                    session.gateway, "session.held", held.header(), priority=Priority.CONTROL
                )

    def saved(self, session: StageSession, names: bytes) -> None:
        """Offer what a closed session has computed, whose blocks have these names."""
        if self._connector is not None and session.served.shard.kv_heads:
            full = session.passed // BLOCK * NAME_BYTES  # what only waits is not there
            self._connector.saved(_origin(session), names[:full])

    def refuted(self, session: StageSession) -> None:
        """Distrust the provider of a session's KV, because other values were computed here."""
        if self._connector is not None and session.source is not None:
            self._connector.refute(session.source, session.gateway)


def _origin(session: StageSession) -> KvOrigin:
    held, order = session.served.shard, session.open
    layers = held.parts.start, held.parts.stop
    number = session.served.number
    return KvOrigin(held.root, held.dtype, layers, number, session.gateway, order.adapter)

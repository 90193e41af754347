"""KV of other nodes for the sessions of a stage, and what they leave behind for others."""

from typing import Protocol

import trio
from trio import TaskStatus

from ...transport.identity import PeerId
from ..chunks.connector import WantingSession
from ..chunks.store import KvOrigin
from ..engine.interface import NAME_BYTES
from ..engine.kv.blocks import BLOCK
from ..engine.kv.parts import KvShape
from .serving.stagesession import StageSession


class Connector(Protocol):
    """The part of a `ChunkConnector` that a stage uses."""

    async def brought(self, wanted: WantingSession) -> tuple[int, PeerId | None]: ...
    async def beside(self, wanted: WantingSession, ready: trio.Event) -> None: ...
    def refute(self, peer: PeerId, gateway: PeerId) -> None: ...
    def saved(self, origin: KvOrigin, names: bytes) -> None: ...


class StageChunks:
    """The stage's side of a connector. Without one, everything is computed here."""

    def __init__(self, connector: Connector | None = None) -> None:
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

        `names` are those of the prompt's full blocks, of which `cached` positions are here. The
        stage of a whole model fetches while it computes, unless it is `busy` with other sessions,
        whose time that would take. Each stage of a chain must skip the same positions, so they
        fetch first.
        """
        held = session.served.shard
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
        alone = session.single and not (session.open.resume or session.open.pooled or busy)
        if alone and wanted.chunks > 1 and self._tasks is not None:
            ready = trio.Event()
            self._tasks.start_soon(self._beside, self._connector, session, wanted, ready)
            await ready.wait()
            return cached
        length, session.source = await self._connector.brought(wanted)
        return length

    @staticmethod
    async def _beside(
        connector: Connector, session: StageSession, wanted: WantingSession, ready: trio.Event
    ) -> None:
        """Fetch until the session ends, or has what it needs."""
        try:
            with session.fetch:
                await connector.beside(wanted, ready)
        finally:
            ready.set()

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

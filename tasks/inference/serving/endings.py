"""How sessions of a stage end: their KV is freed, and their gateways are told why."""

from contextlib import suppress
from dataclasses import dataclass

import trio

from ....transport.errors import LinkClosed
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ....transport.lane.frame import Priority
from ...defaults import SESSIONS_PER_STAGE
from ...engine.interface import Engine, SessionId
from ...usage.metering import UsageMeter
from ..courier import Courier
from ..messages import Failed, Quiet
from ..stagesessions import StageSessions
from .stagesession import StageSession


@dataclass(slots=True)
class _Freeing:
    """A session whose KV must be freed, except blocks with one of `names`. `done` is set when it
    is."""

    engine_id: SessionId
    names: bytes
    done: trio.Event


class StageEndings:
    """Ends sessions at the stages of one node."""

    def __init__(
        self, host: Host, courier: Courier, engine: Engine | None, sessions: StageSessions
    ) -> None:
        self._host = host
        self._courier = courier
        self._engine = engine
        self._all = sessions
        # `StageSessions.check_open` bounds what is freed and what is open, and so this.
        self._freeing, self._to_free = trio.open_memory_channel[_Freeing](SESSIONS_PER_STAGE * 16)

    @property
    def freeing(self) -> int:
        """Number of sessions whose KV is yet to be freed."""
        return self._to_free.statistics().current_buffer_used

    def drop(self, session: StageSession, names: bytes = b"") -> trio.Event:
        """Remove a session and free its KV, except blocks with one of `names`, which stay cached.

        The returned event is set when the KV is freed.
        """
        session.fetch.cancel()
        if self._all.remove(session, self._host.now()):
            assert self._engine is not None  # else none is open
            self._engine.cancel(session.engine_id)
        done = trio.Event()
        self._freeing.send_nowait(_Freeing(session.engine_id, names, done))
        return done

    def fail(
        self, session: StageSession, code: str, message: str, *, lost: PeerId | None = None
    ) -> trio.Event:
        """Drop a session and report its failure to its gateway. `lost` is the neighbour that was
        lost. The returned event is set when its KV is freed."""
        session.failed = code
        freed = self.drop(session)
        failed = Failed(session.open.session, session.open.epoch, code, message, lost)
        with suppress(LinkClosed):  # the gateway is lost too
            self._courier.post(
                session.gateway, "session.failed", failed.header(), priority=Priority.CONTROL
            )
        return freed

    def tell_lost(self, session: StageSession, peer: PeerId, why: str) -> None:
        """Report that a neighbour in a session's chain is lost. The session stays, because the
        gateway may give it another neighbour."""
        if session.open.pooled:
            self.fail(session, "stage-lost", why, lost=peer)
        elif not session.told_lost:
            session.told_lost = True
            self.report(session, Quiet(session.open.session, session.open.epoch, peer, True, True))

    def report(self, session: StageSession, message: Quiet) -> None:
        """Tell the gateway of a session about a neighbour."""
        with suppress(LinkClosed):  # the gateway is lost too
            self._courier.post(
                session.gateway, "session.quiet", message.header(), priority=Priority.CONTROL
            )

    async def free(self) -> None:
        """Close dropped sessions in the engine, one after another."""
        async for item in self._to_free:
            assert self._engine is not None  # else no session was open
            await self._engine.close(item.engine_id, item.names)
            item.done.set()


@dataclass(frozen=True, slots=True)
class StageParts:
    """Objects that the inputs and outputs of a stage share."""

    host: Host
    courier: Courier
    engine_or_none: Engine | None
    sessions: StageSessions
    meter: UsageMeter
    endings: StageEndings

    @property
    def engine(self) -> Engine:
        """The engine. Without one, no session opens."""
        assert self.engine_or_none is not None
        return self.engine_or_none

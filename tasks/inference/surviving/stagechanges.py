"""Changes of a session's chain at a stage: its new neighbours, and the state that they lack.

Spec: docs/spec/session.md, *Replaced stages*.
"""

from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from ....transport.errors import LinkClosed
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ....transport.lane.frame import Priority
from ....transport.link.calls import Call, Refusal, Reply
from ...defaults import (
    CHANGES,
    MAX_SPAN_TOKENS,
    PREFILL_BYTES,
    PREFILL_TOKENS,
    REBUILD_BYTES,
    REBUILD_SPANS,
    REBUILD_TOKENS,
)
from ...engine.interface import HiddenEvent
from ...errors import SessionError
from ..courier import Courier
from ..messages import Change, Need, Open, Rebuild, Rebuilt, SessionChanged, SpanMessage
from ..serving.meetings import Meetings
from ..serving.stagesession import StageSession
from ..stagesessions import StageSessions, coded
from .rebuilding import Rebuilding


class StageChanges:
    """Handlers of `session.change`, `session.rebuild` and `session.need` for all sessions of one
    node."""

    def __init__(
        self, host: Host, courier: Courier, sessions: StageSessions, meetings: Meetings
    ) -> None:
        self._host = host
        self._courier = courier
        self._all = sessions
        self._meetings = meetings
        courier.handle("session.change", self._on_change)
        courier.handle("session.rebuild", coded(self._on_rebuild))
        courier.handle("session.need", coded(self._on_need))

    async def _on_change(self, call: Call) -> Reply | Refusal:
        """Give a session its new neighbours, if its gateway says so."""
        try:
            message = Change.parse(call.header)
            session = self._find(call, message)
            await self._meetings.meet(call.peer, neighbours(message.stages, message.place))
            session = self._find(call, message)  # it may have been closed in the meantime
            return Reply(SessionChanged(self._change(session, message)).fields())
        except SessionError as error:
            return Refusal(error.code, error.message)

    def _find(self, call: Call, message: Change) -> StageSession:
        """Return the session that a message changes. Raises SessionError if there is none, or if it
        cannot have that place."""
        session = self._all.open.get((call.peer, message.session, message.index))
        if session is None or session in self._all.opening:
            raise SessionError("unknown-session", "no such session is open here")
        if message.epoch <= session.open.epoch:
            raise SessionError("stale-epoch", f"the session is in epoch {session.open.epoch}")
        parts, last = session.open.parts, message.place == len(message.stages) - 1
        own = message.stages[message.place] == self._courier.peer
        if not own or parts.embedding != (message.place == 0) or parts.head != last:
            raise SessionError("bad-message", "the shard does not match its place in the chain")
        if session.open.pooled or session.changes >= CHANGES:
            raise SessionError("bad-message", f"a session's chain changes {CHANGES} times at most")
        return session

    def _change(self, session: StageSession, message: Change) -> int:
        """Change a session, and return the number of positions of which it has the state."""
        for peer in neighbours(message.stages, message.place):
            if not self._courier.reaches(peer):
                raise SessionError("unreachable", f"this stage has no link to {peer}")
        order: Open = replace(
            session.open,
            epoch=message.epoch,
            stages=message.stages,
            index=message.place,
            steps=message.steps or session.open.steps,
            standby=None,  # it takes the place that it was ready for
        )
        self._all.rename(session, order)
        session.fetch.cancel()  # the gateway leaves nothing out any more
        session.begin_epoch(Rebuilding(message.resume, session.passed))
        session.heard = self._host.now()
        return min(session.passed, message.resume)

    def _on_rebuild(self, call: Call) -> Reply | Refusal:
        """Ask for what a stage lacks, now that all stages of its chain are open."""
        message = Rebuild.parse(call.header)
        session = self._all.find(call.peer, message, message.index)
        self.ask(session)
        return Reply()

    def _on_need(self, call: Call) -> Reply | Refusal:
        """Send the next stage the inputs that it lacks, from the log.

        Where the log lacks them too, they are computed again from this stage's own inputs.
        """
        message = Need.parse(call.header)
        session = self._all.find(call.peer, message, message.index)
        rebuilding = session.rebuilding
        if call.peer != session.next or session.open.parts.head:
            raise SessionError("not-yours", "inputs are for the next stage")
        if rebuilding is None:
            raise SessionError("bad-message", "the session's chain was not changed")
        rebuilding.want(message.start, message.stop, MAX_SPAN_TOKENS)
        session.heard = self._host.now()
        if not session.log.covers(message.start, message.start + 1):
            if rebuilding.rewind(message.start):
                session.log.drop()
                session.passed = message.start
            self.ask(session)
        self._give(session)
        return Reply()

    def ask(self, session: StageSession) -> None:
        """Ask the stage before this one, or the gateway, for the next inputs that are missing."""
        rebuilding, order = session.rebuilding, session.open
        if rebuilding is None or session.waiting >= REBUILD_SPANS:
            return
        most = REBUILD_TOKENS
        if order.index:
            most = min(most, max(1, REBUILD_BYTES // session.served.shard.token_bytes))
        if (wanted := rebuilding.ask(most)) is None:
            return
        need = Need(
            session=order.session,
            epoch=order.epoch,
            index=max(order.index - 1, 0),
            start=wanted[0],
            stop=wanted[1],
            gateway=session.gateway if order.index else None,
        )
        method = "session.need" if order.index else "session.tokens"
        with suppress(LinkClosed):  # the gateway hears of the lost link
            self._courier.post(session.previous, method, need.header(), priority=Priority.CONTROL)

    def built(self, session: StageSession, event: HiddenEvent) -> None:
        """Process the output of positions that were computed again."""
        order, end = session.open, event.start + event.count
        session.passed = end
        if not order.parts.head:
            session.log.append(order.epoch, event.start, event.count, event.data)
            self._give(session, event)
        self.ask(session)
        done = Rebuilt(order.session, order.epoch, order.index, end)
        self._courier.post(session.gateway, "session.rebuilt", done.header())

    def _give(self, session: StageSession, event: HiddenEvent | None = None) -> None:
        """Send the next stage what it has asked for, as far as it is in the log or in `event`."""
        rebuilding = session.rebuilding
        assert rebuilding is not None
        start, stop = rebuilding.wanted
        if rebuilding.through:
            if event is not None and start == event.start and event.start + event.count <= stop:
                self._send(session, start, event.count, event.data)
                rebuilding.gave(start + event.count)
            return
        stop = min(stop, session.log.length)
        while start < stop and session.log.covers(start, stop):
            row = len(session.log.rows(start, start + 1))
            count = span_size(stop - start, row)
            self._send(session, start, count, session.log.rows(start, start + count))
            start += count
            rebuilding.gave(start)

    def _send(
        self, session: StageSession, start: int, count: int, rows: bytes | memoryview
    ) -> None:
        order = session.open
        span = SpanMessage(
            session=order.session,
            gateway=session.gateway,
            epoch=order.epoch,
            index=order.index + 1,
            start=start,
            count=count,
            token=False,
            seconds=0.0,
        )
        with suppress(LinkClosed):  # the gateway hears of the lost link
            self._courier.post(session.next, "session.span", span.header(), rows)


def span_size(left: int, row: int) -> int:
    """Return how many of `left` positions to send in one span. `row` is the size of one in bytes.

    A single position is no part of a prompt: engines compute it as the continuation of a text.
    """
    count = max(1, min(PREFILL_TOKENS, PREFILL_BYTES // max(row, 1), left))
    return count - 1 if left - count == 1 < count else count


def neighbours(stages: Sequence[PeerId], place: int) -> tuple[PeerId, PeerId]:
    """Return the stages before and after the one at `place`. The first one follows the last."""
    return stages[place - 1], stages[(place + 1) % len(stages)]

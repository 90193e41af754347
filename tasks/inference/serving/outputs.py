"""Outputs of a stage: what the engine has computed, on its way to the next stage or the gateway.

Spec: docs/spec/session.md.
"""

from ....transport.errors import CallRefused, LinkClosed
from ...engine.interface import (
    DroppedEvent,
    EngineEvent,
    FailedEvent,
    HiddenEvent,
    TokenEvent,
)
from ...engine.kv.blocks import BLOCK
from ..messages import FeedToken, SampledToken, SpanMessage, SpanProgress
from ..slowlinks import SlowLinks
from ..stagechunks import StageChunks
from ..surviving.recovery import LOST_STATE
from ..surviving.stagechanges import StageChanges
from .endings import StageParts
from .stagesession import StageSession, WaitingSpan


class StageOutputs:
    """Sends on what the engine of one node has computed for its sessions."""

    def __init__(
        self, parts: StageParts, changes: StageChanges, chunks: StageChunks, slow: SlowLinks
    ) -> None:
        self._host = parts.host
        self._courier = parts.courier
        self._all = parts.sessions
        self._meter = parts.meter
        self._endings = parts.endings
        self._changes = changes
        self._chunks = chunks
        self._slow = slow

    def on_event(self, session: StageSession, event: EngineEvent) -> None:
        """Process an event of the engine. Fails the session if it cannot be sent on."""
        if self._all.open.get(session.name) is not session:
            return  # the session was closed in the meantime
        failed = isinstance(event, FailedEvent) and event.code in LOST_STATE
        if event.epoch < session.open.epoch and not failed:
            return  # the chain was changed since
        try:
            match event:
                case HiddenEvent():
                    self._pass_on(session, event, session.queued.popleft())
                case TokenEvent():
                    before = session.queued[0]
                    if event.final:  # the last token of a loop, or of a window
                        session.queued.popleft()
                    if not session.ended:
                        self._pass_token(session, event, before)
                case DroppedEvent():
                    session.queued.popleft()
                case FailedEvent():
                    if event.code == "bad-chunk":
                        self._chunks.refuted(session)
                    self._endings.fail(session, event.code, event.message)
        except LinkClosed as error:
            self._endings.tell_lost(session, session.next, error.message)
        except CallRefused as error:  # the message is too large for the lane
            self._endings.fail(session, error.code, error.message)

    def _pass_on(self, session: StageSession, event: HiddenEvent, before: WaitingSpan) -> None:
        """Send hidden states to the next stage. At the head, report the progress to the gateway
        instead, with the pooled states if it wants them."""
        order, end = session.open, event.start + event.count
        self._meter.made(session.use, tokens=0, seconds=event.seconds)
        if not before.draft:
            texts = self._all.texts(session.served)
            session.note_computed(end, event.count, event.seconds, texts)
        session.served.speed.note(event.count, event.predicted, event.seconds)
        if session.rebuilding is not None and end <= session.rebuilding.resume:
            self._changes.built(session, event)
            return
        session.passed = end
        self._count(session, event, before)
        if order.parts.head:
            progress = SpanProgress(order.session, order.epoch, end).header()
            if order.pooled:
                self._courier.post(session.gateway, "session.pooled", progress, event.data)
            else:
                self._courier.post(session.gateway, "session.progress", progress)
            return
        session.log.append(order.epoch, event.start, event.count, event.data)
        span = SpanMessage(
            session=order.session,
            gateway=session.gateway,
            epoch=order.epoch,
            index=order.index + 1,
            start=event.start,
            count=event.count,
            token=before.token,
            seconds=before.seconds + event.seconds,
            draft=before.draft,
            behind=before.behind,
        )
        data = b"".join((event.data, before.veiled)) if before.draft else event.data
        if before.draft or event.count <= BLOCK:
            self._slow.passes(session.next, len(data))
        else:
            waiting = self._courier.waiting(session.next)
            self._slow.sends(session.next, len(data), *waiting, self._host.now())
        self._courier.post(session.next, "session.span", span.header(), data)

    def _count(self, session: StageSession, event: HiddenEvent, before: WaitingSpan) -> None:
        """Count the tokens that follow from inputs that were right: those before a window, and all
        up to a token that was fed. Guesses of a window are counted later."""
        end = event.start + event.count
        if before.token and session.counted is None:
            session.counted = end - 1
        if before.token:
            right = session.right(event.start if before.draft else end)
            self._meter.made(session.use, tokens=right, seconds=0.0)

    def _pass_token(self, session: StageSession, event: TokenEvent, before: WaitingSpan) -> None:
        """Send a sampled token to the gateway and, if it is the last one of its span and not of the
        session, to the first stage."""
        order = session.open
        if event.seconds:  # else it was computed together with its predecessor
            rows = 1 if session.made else max(1, event.position - session.computed)
            if not before.draft:
                texts = self._all.texts(session.served)
                session.note_computed(event.position, rows, event.seconds, texts)
            # The time of a window is that of several rows.
            session.served.speed.note(rows + before.draft, event.predicted, event.seconds)
        session.made += 1
        session.reached = max(session.reached, event.position)
        session.passed = event.position
        self._meter.made(session.use, tokens=1, seconds=event.seconds)
        session.heard = self._host.now()
        final = event.final if session.single else self._is_final(session, event)
        session.ended = final
        if event.final and not final:  # sent before the gateway's message, to save time
            feed = FeedToken(
                order.session, order.epoch, event.position, event.token, session.gateway
            )
            self._courier.post(session.next, "session.feed", feed.header())
        token = SampledToken(
            session=order.session,
            epoch=order.epoch,
            position=event.position,
            token=event.token,
            logprob=max(event.logprob, -1e9),
            final=final,
            seconds=before.seconds + event.seconds,
            top=tuple((other, max(logprob, -1e9)) for other, logprob in event.top),
        )
        before.seconds = 0.0
        self._courier.post(session.gateway, "session.token", token.header())

    @staticmethod
    def _is_final(session: StageSession, event: TokenEvent) -> bool:
        """Return whether this is the session's last token."""
        order = session.open
        return (
            event.token in (order.stop_ids or ())
            or session.made >= order.steps
            or event.position >= order.tokens
        )

"""Inputs of a stage: spans, fed tokens and windows of drafts, as they go to the engine.

The handlers are plain functions. Hidden states therefore reach the engine in the same call in which
their frame arrived, neither parsed nor copied. Spec: docs/spec/session.md.
"""

from msgspec import structs

from ....transport.link.calls import Call, Refusal, Reply
from ...defaults import PASSED_BYTES, SPANS_BYTES, SPANS_WAITING
from ...drafting.inputs import Inputs
from ...engine.errors import EngineError
from ...engine.interface import Sampling, Span, Want
from ...errors import SessionError
from ...placement.shard import ShardProperties
from ..messages import FeedToken, Open, SpanMessage, pack_tokens, unpack_tokens, veiled
from ..stagesessions import coded
from ..surviving.stagechanges import StageChanges
from .endings import StageParts
from .stagesession import StageSession, WaitingSpan


class StageInputs:
    """Handlers of `session.span` and `session.feed` for all sessions of one node."""

    def __init__(self, parts: StageParts, changes: StageChanges) -> None:
        self._parts = parts
        self._host = parts.host
        self._all = parts.sessions
        self._meter = parts.meter
        self._endings = parts.endings
        self._changes = changes

    def listen(self) -> None:
        """Register the handlers."""
        self._parts.courier.handle("session.span", coded(self._on_span))
        self._parts.courier.handle("session.feed", coded(self._on_feed))

    def _on_span(self, call: Call) -> Reply | Refusal:
        message = SpanMessage.parse(call.header)
        session = self._all.find(call.peer, message, message.index)
        if call.peer != session.previous:
            raise SessionError("not-yours", "spans come from the stage before")
        if message.start + message.count > session.open.tokens:
            raise SessionError("bad-message", "the span ends beyond the session's `tokens`")
        held, rebuilding = session.served.shard, session.rebuilding
        if rebuilding and not rebuilding.takes(message.start, message.count, token=message.token):
            return Reply()  # it was sent before this stage had asked for what is before it
        if not held.parts.head and message.count * session.row_bytes > PASSED_BYTES:
            # No lane takes the result, so computing it would waste time.
            raise SessionError("bad-message", f"the result would exceed {PASSED_BYTES} bytes")
        if message.draft:
            self._on_window(session, message, call.payload)
        elif session.open.index == 0:
            if message.token:
                session.inputs = Inputs(message.start + message.count)
            tokens = unpack_tokens(call.payload, message.count)
            self._submit(session, message, tokens=_known(tokens, held))
        elif len(call.payload) != message.count * session.row_bytes:
            raise SessionError("bad-message", f"{len(call.payload)} bytes are not that span")
        else:
            self._submit(session, message, hidden=call.payload)
        self._changes.ask(session)
        return Reply()

    def _on_feed(self, call: Call) -> Reply | Refusal:
        message = FeedToken.parse(call.header)
        session = self._all.find(call.peer, message, 0)
        if session.single or call.peer != session.open.stages[-1]:
            raise SessionError("not-yours", "tokens are fed by the head to the first stage")
        if message.position >= session.open.tokens:
            raise SessionError("bad-message", "the position is beyond the session's `tokens`")
        (token,) = _known((message.token,), session.served.shard)
        session.inputs = session.inputs or Inputs(session.reached)
        try:
            work = session.inputs.feed(message.position, token)
        except ValueError as error:
            raise SessionError("bad-message", str(error)) from None
        if work is not None:
            at = message.position
            span = SpanMessage(message.session, message.epoch, 0, at, 1, True, 0.0)
            self._submit(session, span, tokens=work.tokens)
        return Reply()

    def _on_window(
        self, session: StageSession, message: SpanMessage, payload: bytes | memoryview
    ) -> None:
        """Have a window of drafts computed, unless it is void. Raises SessionError if it is
        invalid."""
        held = session.served.shard
        if not held.drafts or session.open.pooled:
            raise SessionError("bad-message", "this session has no windows")
        if session.ended:
            return
        if session.open.index:
            states = message.count * session.row_bytes
            if len(payload) != states + 4 * message.count:
                raise SessionError("bad-message", f"{len(payload)} bytes are not that window")
            self._pass_window(session, message, memoryview(payload), states)
            return
        tokens = _known(unpack_tokens(payload, message.count), held)
        if session.single:
            self._guess(session, message, tokens)
        elif session.inputs is not None and session.waiting < SPANS_WAITING // 2:
            work = session.inputs.window(message.branch, message.start, tokens)
            if work is not None:
                veil = veiled(session.open.veil, work.start, work.tokens)
                window = structs.replace(message, start=work.start, count=len(work.tokens))
                self._submit(session, window, tokens=work.tokens, ids=pack_tokens(veil))

    def _pass_window(
        self, session: StageSession, message: SpanMessage, payload: memoryview, states: int
    ) -> None:
        """Have a window of the stage before computed. The first `states` bytes of its payload are
        hidden states, the others are token ids."""
        tokens, ids = None, bytes(payload[states:])
        if session.open.parts.head:
            found = unpack_tokens(ids, message.count)
            found = veiled(session.open.veil, message.start, found)
            tokens = _known(found, session.served.shard)
        self._submit(session, message, tokens=tokens, hidden=payload[:states], ids=ids)

    def _guess(self, session: StageSession, message: SpanMessage, tokens: tuple[int, ...]) -> None:
        """Give a window to the engine, which runs the loop of the session alone."""
        session.heard = self._host.now()
        try:
            self._parts.engine.submit(
                Span(
                    *(session.engine_id, session.open.epoch, message.start, message.count),
                    tokens=tokens,
                    want="token",
                    draft=True,
                )
            )
        except EngineError as error:
            self._endings.fail(session, error.code, error.message)

    def _submit(
        self,
        session: StageSession,
        message: SpanMessage,
        *,
        tokens: tuple[int, ...] | None = None,
        hidden: bytes | memoryview | None = None,
        ids: bytes = b"",
    ) -> None:
        """Send a span to the engine: `tokens` at the first stage, `hidden` states at the others,
        and both for a window at the head. `ids` are the veiled tokens of a window.

        Fails the session if too many spans wait or the engine refuses.
        """
        session.heard = self._host.now()
        size = len(hidden or b"") + 4 * len(tokens or ())
        # The queue of the engine uses memory of this process and of the worker.
        waiting = session.waiting_bytes
        if session.waiting >= SPANS_WAITING or waiting + size > SPANS_BYTES:
            why = f"{session.waiting} spans of {waiting} bytes are waiting already"
            self._endings.fail(session, "too-many-spans", why)
            return
        if not session.begun:  # a session whose chain did not open was of no use
            session.begun = True
            self._meter.opened(session.use)
        told = message.seconds, message.token, message.draft, ids, message.behind
        session.queued.append(WaitingSpan(size, *told))
        session.reached = max(session.reached, message.start + message.count)
        self._meter.read(session.use, 0 if session.asked else message.count)
        session.asked = session.asked or message.token
        order = session.open
        span = Span(
            session=session.engine_id,
            epoch=order.epoch,
            start=message.start,
            count=message.count,
            tokens=tokens,
            hidden=hidden,
            want=_wanted(order, message),
            sampling=order.sampling.sampling if order.sampling else Sampling(),
            steps=order.steps if session.single and message.token else 1,
            stop_ids=order.stop_ids or (),
            top=order.top,
            draft=message.draft,
            behind=message.behind,
        )
        try:
            self._parts.engine.submit(span)
        except EngineError as error:
            self._endings.fail(session, error.code, error.message)


def _wanted(order: Open, message: SpanMessage) -> Want:
    """Return what the engine must compute for a span."""
    if not order.parts.head:
        return "hidden"
    if order.pooled:
        return "pooled"
    return "token" if message.token else "hidden"


def _known(tokens: tuple[int, ...], held: ShardProperties) -> tuple[int, ...]:
    """Return the token ids. Raises SessionError if one of them is not in the vocabulary."""
    if max(tokens) >= held.vocabulary:
        raise SessionError("bad-message", f"a token id exceeds the vocabulary {held.vocabulary}")
    return tokens

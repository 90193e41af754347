"""Server of a peer's calls: finds the handler, limits concurrency, and turns errors into codes."""

from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from math import inf

import trio

from ..errors import ShoalError, TransportError
from ..identity import PeerId
from ..lane.events import Called
from ..lane.frame import Bytes
from ..lane.lane import Lane
from ..limits import Limits
from .calls import Answer, Call, Handler, Refusal, Reply
from .stream import Stream

# Errors that a handler may raise: its disk or another peer has failed, or the header is not what it
# expects. A peer can cause these, so they only refuse the call. Any other error is a bug of ours.
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
_ANSWERS = (Reply, Refusal)
HANDLER_ERRORS = (ShoalError, OSError, trio.TooSlowError, *_MALFORMED)


class IncomingStream:
    """A stream that the peer opened, with its header. It is closed when the handler returns."""

    __slots__ = ("header", "peer", "stream")

    def __init__(self, peer: PeerId, header: dict[str, object], stream: Stream) -> None:
        self.peer = peer
        self.header = header
        self.stream = stream


StreamHandler = Callable[[IncomingStream], Awaitable[None]]


class Handlers:
    """Handlers of calls and streams by method, shared by all links of an endpoint.

    `calls` maps a method to (handler, whether it is a coroutine function).
    """

    def __init__(self) -> None:
        self.calls: dict[str, tuple[Handler, bool]] = {}
        self.streams: dict[str, StreamHandler] = {}

    def add(self, method: str, handler: Handler) -> None:
        """Register the handler of calls and posts with the name `method`."""
        slow = iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)
        self.calls[method] = handler, slow


class CallServer:
    """Server of one peer's calls and posts.

    `sent` is called when a handler's task has queued its reply, with the seconds for which that may
    wait. `posts_refused` counts the posts that were refused; posts get no reply.
    """

    def __init__(
        self,
        peer: PeerId,
        lane: Lane,
        handlers: Handlers,
        limits: Limits,
        sent: Callable[[float], None],
    ) -> None:
        self.bytes = 0  # size of the payloads that handler tasks hold
        self.within = inf
        """Seconds for which all replies of `serve` may wait since this was set to infinity."""
        self.posts_refused = 0
        """Number of posts whose handler has refused them. Their senders do not hear of it."""
        self._peer = peer
        self._lane = lane
        self._handlers = handlers
        self._limits = limits
        self._sent = sent
        self._open: dict[int, trio.CancelScope] = {}

    @property
    def busy(self) -> bool:
        """Whether any handler task is running."""
        return bool(self._open)

    def serve(self, event: Called, nursery: trio.Nursery) -> None:
        """Run the handler of a call inline and reply, or start a task for it."""
        found = self._handlers.calls.get(event.method)
        if found is None:
            self._answer_inline(event, Refusal("unknown-method", "no such method"))
            return
        handler, slow = found
        if self._is_busy(event, slow=slow):
            self._answer_inline(event, Refusal("busy", "too many calls are open"))
            return
        call = Call(self._peer, event.header, event.payload)
        if slow:
            self._start(event, handler, call, nursery)
            return
        try:
            answer = handler(call)
        except HANDLER_ERRORS as error:
            answer = refusal_of(error)
        if isinstance(answer, _ANSWERS):
            self._answer_inline(event, answer)
        else:
            self._start(event, lambda _: answer, call, nursery)

    def cancel(self, ident: int) -> None:
        """Cancel the handler of a call whose reply the peer no longer wants."""
        scope = self._open.get(ident)
        if scope is not None:
            scope.cancel()

    def _is_busy(self, event: Called, *, slow: bool) -> bool:
        """Return whether a call must be refused, because too much is queued or too many calls are
        open."""
        most = self._limits.backlog_bytes
        if self._lane.outbox.backlog > most and not event.post:
            return True
        if not slow:
            return False
        return len(self._open) >= self._limits.calls or self.bytes + len(event.payload) > most

    def _start(self, event: Called, handler: Handler, call: Call, nursery: trio.Nursery) -> None:
        """Start a task that runs a handler. The task replies at its end."""
        scope = self._open[event.ident] = trio.CancelScope()
        self.bytes += len(event.payload)
        nursery.start_soon(self._run, event, handler, call, scope)

    async def _run(
        self, event: Called, handler: Handler, call: Call, scope: trio.CancelScope
    ) -> None:
        """Run a handler in its task, and queue its reply."""
        answer: Answer | None = None
        try:
            with scope:
                pending = handler(call)
                answer = pending if isinstance(pending, _ANSWERS) else await pending
        except* HANDLER_ERRORS as errors:
            answer = refusal_of(errors)
        finally:
            del self._open[event.ident]
            self.bytes -= len(event.payload)
        if answer is not None:
            self._sent(self._answer(event, answer))

    def _answer_inline(self, event: Called, answer: Answer) -> None:
        """Queue the reply to a call while `serve` runs."""
        self.within = min(self.within, self._answer(event, answer))

    def _answer(self, event: Called, answer: Answer) -> float:
        """Queue the reply to a call. A post gets none; its refusals are counted.

        Return the seconds for which the reply may wait.
        """
        if event.post:
            self.posts_refused += isinstance(answer, Refusal)
            return inf
        if isinstance(answer, Reply):
            priority = event.priority if answer.priority is None else answer.priority
            try:
                payload = stable(answer.payload, self._limits.message_bytes)
                self._lane.reply(event.ident, answer.header, payload, priority)
                return answer.within
            except ValueError as error:
                answer = Refusal("too-large", str(error))
        self._lane.refuse(event.ident, answer.code, answer.message, event.priority)
        return 0.0


def stable(payload: Bytes | bytearray, limit: int) -> Bytes:
    """Return a payload in a form that cannot change while it is queued.

    Raises ValueError if it is larger than `limit` bytes.
    """
    if isinstance(payload, memoryview):
        payload = payload.cast("B") if payload.readonly and payload.c_contiguous else bytes(payload)
    elif isinstance(payload, bytearray):
        payload = bytes(payload)
    if len(payload) > limit:
        raise ValueError(f"expected a payload of at most {limit} bytes, got {len(payload)}")
    return payload


def refusal_of(error: Exception) -> Refusal:
    """Return the refusal that reports an error of HANDLER_ERRORS.

    For an exception group, this is the refusal for its first error.
    """
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TransportError):
        return Refusal(error.code, error.message)
    if isinstance(error, ShoalError):
        return Refusal("failed", error.message)
    code = "bad-request" if isinstance(error, _MALFORMED) else "failed"
    return Refusal(code, f"{type(error).__name__}: {error}")

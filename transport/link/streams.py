"""All streams of one link: those that this side has opened, and those that its handlers serve."""

from collections.abc import Callable, Mapping

import trio

from ..errors import CallRefused, LinkClosed
from ..identity import PeerId
from ..lane.events import Opened, StreamReady
from ..lane.frame import Priority
from ..lane.lane import Lane
from ..lane.stream import LaneStream
from .serving import HANDLER_ERRORS, Handlers, IncomingStream, StreamHandler, refusal_of
from .stream import Stream


class LinkStreams:
    """The streams of one link.

    `flush` sends the frames that the lane has queued. `ended` returns the error with which the link
    has ended, or None if it is alive.
    """

    def __init__(
        self,
        peer: PeerId,
        lane: Lane,
        handlers: Handlers,
        *,
        flush: Callable[[], None],
        ended: Callable[[], LinkClosed | None],
    ) -> None:
        self._peer = peer
        self._lane = lane
        self._handlers = handlers
        self._flush = flush
        self._ended = ended

    def open(
        self, method: str, header: Mapping[str, object], priority: Priority, first: bytes
    ) -> Stream:
        """Open a stream to the peer's handler `method`, and send its first bytes.

        Raises CallRefused with code `busy` if the peer allows no further stream, and with code
        `too-large` if `header` exceeds the limit.
        """
        try:
            core = self._lane.open(method, header, priority)
        except ValueError as error:
            raise CallRefused("too-large", str(error)) from None
        if core is None:
            raise CallRefused("busy", "the peer does not allow more streams")
        stream = self._adopt(core)
        if first:
            core.write(first)
            self._lane.outbox.schedule(core)
        self._flush()
        return stream

    def serve(self, event: Opened, nursery: trio.Nursery | None) -> None:
        """Start the handler of a stream that the peer has opened, or reset the stream if there is
        none."""
        stream = self._adopt(event.stream)
        handler = self._handlers.streams.get(event.method)
        if handler is None or nursery is None:
            stream.reset("unknown-method")
            return
        nursery.start_soon(_run, handler, IncomingStream(self._peer, event.header, stream))

    def ready(self, event: StreamReady) -> None:
        """Wake the tasks that wait for a stream, because its state has changed."""
        if event.stream.context is not None:
            event.stream.context.wake()

    def sent(self) -> None:
        """Wake the tasks that wait to send on a stream, because bytes have left."""
        for core in self._lane.streams.values():
            if core.context is not None:
                core.context.wake_sender()

    def end(self) -> None:
        """Wake all tasks that wait for a stream, because the link has ended."""
        for core in self._lane.streams.values():
            if core.context is not None:
                core.context.wake()

    def _adopt(self, core: LaneStream) -> Stream:
        """Create the `Stream` for a stream of the lane, and store it as that stream's context."""
        stream = core.context = Stream(self._lane, core, flush=self._flush, ended=self._ended)
        return stream


async def _run(handler: StreamHandler, incoming: IncomingStream) -> None:
    """Run a stream's handler, and reset the stream when the handler has returned or failed."""
    code = "closed"
    try:
        await handler(incoming)
    except* HANDLER_ERRORS as errors:
        code = refusal_of(errors).code
    incoming.stream.reset(code)

"""A link's protocol without I/O: it turns received bytes and the time into events, and requests
into bytes to send.

Implements docs/spec/lane.md, sections 3 to 7, together with stream.py (one stream), outbox.py (the
queue of frames to send) and connection.py (one connection). A `Lane` outlives the connections that
carry it. `attach` and `detach` add and remove a connection, and `use` selects the one on which this
side sends. Each counted frame that a connection may have lost is sent again on the next one. The
receiver recognizes duplicates by their call ids and stream offsets.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..defaults import PATIENCE, SMALL_PAYLOAD_BYTES
from ..host.allocator import blank
from ..limits import Limits
from . import frame as wire
from .connection import LaneConnection
from .events import (
    Answered,
    Called,
    Cancelled,
    Ended,
    Event,
    GrantedLimits,
    Opened,
    SeenIds,
    StreamReady,
)
from .frame import Bytes, Fault, Frame, Priority
from .meter import LEAST_PIECE_BYTES, Allowance
from .outbox import Outbox, OutCall, OutgoingMessage
from .queueing import Yielding
from .shaper import Flow
from .stream import LaneStream, QueuedFrame, StreamWindows


@dataclass(slots=True)
class _Partial:
    """A message from the peer that is still incomplete. `have` is the number of bytes received, and
    `deliver` returns the event for the complete payload."""

    ident: int
    of_reply: bool
    buffer: memoryview
    have: int
    deliver: Callable[[Bytes], Event]


class Lane:
    """Protocol state of one link. `dialled` is True on the side that opened the link. `remote` has
    the windows that the peer granted."""

    def __init__(self, *, dialled: bool, limits: Limits, remote: GrantedLimits, now: float) -> None:
        self.ended: Ended | None = None
        self.connections: list[LaneConnection] = []
        self.outbox = Outbox(remote.link_bytes, limits.backlog_bytes)
        self.streams: dict[int, LaneStream] = {}
        self.heard = now  # when the last byte was received
        self._now = now
        self._from = LaneConnection(idle_s=0, silent_s=0, now=now)  # the connection being read
        self._role = 0 if dialled else 1
        # A ping and its pong show each side that the other is alive, so one side suffices. The side
        # that dialled pings first.
        self.idle_s = limits.idle_s * (1 if dialled else PATIENCE)
        self._limits = limits
        self._remote = remote
        self._next_stream = 1
        self._mine = 0  # number of open streams that this side has opened
        self._seen = SeenIds()
        self._seen_streams = SeenIds()
        self._partials: list[_Partial | None] = [None, None, None]
        self._partial_bytes = 0
        self._stream_bytes = 0  # unread bytes of all streams
        self._link_received = 0
        self._link_read = 0
        self._link_granted = limits.link_window_bytes

    @property
    def held(self) -> int:
        """Number of bytes in memory for this link: unsent, unacknowledged, unread, and in
        incomplete messages."""
        return self.outbox.backlog + self._stream_bytes + self._partial_bytes

    @property
    def turns(self) -> int:
        """Number of calls, posts and streams that either side has begun so far, plus a constant."""
        ours = self.outbox.next_ident + self._next_stream
        return ours + self._seen.count + self._seen_streams.count

    @property
    def at_stake(self) -> bool:
        """Whether a caller would be affected by the end of the link: calls or streams are open, or
        replies are unacknowledged. This check is slow, so use it only while no connection carries
        the link."""
        return bool(self.streams) or self.outbox.at_stake

    @property
    def has_output(self) -> bool:
        """Whether frames are waiting that the connection in use may send now."""
        carrier = self.outbox.carrier
        return carrier is not None and self.outbox.has_output(carrier)

    # Connections.

    def attach(self, now: float, yielding: Yielding | None = None) -> LaneConnection:
        """Add a connection and return its state. If it is the only one, this side sends on it at
        once, otherwise only after `use`. `yielding` bounds its bulk in flight."""
        connection = LaneConnection(
            idle_s=self.idle_s, silent_s=self._limits.silent_s, now=now, yielding=yielding
        )
        self.heard = self._now = now
        self.connections.append(connection)
        if self.outbox.carrier is None:
            self.outbox.use(connection)
        return connection

    def detach(self, connection: LaneConnection) -> None:
        """Remove a connection. If this side was sending on it, nothing is sent until `use` selects
        another one."""
        self.connections.remove(connection)
        if connection is self.outbox.carrier:
            self.outbox.use(None)

    def use(self, connection: LaneConnection) -> None:
        """Send on this connection from now on."""
        self.outbox.use(connection)

    # Requests by the code that does the I/O.

    def call(
        self, method: str, header: Mapping[str, object], payload: Bytes, priority: Priority
    ) -> OutCall:
        """Queue a call. An `Answered` event reports its reply or refusal. Raises ValueError if the
        method's name or the header is too large."""
        call = OutCall(priority)
        head = wire.encode_request(method, header)
        self.outbox.push(OutgoingMessage(wire.CALL, int(priority), 0, head, payload, call))
        return call

    def post(
        self, method: str, header: Mapping[str, object], payload: Bytes, priority: Priority
    ) -> None:
        """Queue a post, which is a call without a reply. Raises ValueError if the method's name or
        the header is too large."""
        head = wire.encode_request(method, header)
        self.outbox.push(OutgoingMessage(wire.POST, int(priority), 0, head, payload, None))

    def give_up(self, call: OutCall) -> None:
        """Stop waiting for the reply to a call. If no part of the call has been sent yet, remove it
        from the queue, otherwise tell the peer."""
        if call.ident:
            if self.outbox.waiting.pop(call.ident, None) is not None:
                cancel = QueuedFrame(wire.CANCEL, int(call.priority), call.ident, 0, b"", b"")
                self.outbox.push(cancel)
        else:
            self.outbox.withdraw(call)

    def reply(
        self, ident: int, header: Mapping[str, object], payload: Bytes, priority: Priority
    ) -> None:
        """Queue the reply to a call of the peer."""
        head = wire.encode_header(header)
        size = len(payload)
        if size <= LEAST_PIECE_BYTES:  # never split into parts
            self.outbox.push(QueuedFrame(wire.REPLY, int(priority), ident, size, head, payload))
        else:
            self.outbox.push(OutgoingMessage(wire.REPLY, int(priority), ident, head, payload, None))

    def refuse(self, ident: int, code: str, message: str, priority: Priority) -> None:
        """Queue the refusal of a call of the peer, with a code."""
        head = wire.encode_code(code, message)
        self.outbox.push(QueuedFrame(wire.REFUSAL, int(priority), ident, 0, head, b""))

    def open(
        self, method: str, header: Mapping[str, object], priority: Priority
    ) -> LaneStream | None:
        """Open a stream. Return None if the peer does not allow another one."""
        if self._mine >= self._remote.streams:
            return None
        head = wire.encode_request(method, header)
        stream = self._new_stream(self._next_stream * 2 + self._role, priority, mine=True)
        self._next_stream += 1
        self._mine += 1
        stream.open_head = head
        self.outbox.schedule(stream)
        return stream

    def read(self, stream: LaneStream, limit: int) -> bytes:
        """Return up to `limit` received bytes of a stream, or b"" if there are none, and grant the
        peer new credit if it is due."""
        data = stream.read(limit)
        self._consumed(stream, len(data), unread=len(data))
        return data

    def read_into(self, stream: LaneStream, target: memoryview) -> int:
        """Do the same with the caller's memory. Return how many bytes were copied to it."""
        size = stream.read_into(target)
        self._consumed(stream, size, unread=size)
        return size

    def reset(self, stream: LaneStream, code: str) -> None:
        """End both directions of a stream, with a code for the peer."""
        stream.reset(code)
        dropped = stream.discard()
        self._consumed(stream, dropped, unread=dropped)
        self.outbox.schedule(stream)
        self._forget_if_done(stream)

    def go_away(self, code: str, message: str = "") -> None:
        """End the link. The last frame that `take` returns tells the peer the code."""
        if self.ended is None:
            self.ended = Ended(code, message, True)
            for connection in self.connections:
                connection.push_urgent(wire.GOAWAY, head=wire.encode_code(code, message))

    def take(
        self, connection: LaneConnection, room: int, now: float, allowance: Allowance | None = None
    ) -> bytes:
        """Return encoded frames to write to a connection now: up to `room` bytes, plus at most one
        frame. `allowance` is the budget of each priority under the bandwidth caps; None means that
        there are no caps."""
        last_words = self.ended is not None
        return self.outbox.take(connection, room, now, last_words=last_words, allowance=allowance)

    def _new_stream(self, ident: int, priority: Priority, *, mine: bool) -> LaneStream:
        stream = self.streams[ident] = LaneStream(
            ident,
            priority,
            mine=mine,
            windows=StreamWindows(
                self._remote.stream_bytes,
                self._limits.stream_window_bytes,
                self._limits.largest_stream_window_bytes,
            ),
            on_done=self._forget_if_done,
        )
        return stream

    def _consumed(self, stream: LaneStream, size: int, *, unread: int) -> None:
        self._stream_bytes -= unread
        self._link_read += size
        limit = stream.new_limit()
        if limit is not None:
            self._grant(stream.ident, limit)
        window = self._limits.link_window_bytes
        if self._link_granted - self._link_read <= window // 2:
            self._link_granted = self._link_read + window
            self._grant(0, self._link_granted)

    def _grant(self, ident: int, limit: int) -> None:
        self.outbox.push(QueuedFrame(wire.CREDIT, int(Priority.CONTROL), ident, limit, b"", b""))

    def _forget_if_done(self, stream: LaneStream) -> None:
        if stream.done and self.streams.get(stream.ident) is stream:
            del self.streams[stream.ident]
            self._mine -= stream.mine

    # Received frames.

    def receive(self, connection: LaneConnection, data: Bytes, now: float) -> list[Event]:
        """Process decrypted bytes from a connection and return the events. A protocol error of the
        peer ends the link with the code of that error."""
        events: list[Event] = []
        self.heard = self._now = connection.heard = now
        self._from = connection
        try:
            for frame in connection.cutter.feed(data):
                if self.ended is not None:
                    break
                event = self._on_frame(frame)
                if event is not None:
                    events.append(event)
        except Fault as fault:
            self.go_away(fault.code)
            events.append(Ended(fault.code, "", True))
        return events

    def _on_frame(self, frame: Frame) -> Event | None:
        kind, flags, received, _, _, head, payload = frame
        handler = HANDLERS.get(kind)
        if handler is None:
            raise Fault("bad-kind")
        if flags & wire.PRIORITY_MASK > wire.BULK:
            raise Fault("bad-flags")
        source, outbox = self._from, self.outbox
        if source.intake is not None:
            self._classify(frame, source.intake)
        if received != source.acked:
            outbox.acknowledged(source.acknowledge(received))
        if outbox.starved and outbox.link_room > 0:
            self._feed_streams()
        if kind >= wire.FIRST_COUNTED:
            source.count(len(head) + len(payload))
        return handler(self, frame)

    def _classify(self, frame: Frame, intake: list[int]) -> None:
        """Count the bytes of a received frame by traffic class. The payload of data that a relay
        forwards counts towards the class of relays."""
        size, priority = wire.PREFIX_BYTES + len(frame.head), frame.flags & wire.PRIORITY_MASK
        stream = self.streams.get(frame.ident) if frame.kind == wire.DATA else None
        lent = stream is not None and stream.lent
        intake[Flow.RELAY if lent else priority] += len(frame.payload)
        intake[priority] += size

    def _feed_streams(self) -> None:
        self.outbox.starved = False
        for stream in self.streams.values():
            self.outbox.schedule(stream)

    def _on_goaway(self, frame: Frame) -> Event:
        code, message = wire.decode_code(frame.head)
        self.ended = Ended(code, message, False)
        return self.ended

    def _on_ping(self, frame: Frame) -> None:
        self._from.pong(frame.offset)

    def _on_pong(self, frame: Frame) -> None:
        self._from.ponged(frame.offset, self._now)

    def _on_ack(self, frame: Frame) -> None:
        """Do nothing, because the number of acknowledged frames is in the prefix and was already
        processed."""

    def _on_call(self, frame: Frame) -> Event | None:
        if not self._seen.add(frame.ident):
            return None
        method, header = wire.decode_request(frame.head)
        priority = wire.PRIORITIES[frame.flags & wire.PRIORITY_MASK]
        post = frame.kind == wire.POST
        if not frame.flags & wire.MORE:
            return Called(frame.ident, method, header, _whole(frame), priority, post)

        def deliver(payload: Bytes) -> Event:
            return Called(frame.ident, method, header, payload, priority, post)

        self._first_part(frame, deliver, of_reply=False)
        return None

    def _on_reply(self, frame: Frame) -> Event | None:
        call = self._call_of(frame)
        if call is None:
            return None
        header = wire.decode_header(frame.head)
        priority = wire.PRIORITIES[frame.flags & wire.PRIORITY_MASK]
        call.answered = True

        def deliver(payload: Bytes) -> Event:
            self.outbox.waiting.pop(call.ident, None)
            return Answered(call, header, payload, priority)

        if not frame.flags & wire.MORE:
            return deliver(_whole(frame))
        self._first_part(frame, deliver, of_reply=True)
        return None

    def _on_refusal(self, frame: Frame) -> Event | None:
        call = self._call_of(frame)
        if call is None:
            return None
        code, message = wire.decode_code(frame.head)
        del self.outbox.waiting[call.ident]
        return Answered(call, code=code, message=message)

    def _call_of(self, frame: Frame) -> OutCall | None:
        """Return the open call that a frame answers. Return None if the frame is a duplicate or the
        caller has given up. Raises Fault with code `bad-id` if there was no such call."""
        call = self.outbox.waiting.get(frame.ident)
        if call is None and not 0 < frame.ident < self.outbox.next_ident:
            raise Fault("bad-id")
        return None if call is None or call.answered else call

    def _first_part(
        self, frame: Frame, deliver: Callable[[Bytes], Event], *, of_reply: bool
    ) -> None:
        total, size = frame.offset, len(frame.payload)
        if total > self._limits.message_bytes:
            raise Fault("message-too-large")
        slot = frame.flags & wire.PRIORITY_MASK
        if size >= total or self._partials[slot] is not None:
            raise Fault("bad-part")
        buffer = blank(total)
        buffer[:size] = frame.payload
        self._partials[slot] = _Partial(frame.ident, of_reply, buffer, size, deliver)
        self._partial_bytes += total

    def _on_part(self, frame: Frame) -> Event | None:
        slot = frame.flags & wire.PRIORITY_MASK
        partial = self._partials[slot]
        of_reply = bool(frame.flags & wire.OF_REPLY)
        if partial is None or (partial.ident, partial.of_reply) != (frame.ident, of_reply):
            self._check_stray_part(frame.ident, of_reply)
            return None
        size = len(frame.payload)
        if frame.offset < partial.have:
            return None
        if frame.offset > partial.have or not 0 < size <= len(partial.buffer) - partial.have:
            raise Fault("bad-part")
        partial.buffer[partial.have : partial.have + size] = frame.payload
        partial.have += size
        if bool(frame.flags & wire.MORE) != (partial.have < len(partial.buffer)):
            raise Fault("bad-part")
        if frame.flags & wire.MORE:
            return None
        self._partials[slot] = None
        self._partial_bytes -= len(partial.buffer)
        if of_reply and frame.ident not in self.outbox.waiting:
            return None  # the caller has given up in the meantime
        return partial.deliver(partial.buffer.toreadonly())

    def _check_stray_part(self, ident: int, of_reply: bool) -> None:
        """Check a part that belongs to no incomplete message. It is valid if its message is already
        complete, or if it belongs to the reply to an abandoned call. Raises Fault with code
        `bad-part` otherwise."""
        known = 0 < ident < self.outbox.next_ident if of_reply else ident in self._seen
        if not known:
            raise Fault("bad-part")

    def _on_cancel(self, frame: Frame) -> Event:
        if frame.ident not in self._seen:
            raise Fault("bad-id")
        return Cancelled(frame.ident)

    def _on_open(self, frame: Frame) -> Event | None:
        if frame.ident & 1 == self._role:
            raise Fault("bad-id")
        if not self._seen_streams.add(frame.ident >> 1):
            return None
        theirs = len(self.streams) - self._mine
        # Twice the limit is allowed, because an OPEN that is sent again may overtake an old FIN.
        if theirs >= 2 * self._limits.streams:
            raise Fault("too-many-streams")
        method, header = wire.decode_request(frame.head)
        priority = wire.PRIORITIES[frame.flags & wire.PRIORITY_MASK]
        return Opened(self._new_stream(frame.ident, priority, mine=False), method, header)

    def _stream_of(self, frame: Frame) -> LaneStream | None:
        """Return the stream that a frame belongs to. Return None if that stream has ended. Raises
        Fault with code `bad-id` if there was no such stream."""
        stream = self.streams.get(frame.ident)
        if stream is None:
            number, mine = frame.ident >> 1, frame.ident & 1 == self._role
            if not (0 < number < self._next_stream if mine else number in self._seen_streams):
                raise Fault("bad-id")
        return stream

    def _on_data(self, frame: Frame) -> Event | None:
        stream = self._stream_of(frame)
        if stream is None:
            return None
        held = stream.held
        fresh = stream.take_in(frame)
        self._link_received += fresh
        if self._link_received > self._link_granted:
            raise Fault("credit-exceeded")
        self._stream_bytes += stream.held - held
        if fresh and stream.held == held:  # bytes were discarded, so their credit is free again
            self._consumed(stream, fresh, unread=0)
        self._forget_if_done(stream)
        # A reader waits for the first byte and for the end, but not for more bytes.
        return StreamReady(stream) if not held or stream.receive_done else None

    def _on_credit(self, frame: Frame) -> Event | None:
        if frame.ident == 0:
            self.outbox.link_limit = max(self.outbox.link_limit, frame.offset)
            if self.outbox.starved:  # checking all streams is slow, and otherwise none is waiting
                self._feed_streams()
            return None
        found = self._stream_of(frame)
        if found is None:
            return None
        found.extend_limit(frame.offset)
        self.outbox.schedule(found)
        return StreamReady(found)

    def _on_reset(self, frame: Frame) -> Event | None:
        stream = self._stream_of(frame)
        if stream is None:
            return None
        code, _ = wire.decode_code(frame.head)
        stream.take_reset(code)
        dropped = stream.discard()
        self._consumed(stream, dropped, unread=dropped)
        self.outbox.schedule(stream)
        self._forget_if_done(stream)
        return StreamReady(stream)


HANDLERS: Final[Mapping[int, Callable[[Lane, Frame], Event | None]]] = {
    wire.GOAWAY: Lane._on_goaway,
    wire.PING: Lane._on_ping,
    wire.PONG: Lane._on_pong,
    wire.ACK: Lane._on_ack,
    wire.CALL: Lane._on_call,
    wire.POST: Lane._on_call,
    wire.REPLY: Lane._on_reply,
    wire.REFUSAL: Lane._on_refusal,
    wire.PART: Lane._on_part,
    wire.CANCEL: Lane._on_cancel,
    wire.OPEN: Lane._on_open,
    wire.DATA: Lane._on_data,
    wire.CREDIT: Lane._on_credit,
    wire.RESET: Lane._on_reset,
}


def _whole(frame: Frame) -> Bytes:
    """Return the payload of a message that consists of one frame. Raises Fault with code
    `bad-length` if the announced size differs."""
    size = len(frame.payload)
    if size != frame.offset:
        raise Fault("bad-length")
    return bytes(frame.payload) if size <= SMALL_PAYLOAD_BYTES else frame.payload

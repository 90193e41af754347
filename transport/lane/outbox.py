"""Send queue of a lane: priorities, fragments, and frames to send again. No I/O.

See docs/spec/lane.md, sections 4 and 5. Frames of the most urgent of the three priorities are
always sent first. Within one priority, messages are sent in the order in which they were queued,
and fragments of messages alternate with those of streams. All are sent on one connection, the
`carrier`. When another connection becomes the carrier, the frames that are still unacknowledged are
sent again on it, in their old order.
"""

from collections import deque
from math import inf
from typing import Any, Final

from ..defaults import FRAME_OVERHEAD_BYTES, FRAME_PAYLOAD_BYTES, SMALL_BATCH_BYTES
from . import frame as wire
from .connection import LaneConnection
from .frame import Bytes, Priority
from .meter import Allowance
from .stream import LaneStream, QueuedFrame


def _is_awaited(item: "OutgoingMessage | QueuedFrame") -> bool:
    """Return whether a queued item is (part of) a reply, or a call of which nothing has been
    sent."""
    if item.kind == wire.PART:
        return bool(item.flags & wire.OF_REPLY)
    if item.kind == wire.CALL:
        return isinstance(item, OutgoingMessage) and item.call is not None and not item.call.ident
    return item.kind in (wire.REPLY, wire.REFUSAL)


class OutCall:
    """A call of this node, from its start to its reply. `deadline` belongs to the code that does
    the I/O."""

    __slots__ = ("answered", "deadline", "ident", "priority")

    def __init__(self, priority: Priority) -> None:
        self.ident = 0  # 0 until the first frame is sent
        self.priority = priority
        self.answered = False  # the first frame of the reply has come
        self.deadline = inf


class OutgoingMessage:
    """A call, post or reply that is queued or partly sent."""

    __slots__ = ("call", "flags", "head", "ident", "kind", "payload", "sent")

    def __init__(
        self, kind: int, flags: int, ident: int, head: bytes, payload: Bytes, call: OutCall | None
    ) -> None:
        self.kind = kind
        self.flags = flags
        self.ident = ident
        self.head = head
        self.payload = payload
        self.sent = -1  # bytes of payload that were sent; -1 before the first frame
        self.call = call


_NOTHING: Final[deque[Any]] = deque(maxlen=0)
"""Placeholder for a queue that has not been used yet. It saves memory, because an empty deque takes
620 bytes and each link would have nine of them."""


class _Queue:
    """The three queues of one priority: frames to send again, messages, and streams."""

    __slots__ = ("messages", "resend", "streams", "turn")

    def __init__(self) -> None:
        self.resend: deque[QueuedFrame] = _NOTHING
        self.messages: deque[OutgoingMessage | QueuedFrame] = _NOTHING
        self.streams: deque[LaneStream] = _NOTHING
        self.turn = False  # whether it is a stream's turn, because a message was sent last

    def add(self, item: "OutgoingMessage | QueuedFrame") -> None:
        """Append a message or a single frame."""
        if self.messages is _NOTHING:
            self.messages = deque()
        self.messages.append(item)

    def add_stream(self, stream: LaneStream) -> None:
        """Append a stream that has data to send."""
        if self.streams is _NOTHING:
            self.streams = deque()
        self.streams.append(stream)


class Outbox:
    """The sending half of a lane.

    `link_limit` is the credit that the peer grants for all streams together, in bytes. Streams also
    wait while more than `backlog_limit` bytes are queued or unacknowledged, because these use this
    node's memory, whatever credit the peer grants.
    """

    def __init__(self, link_limit: int, backlog_limit: int) -> None:
        self.backlog = 0  # bytes queued or unacknowledged, including each frame's overhead
        self.waiting: dict[int, OutCall] = {}  # calls by id that were sent and wait for a reply
        self.next_ident = 1
        self.link_limit = link_limit
        self.starved = False  # whether a stream waits for `link_room`
        self._backlog_limit = backlog_limit
        self._link_sent = 0
        self._fragment = FRAME_PAYLOAD_BYTES
        self.carrier: LaneConnection | None = None
        self._queues = (_Queue(), _Queue(), _Queue())

    @property
    def link_room(self) -> int:
        """Number of bytes that all streams together may send now."""
        granted = self.link_limit - self._link_sent
        room = self._backlog_limit - self.backlog
        return granted if granted < room else room

    @property
    def at_stake(self) -> bool:
        """Whether calls wait for replies, or replies are unacknowledged. Unacknowledged frames of
        the present `carrier` are not considered, so this is exact only after the carrier was lost
        and its frames were queued again."""
        return bool(self.waiting) or any(
            _is_awaited(item)
            for queue in self._queues
            for items in (queue.messages, queue.resend)
            for item in items
        )

    def has_output(self, connection: LaneConnection) -> bool:
        """Return whether `take` would return frames for this connection."""
        if connection.urgent:
            return True
        if connection is self.carrier:
            for queue in self._queues:  # a generator would cost twice as much after every read
                if queue.resend or queue.messages or queue.streams:
                    return queue is not self._queues[wire.BULK] or not connection.bulk_waits
        return connection.ack_due

    def push(self, item: OutgoingMessage | QueuedFrame) -> None:
        """Append a message or a single frame to the queue of its priority."""
        self.backlog += FRAME_OVERHEAD_BYTES + len(item.head) + len(item.payload)
        self._queues[item.flags & wire.PRIORITY_MASK].add(item)

    def withdraw(self, call: OutCall) -> None:
        """Remove a call from the queue, if nothing of it has been sent yet."""
        messages = self._queues[call.priority].messages
        for item in messages:
            if isinstance(item, OutgoingMessage) and item.call is call:
                messages.remove(item)
                self.backlog -= FRAME_OVERHEAD_BYTES + len(item.head) + len(item.payload)
                return

    def schedule(self, stream: LaneStream) -> None:
        """Append a stream to the queue of its priority if it has something to send and is not in
        the queue yet."""
        if stream.scheduled:
            return
        if stream.has_output(self.link_room):
            stream.scheduled = True
            self._queues[stream.priority].add_stream(stream)
        elif stream.queued:
            self._starve()

    def _starve(self) -> None:
        """Record that a stream waits for room. If it waits for acknowledgements, send a ping,
        because the pong also acknowledges frames."""
        if not self.starved and self.backlog >= self._backlog_limit and self.carrier is not None:
            self.carrier.push_urgent(wire.PING)
        self.starved = True

    def acknowledged(self, freed: int) -> None:
        """Subtract acknowledged bytes from the backlog."""
        self.backlog -= freed

    def use(self, connection: LaneConnection | None) -> None:
        """Send counted frames on this connection from now on. None means that there is no
        connection.

        Unacknowledged frames of the previous connection are sent again, so that the peer may
        receive a frame on both. The peer recognizes duplicates by ids and offsets, and on each
        connection the order has no gaps.
        """
        if connection is self.carrier:
            return
        before, self.carrier = self.carrier, connection
        if before is None:
            return
        lost: tuple[list[QueuedFrame], ...] = ([], [], [])
        for entry in before.give_back():
            lost[entry.flags & wire.PRIORITY_MASK].append(entry)
        for queue, entries in zip(self._queues, lost, strict=True):
            if entries:
                queue.resend = deque([*entries, *queue.resend])

    def take(
        self,
        connection: LaneConnection,
        room: int,
        now: float,
        *,
        last_words: bool = False,
        allowance: Allowance | None = None,
    ) -> bytes:
        """Return encoded frames to write now: up to `room` bytes, plus at most one frame.

        A fragment has at most `room` bytes, or `SMALL_BATCH_BYTES` if that is more. If `last_words`
        is True, the link has ended and only urgent frames are sent. Urgent frames are not charged
        to the `allowance`.
        """
        fragment = room if room > SMALL_BATCH_BYTES else SMALL_BATCH_BYTES
        self._fragment = fragment if fragment < FRAME_PAYLOAD_BYTES else FRAME_PAYLOAD_BYTES
        carries = connection is self.carrier and not last_words
        received = connection.received
        pieces: list[Bytes] = []
        size = 0
        while (
            size < room and (entry := self._next(connection, carries, now, allowance)) is not None
        ):
            kind, flags, ident, offset, head, payload = entry
            length = len(head) + len(payload)
            sent = flags & wire.WIRE_MASK
            pieces.append(wire.PREFIX.pack(length, kind, sent, len(head), received, ident, offset))
            pieces.append(head)
            pieces.append(payload)
            size += wire.PREFIX_BYTES + length
            if kind >= wire.FIRST_COUNTED:
                connection.keep(entry, length, now)
            if allowance is not None:
                allowance.count(flags & wire.PRIORITY_MASK, wire.PREFIX_BYTES + length)
        if carries and (mark := connection.probe(now)):
            pieces.append(wire.PREFIX.pack(0, wire.PING, 0, 0, received, 0, mark))
        if not pieces and connection.ack_due and not last_words:
            pieces.append(wire.PREFIX.pack(0, wire.ACK, 0, 0, received, 0, 0))
        if pieces:
            connection.unreported = connection.unreported_bytes = 0
        return b"".join(pieces)

    def _next(
        self, connection: LaneConnection, carries: bool, now: float, allowance: Allowance | None
    ) -> QueuedFrame | None:
        if connection.urgent:
            return connection.urgent.pop(0)
        if not carries:
            return None
        for priority, queue in enumerate(self._queues):
            if not (queue.resend or queue.messages or queue.streams):
                continue
            if allowance is not None:
                if not allowance.left(priority):
                    continue
                self._fragment = min(self._fragment, allowance.piece(priority))
            if priority == wire.BULK:
                piece = connection.takes_bulk(now)
                if not piece:
                    return None
                self._fragment = min(self._fragment, piece)
            if queue.resend:
                return queue.resend.popleft()
            if queue.streams and (queue.turn or not queue.messages):
                entry = self._next_of_streams(queue, allowance)
                if entry is not None:
                    return entry
            if queue.messages:
                queue.turn = True
                return self._next_of_messages(queue.messages)
        return None

    def _next_of_messages(self, messages: deque[OutgoingMessage | QueuedFrame]) -> QueuedFrame:
        message = messages[0]
        if isinstance(message, QueuedFrame):
            messages.popleft()
            return message
        entry = self._first(message) if message.sent < 0 else self._part(message)
        if message.sent < len(message.payload):
            return entry._replace(flags=entry.flags | wire.MORE)
        messages.popleft()
        return entry

    def _first(self, message: OutgoingMessage) -> QueuedFrame:
        """Return a message's first frame. Its id is assigned here, so that ids are sent in
        ascending order."""
        if message.kind != wire.REPLY:
            message.ident = self.next_ident
            self.next_ident += 1
            if message.call is not None:
                message.call.ident = message.ident
                self.waiting[message.ident] = message.call
        payload = message.payload
        total = len(payload)
        if total > self._fragment:
            message.payload = memoryview(payload)
            payload = message.payload[: self._fragment]
        message.sent = len(payload)
        return QueuedFrame(message.kind, message.flags, message.ident, total, message.head, payload)

    def _part(self, message: OutgoingMessage) -> QueuedFrame:
        piece = message.payload[message.sent : message.sent + self._fragment]
        flags = message.flags | (wire.OF_REPLY if message.kind == wire.REPLY else 0)
        entry = QueuedFrame(wire.PART, flags, message.ident, message.sent, b"", piece)
        message.sent += len(piece)
        self.backlog += FRAME_OVERHEAD_BYTES
        return entry

    def _next_of_streams(self, queue: _Queue, allowance: Allowance | None) -> QueuedFrame | None:
        while queue.streams:
            stream = queue.streams.popleft()
            stream.scheduled = False
            room = self.link_room
            if not stream.has_output(room):  # another stream has used up the credit of the link
                self._starve()
            else:
                queue.turn = False
                entry = stream.next_entry(room, self._fragment)
                size = len(entry.payload)
                self._link_sent += size
                if allowance is not None and stream.lent:
                    allowance.lend(stream.priority, size)
                self.backlog += FRAME_OVERHEAD_BYTES + len(entry.head) + size
                self.schedule(stream)
                if stream.done:
                    stream.on_done(stream)
                return entry
        return None

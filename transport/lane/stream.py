"""State machine of one stream of a lane: byte offsets, credit, and the end of each direction. No
I/O.

Implements docs/spec/lane.md, section 6. `Lane` decides when a stream may send a frame, and manages
the credit of the whole link. This module handles only a single stream.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..defaults import FRAME_PAYLOAD_BYTES
from .frame import DATA, FIN, LAZY, OPEN, RESET, Bytes, Fault, Frame, Priority, encode_code


class QueuedFrame(NamedTuple):
    """A frame to be sent, without the fields that are determined only when it is sent."""

    kind: int
    flags: int
    ident: int
    offset: int
    head: bytes
    payload: Bytes


class Context(Protocol):
    """The object that does the I/O of a stream. It wakes the tasks that wait for the stream."""

    def wake(self) -> None: ...

    def wake_sender(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StreamWindows:
    """Credit of a stream, in bytes: that of this side and of the peer at first. The peer's grows up
    to `largest` while the reader keeps up."""

    send: int
    receive: int
    largest: int = 0


class LaneStream:
    """Both directions of a stream. `mine` is True if this side opened the stream. `on_done` is
    called when both directions have ended and the last frame was sent."""

    def __init__(
        self,
        ident: int,
        priority: Priority,
        *,
        mine: bool,
        windows: StreamWindows,
        on_done: "Callable[[LaneStream], None]",
    ) -> None:
        self.ident = ident
        self.priority = priority
        self.mine = mine
        self.on_done = on_done
        self.context: Context | None = None
        self.open_head: bytes | None = None  # the OPEN that has not left yet
        self.scheduled = False  # whether it is in its priority's rotation
        self.queued = 0  # bytes from the caller that have not left
        self.finishing = False  # `finish` was called
        self.send_done = False  # FIN or RESET was sent
        self.receive_done = False  # FIN or RESET was received
        self.failed: str | None = None  # code of the RESET, if one was sent or received
        self.carries_link = False  # whether it carries another link, which sends pings of its own
        self.lent = False  # whether it carries data that a relay forwards, which has its own cap
        self.held = 0  # bytes received but not read
        self._pieces: deque[memoryview] = deque()
        self._sent = 0
        self._limit = windows.send
        self._reset_due: str | None = None
        self._discarding = False
        self._chunks: deque[memoryview] = deque()
        self._received = 0
        self._window = self._granted = windows.receive
        self._largest = windows.largest
        self._read = 0

    def narrow(self, window: int) -> None:
        """Reduce the window of both directions below what the hellos announced. Both ends must do
        this before either of them sends or reads anything."""
        self._limit = min(self._limit, window)
        self._window = self._granted = self._largest = min(self._window, window)

    # Sending.

    @property
    def done(self) -> bool:
        """Whether both directions have ended, so that the lane can forget the stream."""
        return self.send_done and self.receive_done

    def write(self, data: Bytes) -> None:
        """Queue bytes, which must not change afterwards. The caller must bound `queued`."""
        if data:
            self._pieces.append(memoryview(data))
            self.queued += len(data)

    def finish(self) -> None:
        """Close this side's direction once the queued bytes are sent."""
        self.finishing = True

    def reset(self, code: str) -> None:
        """End both directions at once, and discard all queued and unread bytes.

        If both directions have already ended regularly, only unread bytes are discarded.
        """
        self._discarding = True
        if self.failed is not None or (self.receive_done and self.finishing):
            return  # a stream that has failed keeps its first code
        self.failed = code
        self._drop_queue()
        if not self.done:
            self._reset_due = code

    def discard(self) -> int:
        """Discard the unread bytes and return their number."""
        self._chunks.clear()
        dropped, self.held = self.held, 0
        self._read += dropped
        return dropped

    def extend_limit(self, limit: int) -> None:
        """Apply new credit from the peer. `limit` is the offset up to which this side may send. It
        never decreases."""
        self._limit = max(self._limit, limit)

    def has_output(self, link_room: int) -> bool:
        """Return whether `next_entry` would return a frame."""
        if self.open_head is not None or self._reset_due is not None:
            return True
        if self.send_done:
            return False
        if self.queued:
            return self._limit > self._sent and link_room > 0
        return self.finishing

    def next_entry(self, link_room: int, most: int = FRAME_PAYLOAD_BYTES) -> QueuedFrame:
        """Return the next frame to send, with up to `most` bytes of payload. Call this only if
        `has_output` returns True."""
        if self.open_head is not None:
            head, self.open_head = self.open_head, None
            return QueuedFrame(OPEN, self.priority, self.ident, 0, head, b"")
        if self._reset_due is not None:
            self.send_done = True
            head, self._reset_due = encode_code(self._reset_due), None
            return QueuedFrame(RESET, self.priority, self.ident, self._sent, head, b"")
        return self._next_data(min(most, self._limit - self._sent, link_room))

    def _next_data(self, room: int) -> QueuedFrame:
        payload = self._take_piece(room) if self.queued else b""
        offset, flags = self._sent, int(self.priority) | (LAZY if self.carries_link else 0)
        self._sent += len(payload)
        if self.finishing and not self.queued:
            flags |= FIN
            self.send_done = True
        return QueuedFrame(DATA, flags, self.ident, offset, b"", payload)

    def _take_piece(self, room: int) -> memoryview:
        piece = self._pieces[0]
        if len(piece) <= room:
            self._pieces.popleft()
        else:
            self._pieces[0] = piece[room:]
            piece = piece[:room]
        self.queued -= len(piece)
        return piece

    def _drop_queue(self) -> None:
        self._pieces.clear()
        self.queued = 0

    # Receiving.

    def take_in(self, frame: Frame) -> int:
        """Process a DATA frame and return how many of its bytes are new. Raises Fault with code
        `bad-offset` or `credit-exceeded` if the peer violates the protocol.

        A frame that is sent again has the same boundaries as before. If its offset is below the
        number of bytes received, the whole frame is therefore a duplicate.
        """
        size = len(frame.payload)
        if frame.offset < self._received or (self.receive_done and not size):
            return 0
        if frame.offset > self._received or self.receive_done:
            raise Fault("bad-offset")
        if self._received + size > self._granted:
            raise Fault("credit-exceeded")
        self._received += size
        if size and not self._discarding:
            self._chunks.append(memoryview(frame.payload))
            self.held += size
        elif size:
            self._read += size
        if frame.flags & FIN:
            self.receive_done = True
        return size

    def take_reset(self, code: str) -> None:
        """Process a RESET from the peer: end this side's direction too and discard queued bytes.
        The caller discards the unread bytes."""
        self.failed = self.failed or code
        self.receive_done = self._discarding = True
        self._drop_queue()
        if not self.send_done:
            self._reset_due = code

    @property
    def readable(self) -> bool:
        """Whether a reader has something to process: bytes, the end of the stream, or a failure."""
        return bool(self._chunks) or self.receive_done or self.failed is not None

    def read(self, limit: int) -> bytes:
        """Return up to `limit` received bytes, or b"" if there are none."""
        pieces: list[memoryview] = []
        room = limit
        while room > 0 and self._chunks:
            chunk = self._chunks[0]
            if len(chunk) <= room:
                self._chunks.popleft()
            else:
                self._chunks[0] = chunk[room:]
                chunk = chunk[:room]
            pieces.append(chunk)
            room -= len(chunk)
        data = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        self.held -= len(data)
        self._read += len(data)
        return data

    def read_into(self, target: memoryview) -> int:
        """Copy received bytes to the beginning of `target`, and return how many. They are copied
        once, where `read` joins them first."""
        at, room = 0, len(target)
        while at < room and self._chunks:
            chunk = self._chunks[0]
            if len(chunk) <= room - at:
                self._chunks.popleft()
            else:
                self._chunks[0] = chunk[room - at :]
                chunk = chunk[: room - at]
            target[at : at + len(chunk)] = chunk
            at += len(chunk)
        self.held -= at
        self._read += at
        return at

    def new_limit(self) -> int | None:
        """Return the new limit to grant to the peer, once half a window has been read; return None
        before that.

        The window doubles if few bytes are unread: then the reader waits for the peer, and a peer
        far away, or behind lost packets, needs a window for more than one round trip.
        """
        if self.receive_done or self._granted - self._read > self._window // 2:
            return None
        if self.held <= self._window // 8:
            self._window = max(self._window, min(2 * self._window, self._largest))
        self._granted = self._read + self._window
        return self._granted

"""Received data of a connection: bytes in order for the reader, segments beyond a gap, and the
window to announce.
"""

from .defaults import RECEIVE_BUFFER_BYTES, RECEIVE_BUFFER_MAX_BYTES, SACK_BLOCKS, SYN_WINDOW_BYTES
from .segment import TcpSegment

Block = tuple[int, int]
_Held = tuple[bytes, int, bool]  # data, end, fin

# Most connections never have a gap, and there are tens of thousands of connections. Until its first
# gap, a connection shares these empty objects with all others.
_NO_AHEAD: dict[int, _Held] = {}
_NO_RANGES: dict[int, int] = {}


class Inbox:
    """Receiving half of one connection. Sizes are in bytes."""

    __slots__ = (
        "_ahead",
        "_ahead_size",
        "_chunks",
        "_ends",
        "_read",
        "_round_began",
        "_round_read",
        "_starts",
        "edge",
        "fixed",
        "limit",
        "next",
        "sack",
        "size",
    )

    def __init__(self, limit: int = 0) -> None:
        self.fixed = bool(limit)  # whether SO_RCVBUF has set the limit, which then does not grow
        self.limit = limit or RECEIVE_BUFFER_BYTES // 2
        self.next = 0  # the next sequence number expected
        self.size = 0  # bytes ready for the reader
        self._chunks: list[bytes] = []
        self.edge = 0  # sequence number at the end of the announced window, which never shrinks
        self._ahead = _NO_AHEAD  # segments beyond a gap, by sequence number
        self._ahead_size = 0
        self._starts = _NO_RANGES  # contiguous ranges beyond a gap: start to end
        self._ends = _NO_RANGES  # the same ranges: end to start
        self.sack: tuple[Block, ...] = ()  # ranges beyond gaps to report, latest first
        self._read = 0  # bytes read in this round trip
        self._round_read = 0  # maximum of bytes read in one round trip
        self._round_began = 0.0

    def start(self, first: int) -> None:
        """Set the first sequence number of the peer's data, and the first window, which this side's
        SYN announces.
        """
        self.next = first
        self.edge = first + self.offer_first()

    def offer_first(self) -> int:
        """Return the window that a SYN announces."""
        return min(self.limit, SYN_WINDOW_BYTES)

    def window(self) -> int:
        """Return the window to announce in a segment that is sent now: the free space, or more if
        an earlier segment announced more.
        """
        free = self.limit - self.size - self._ahead_size
        edge = self.next + free
        if edge > self.edge:
            self.edge = edge
            return free
        return self.edge - self.next

    def could_offer(self, mss: int) -> bool:
        """Return whether to send a window update, because the reader has freed enough space (RFC
        9293, section 3.8.6.2.2; the factor is Linux's). `mss` is in bytes.
        """
        free = self.limit - self.size - self._ahead_size
        offered = self.edge - self.next
        return free >= 2 * offered and free - offered >= min(mss, self.limit // 2)

    def fits(self, segment: TcpSegment) -> bool:
        """Return whether a segment begins inside the announced window."""
        return self.next <= segment.seq <= max(self.edge, self.next)

    def take(self, segment: TcpSegment) -> bool:
        """Store the bytes of a segment. Return whether all data up to the peer's FIN has now
        arrived.
        """
        data, seq, fin = segment.data, segment.seq, segment.fin
        if seq > self.next:
            if seq not in self._ahead:
                self._keep(seq, data, fin)
            return False
        if seq < self.next:
            if seq + len(data) < self.next:
                return False
            data = data[self.next - seq :]
        if data:
            self._append(data)
        if not fin and self._starts:
            fin = self._join()
        if fin:
            self.next += 1
        return fin

    def _append(self, data: bytes) -> None:
        """Append the next bytes in order to the data for the reader."""
        self._chunks.append(data)
        self.size += len(data)
        self.next += len(data)

    def _keep(self, seq: int, data: bytes, fin: bool) -> None:
        """Store a segment beyond a gap, and update the ranges to report."""
        if self._ahead is _NO_AHEAD:
            self._ahead, self._starts, self._ends = {}, {}, {}
        end = seq + len(data) + fin
        self._ahead[seq] = data, end, fin
        self._ahead_size += len(data)
        start = self._ends.pop(seq, seq)
        beyond = self._starts.pop(end, end)
        self._starts[start] = beyond
        self._ends[beyond] = start
        known = [b for b in self.sack if b[1] < start or b[0] > beyond]
        self.sack = ((start, beyond), *known[: SACK_BLOCKS - 1])

    def _join(self) -> bool:
        """Append the segments whose gap has just been filled. Return whether they end with the
        peer's FIN.
        """
        beyond = self._starts.pop(self.next, None)
        if beyond is None:
            return False
        del self._ends[beyond]
        self.sack = tuple(b for b in self.sack if b[1] > beyond)
        fin = False
        while self.next < beyond and not fin:
            data, _, fin = self._ahead.pop(self.next)
            self._ahead_size -= len(data)
            self._append(data)
        return fin

    def holds(self, segment: TcpSegment) -> bool:
        """Return whether a segment has arrived before."""
        return segment.end <= self.next or segment.seq in self._ahead

    @property
    def torn(self) -> bool:
        """Whether the received data has a gap."""
        return bool(self._starts)

    def read(self, size: int) -> bytes:
        """Remove and return up to `size` bytes."""
        chunks = self._chunks
        if size >= self.size:
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self._chunks = []
        else:
            data = self._read_part(size)
        self.size -= len(data)
        self._read += len(data)
        return data

    def _read_part(self, size: int) -> bytes:
        """Remove and return `size` bytes. More than `size` bytes must be available."""
        chunks, rest, whole = self._chunks, size, 0
        while len(chunks[whole]) <= rest:
            rest -= len(chunks[whole])
            whole += 1
        parts = chunks[:whole]
        if rest:
            parts.append(chunks[whole][:rest])
            chunks[whole] = chunks[whole][rest:]
        del chunks[:whole]
        return b"".join(parts)

    def peek(self, size: int) -> bytes:
        """Return up to `size` bytes without removing them."""
        return b"".join(self._chunks)[:size]

    def adjust(self, now: float, rtt: float) -> None:
        """Raise the buffer limit if the program reads more bytes per round trip (`rtt` seconds), so
        that the window does not limit the sender (dynamic right-sizing, as in Linux).
        """
        if self.fixed or now - self._round_began < rtt:
            return
        if self._read > self._round_read:
            self._round_read = self._read
            # A sender in slow start doubles its rate in the round trip in which the new window
            # reaches it.
            wanted = 4 * self._read
            if wanted > self.limit:
                self.limit = min(wanted, RECEIVE_BUFFER_MAX_BYTES)
        self._read = 0
        self._round_began = now

    def fix(self, limit: int) -> None:
        """Set the limit to a fixed size (SO_RCVBUF), which no longer grows."""
        self.limit = limit
        self.fixed = True

    def drop(self) -> None:
        """Delete all data, because it will not be read."""
        self._chunks = []
        self._ahead, self._starts, self._ends = _NO_AHEAD, _NO_RANGES, _NO_RANGES
        self.sack = ()
        self.size = self._ahead_size = 0

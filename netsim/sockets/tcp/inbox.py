"""Received data: bytes in order for the reader, segments beyond a hole, the window to offer."""

from .defaults import RECEIVE_BUFFER_BYTES, RECEIVE_BUFFER_MAX_BYTES, SACK_BLOCKS, SYN_WINDOW_BYTES
from .segment import Segment

Block = tuple[int, int]
_Held = tuple[bytes, int, bool]  # data, end, fin

# Most connections never see a hole, and there are tens of thousands of connections. Until the first
# hole they share these empty objects.
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
        self.fixed = bool(limit)  # set by SO_RCVBUF: it does not grow
        self.limit = limit or RECEIVE_BUFFER_BYTES // 2
        self.next = 0  # the next sequence number expected
        self.size = 0  # ready for the reader
        self._chunks: list[bytes] = []
        self.edge = 0  # end of the offered window, which never shrinks
        self._ahead = _NO_AHEAD  # segments beyond a hole by sequence number
        self._ahead_size = 0
        self._starts = _NO_RANGES  # contiguous ranges beyond a hole
        self._ends = _NO_RANGES  # the same ones from their other side
        self.sack: tuple[Block, ...] = ()  # ranges beyond holes to report, latest first
        self._read = 0  # bytes read in this round trip
        self._round_read = 0  # the maximum of that over all round trips
        self._round_began = 0.0

    def start(self, first: int) -> None:
        """Set the first sequence number of the peer; our SYN offers a first window."""
        self.next = first
        self.edge = first + self.offer_first()

    def offer_first(self) -> int:
        """Return the window of a SYN."""
        return min(self.limit, SYN_WINDOW_BYTES)

    def window(self) -> int:
        """Return the window for a segment sent now: the free space, but never less than offered
        before.
        """
        free = self.limit - self.size - self._ahead_size
        edge = self.next + free
        if edge > self.edge:
            self.edge = edge
            return free
        return self.edge - self.next

    def could_offer(self, mss: int) -> bool:
        """Whether a reader has freed so much space that the peer should be told (RFC 9293,
        3.8.6.2.2; the factor is Linux's).
        """
        free = self.limit - self.size - self._ahead_size
        offered = self.edge - self.next
        return free >= 2 * offered and free - offered >= min(mss, self.limit // 2)

    def fits(self, segment: Segment) -> bool:
        """Whether a segment begins inside the offered window."""
        return self.next <= segment.seq <= max(self.edge, self.next)

    def take(self, segment: Segment) -> bool:
        """Store a segment's bytes; return whether they complete the data up to the peer's FIN."""
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
        self._chunks.append(data)
        self.size += len(data)
        self.next += len(data)

    def _keep(self, seq: int, data: bytes, fin: bool) -> None:
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
        """Append segments whose hole has been filled; return whether the FIN is reached."""
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

    def holds(self, segment: Segment) -> bool:
        """Whether all of a segment has arrived before."""
        return segment.end <= self.next or segment.seq in self._ahead

    @property
    def torn(self) -> bool:
        """Whether there is a hole."""
        return bool(self._starts)

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes."""
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
        """Return the same bytes as `read`, and keep them."""
        return b"".join(self._chunks)[:size]

    def adjust(self, now: float, rtt: float) -> None:
        """Grow with the amount that the reader takes in a round trip, so that the window is no
        limit (dynamic right-sizing, as in Linux).
        """
        if self.fixed or now - self._round_began < rtt:
            return
        if self._read > self._round_read:
            self._round_read = self._read
            # A sender in slow start doubles in the round trip that the new window takes to reach
            # it.
            wanted = 4 * self._read
            if wanted > self.limit:
                self.limit = min(wanted, RECEIVE_BUFFER_MAX_BYTES)
        self._read = 0
        self._round_began = now

    def fix(self, limit: int) -> None:
        """Fix the limit (SO_RCVBUF), which no longer grows."""
        self.limit = limit
        self.fixed = True

    def drop(self) -> None:
        """Drop all data: it will not be read."""
        self._chunks = []
        self._ahead, self._starts, self._ends = _NO_AHEAD, _NO_RANGES, _NO_RANGES
        self.sack = ()
        self.size = self._ahead_size = 0

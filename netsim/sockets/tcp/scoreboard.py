"""Record of the segments in flight: those received out of order (SACK, RFC 2018) and those lost
(RACK, RFC 8985).

Segments are indexed by sequence number, and by a serial number in the order of transmission. The
end of one segment is the key of the next, so that no search is necessary.
"""

from heapq import heappop, heappush
from typing import Final

from .defaults import INFINITY, REORDERED_SEGMENTS
from .segment import NO_STAMP

FLYING: Final = 0
SACKED: Final = 1
LOST: Final = 2
GONE: Final = 3  # acknowledged, or retransmitted as another flight

_INSTANT: Final = 1e-9  # tolerance in seconds for the rounding errors of sums of times


class Flight:
    """One transmission of a segment that is not yet acknowledged."""

    __slots__ = ("again", "data", "end", "fin", "sent_at", "seq", "state")

    def __init__(self, seq: int, end: int, data: bytes, fin: bool, now: float, again: bool) -> None:
        self.seq = seq
        self.end = end
        self.data = data
        self.fin = fin
        self.again = again  # whether it is a retransmission
        self.sent_at = now
        self.state = FLYING

    def split(self, size: int, now: float) -> "list[Flight]":
        """Return new flights that retransmit this segment at `now`. The data is split into parts of
        at most `size` bytes of payload.
        """
        data = self.data
        if len(data) <= size:
            return [Flight(self.seq, self.end, data, self.fin, now, True)]
        parts = []
        for start in range(0, len(data), size):
            part = data[start : start + size]
            last = start + size >= len(data)
            seq = self.seq + start
            end = self.end if last else seq + size
            parts.append(Flight(seq, end, part, self.fin and last, now, True))
        return parts


class Scoreboard:
    """All flights of one connection. Counts are in segments."""

    __slots__ = (
        "_beyond",
        "_flights",
        "_head",
        "_lost",
        "_newest",
        "_newest_end",
        "_order",
        "_ranges",
        "_rtt",
        "_tail",
        "pipe",
        "reordered",
        "sacked",
    )

    def __init__(self) -> None:
        self._flights: dict[int, Flight] = {}  # by sequence number
        self._order: dict[int, Flight] = {}  # by serial number of transmission
        self._head = 0  # first serial number in `_order`
        self._tail = 0  # next serial number
        self._lost: list[int] = []  # heap of sequence numbers; may hold stale ones
        self._ranges: dict[int, int] = {}  # contiguous sacked ranges: start to end
        self._beyond = 0  # end of the highest sacked segment
        # Time of sending, end and round trip of that delivered segment that was sent last.
        self._newest = NO_STAMP
        self._newest_end = 0
        self._rtt = 0.0
        self.pipe = 0  # segments assumed to be in the network
        self.sacked = 0
        self.reordered = False  # whether segments have overtaken each other

    def __bool__(self) -> bool:
        return bool(self._flights)

    def __len__(self) -> int:
        return len(self._flights)

    def add(self, flight: Flight) -> None:
        """Add a transmission or retransmission of a segment."""
        self._flights[flight.seq] = flight
        self._order[self._tail] = flight
        self._tail += 1
        self.pipe += 1

    def acknowledge(self, una: int, acked: int, least: float, now: float) -> int:
        """Remove the segments from `una` up to `acked`, which have arrived. Return the number of
        segments that were not known to be delivered before. `least` is the smallest round-trip time
        in seconds.
        """
        flights = self._flights
        delivered = 0
        while una < acked:
            flight = flights.pop(una, None)
            if flight is None:
                break
            una = flight.end
            state = flight.state
            flight.state = GONE
            if state == SACKED:
                self.sacked -= 1
                self._ranges.pop(flight.seq, None)
                continue
            delivered += 1
            if state == FLYING:
                self.pipe -= 1
            self._delivered(flight, least, now)
        if not flights:
            self._clear()
        return delivered

    def _clear(self) -> None:
        self._order.clear()
        self._ranges.clear()
        self._lost.clear()
        self._head = self._tail = 0
        self.pipe = self.sacked = 0

    def _delivered(self, flight: Flight, least: float, now: float) -> None:
        """Update the segment that was sent last of all delivered ones (RFC 8985, section 6.2, step
        2).

        `least` is the smallest round-trip time in seconds.
        """
        if flight.again:
            if now - flight.sent_at < least:
                return  # too early: the reply is to an earlier transmission
        elif flight.end < self._beyond:
            self.reordered = True
        sent = flight.sent_at
        if sent > self._newest or (sent == self._newest and flight.end > self._newest_end):
            self._newest = sent
            self._newest_end = flight.end
            self._rtt = now - sent

    def sack(self, blocks: tuple[tuple[int, int], ...], una: int, least: float, now: float) -> int:
        """Mark the ranges that the receiver reports as received. Return the number of segments that
        were not known to be delivered before.
        """
        delivered = 0
        for first, beyond in blocks:
            if first >= una and self._ranges.get(first) != beyond:
                delivered += self._sack_range(first, beyond, least, now)
        return delivered

    def _sack_range(self, first: int, beyond: int, least: float, now: float) -> int:
        """Mark one range as received, as `sack` does."""
        flights, ranges = self._flights, self._ranges
        delivered, seq = 0, first
        while seq < beyond:
            known = ranges.get(seq)
            if known is not None:  # marked before
                if seq != first:
                    del ranges[seq]
                seq = known
                continue
            flight = flights.get(seq)
            if flight is None:
                return delivered
            if flight.state != SACKED:
                delivered += 1
                if flight.state == FLYING:
                    self.pipe -= 1
                flight.state = SACKED
                self.sacked += 1
                self._delivered(flight, least, now)
            seq = flight.end
        ranges[first] = seq
        if seq > self._beyond:
            self._beyond = seq
        return delivered

    def overtaken(self, now: float, patience: float) -> float:
        """Mark segments as lost that were sent before a delivered segment and are more than
        `patience` seconds late.

        Return the time at which the next segment may count as lost, or infinity if there is none.
        """
        order = self._order
        while self._head < self._tail:
            flight = order[self._head]
            if flight.state == FLYING:
                if flight.sent_at > self._newest or (
                    flight.sent_at == self._newest and flight.end >= self._newest_end
                ):
                    return INFINITY
                due = flight.sent_at + self._rtt + patience
                if due - now > _INSTANT:
                    return due
                self._lose(flight)
            del order[self._head]
            self._head += 1
        return INFINITY

    def patience(self, least: float, recovering: bool) -> float:
        """Return how many seconds a segment may be late before it counts as lost (RFC 8985, section
        6.2, step 4).
        """
        if not self.reordered and (recovering or self.sacked >= REORDERED_SEGMENTS):
            return 0.0
        return least / 4

    def _lose(self, flight: Flight) -> None:
        """Mark a segment as lost."""
        flight.state = LOST
        self.pipe -= 1
        heappush(self._lost, flight.seq)

    def lose_all(self) -> None:
        """Mark every segment that is still in flight as lost, after a timeout."""
        for flight in self._flights.values():
            if flight.state == FLYING:
                self._lose(flight)
        self._order.clear()
        self._head = self._tail

    def lose_larger(self, size: int) -> None:
        """Mark segments with more than `size` bytes of payload as lost, because they exceed the
        path MTU.
        """
        for flight in self._flights.values():
            if flight.state == FLYING and len(flight.data) > size:
                self._lose(flight)

    def find_all(self) -> None:
        """Mark the lost segments as in flight again, because they were not really lost."""
        for flight in self._flights.values():
            if flight.state == LOST:
                flight.state = FLYING
                self.pipe += 1
                self._order[self._tail] = flight
                self._tail += 1
        self._lost.clear()

    def next_lost(self) -> Flight | None:
        """Return the first lost segment, which must be sent again, or None if there is none."""
        lost = self._lost
        while lost:
            flight = self._flights.get(lost[0])
            if flight is not None and flight.state == LOST:
                return flight
            heappop(lost)
        return None

    def last(self) -> Flight | None:
        """Return the segment sent last that is still in flight, for a tail loss probe. Return None
        if there is none.
        """
        order = self._order
        serial = self._tail - 1
        while serial >= self._head:
            flight = order[serial]
            if flight.state == FLYING:
                return flight
            serial -= 1
        return None

    def replace(self, flight: Flight) -> None:
        """Stop counting `flight`, because it is about to be sent again."""
        if flight.state == FLYING:
            self.pipe -= 1
        flight.state = GONE

    def __contains__(self, seq: int) -> bool:
        return seq in self._flights

"""Segments in flight and their fate: SACK (RFC 2018) and loss by time, RACK (RFC 8985).

Segments are indexed by their sequence number, and by a serial number in the order of sending. The
end of one segment is the key of the next, so nothing is searched.
"""

from heapq import heappop, heappush
from typing import Final

from .defaults import INFINITY, REORDERED_SEGMENTS
from .segment import NO_STAMP

FLYING: Final = 0
SACKED: Final = 1
LOST: Final = 2
GONE: Final = 3  # acknowledged, or sent again as another flight

_INSTANT: Final = 1e-9  # seconds: below the rounding errors of sums of times


class Flight:
    """One transmission of a segment that is not yet acknowledged."""

    __slots__ = ("again", "data", "end", "fin", "sent_at", "seq", "state")

    def __init__(self, seq: int, end: int, data: bytes, fin: bool, now: float, again: bool) -> None:
        self.seq = seq
        self.end = end
        self.data = data
        self.fin = fin
        self.again = again  # a retransmission
        self.sent_at = now
        self.state = FLYING

    def split(self, size: int, now: float) -> "list[Flight]":
        """Return the flights for a retransmission at `now`: one, or several if the route takes only
        `size` bytes each.
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
    """Flights of one connection. Counts are in segments."""

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
        self._order: dict[int, Flight] = {}  # by serial of sending
        self._head = 0
        self._tail = 0
        self._lost: list[int] = []  # heap of sequence numbers; may hold stale ones
        self._ranges: dict[int, int] = {}  # contiguous sacked ranges: first to end
        self._beyond = 0  # end of the highest sacked segment
        self._newest = NO_STAMP  # when the most recently sent of the delivered segments was sent
        self._newest_end = 0
        self._rtt = 0.0  # of that segment
        self.pipe = 0  # segments assumed to be in the network
        self.sacked = 0
        self.reordered = False  # segments have overtaken each other

    def __bool__(self) -> bool:
        return bool(self._flights)

    def __len__(self) -> int:
        return len(self._flights)

    def add(self, flight: Flight) -> None:
        """Add a segment that is sent or sent again."""
        self._flights[flight.seq] = flight
        self._order[self._tail] = flight
        self._tail += 1
        self.pipe += 1

    def acknowledge(self, una: int, acked: int, least: float, now: float) -> int:
        """Remove everything below `acked`, which has arrived; return the segments newly
        delivered.
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
        """Note which delivered segment was sent last (RFC 8985, 6.2 step 2).

        `least` is the smallest round trip seen.
        """
        if flight.again:
            if now - flight.sent_at < least:
                return  # too soon: a reply to the first transmission
        elif flight.end < self._beyond:
            self.reordered = True
        sent = flight.sent_at
        if sent > self._newest or (sent == self._newest and flight.end > self._newest_end):
            self._newest = sent
            self._newest_end = flight.end
            self._rtt = now - sent

    def sack(self, blocks: tuple[tuple[int, int], ...], una: int, least: float, now: float) -> int:
        """Mark ranges that the receiver has; return the segments newly delivered."""
        delivered = 0
        for first, beyond in blocks:
            if first >= una and self._ranges.get(first) != beyond:
                delivered += self._sack_range(first, beyond, least, now)
        return delivered

    def _sack_range(self, first: int, beyond: int, least: float, now: float) -> int:
        flights, ranges = self._flights, self._ranges
        delivered, seq = 0, first
        while seq < beyond:
            known = ranges.get(seq)
            if known is not None:  # visited before
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
        """Mark as lost the segments sent before a delivered one that are `patience` seconds late.

        Return when to call again; infinity if no segment is in doubt.
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
        """Return how late a segment may be before it counts as lost (RFC 8985, 6.2 step 4)."""
        if not self.reordered and (recovering or self.sacked >= REORDERED_SEGMENTS):
            return 0.0
        return least / 4

    def _lose(self, flight: Flight) -> None:
        flight.state = LOST
        self.pipe -= 1
        heappush(self._lost, flight.seq)

    def lose_all(self) -> None:
        """Mark everything not known to have arrived as lost, after a timeout."""
        for flight in self._flights.values():
            if flight.state == FLYING:
                self._lose(flight)
        self._order.clear()
        self._head = self._tail

    def lose_larger(self, size: int) -> None:
        """Mark segments with more than `size` bytes as lost: they will not arrive."""
        for flight in self._flights.values():
            if flight.state == FLYING and len(flight.data) > size:
                self._lose(flight)

    def find_all(self) -> None:
        """Mark the lost segments as in flight again: the losses were spurious."""
        for flight in self._flights.values():
            if flight.state == LOST:
                flight.state = FLYING
                self.pipe += 1
                self._order[self._tail] = flight
                self._tail += 1
        self._lost.clear()

    def next_lost(self) -> Flight | None:
        """Return the first segment to send again, or None."""
        lost = self._lost
        while lost:
            flight = self._flights.get(lost[0])
            if flight is not None and flight.state == LOST:
                return flight
            heappop(lost)
        return None

    def last(self) -> Flight | None:
        """Return the segment sent last, for a tail loss probe, or None."""
        order = self._order
        serial = self._tail - 1
        while serial >= self._head:
            flight = order[serial]
            if flight.state == FLYING:
                return flight
            serial -= 1
        return None

    def replace(self, flight: Flight) -> None:
        """Note that `flight` is about to be sent again."""
        if flight.state == FLYING:
            self.pipe -= 1
        flight.state = GONE

    def __contains__(self, seq: int) -> bool:
        return seq in self._flights

"""Remains of a connection for a minute after its end (RFC 9293, 3.3.2; RFC 6191)."""

from .connection import Connection
from .defaults import TIME_WAIT_S
from .segment import Segment


class TimeWait:
    """Answers late segments, so that neither they nor a lost last ACK do harm."""

    __slots__ = ("next", "nxt", "recent", "until")

    def __init__(self, connection: Connection, now: float) -> None:
        self.next = connection.inbox.next  # what the peer would send next
        self.nxt = connection.nxt
        self.recent = connection.recent
        self.until = now + TIME_WAIT_S

    def admits(self, syn: Segment) -> bool:
        """Whether a SYN belongs to a new connection, and is not a late copy from the old one."""
        return syn.syn and not syn.ack and (syn.seq >= self.next or syn.stamp > self.recent)

    def receive(self, segment: Segment, now: float) -> Segment | None:
        """Process a segment; return the reply, or None."""
        if segment.rst:
            self.until = now
            return None
        if segment.fin:
            self.until = now + TIME_WAIT_S
        if segment.fin or segment.syn or segment.data:
            return Segment(self.nxt, self.next, 0, b"", (), now, self.recent)
        return None

"""TIME-WAIT: the state of a connection for a minute after its end (RFC 9293, section 3.3.2; RFC
6191).
"""

from .connection import TcpConnection
from .defaults import TIME_WAIT_S
from .segment import TcpSegment


class TimeWait:
    """Connection in TIME-WAIT, which replies to late segments. If the last ACK was lost, the peer
    sends its FIN again and gets another ACK.
    """

    __slots__ = ("next", "nxt", "recent", "until")

    def __init__(self, connection: TcpConnection, now: float) -> None:
        self.next = connection.inbox.next  # next sequence number of the peer
        self.nxt = connection.nxt  # next sequence number of this side
        self.recent = connection.recent
        self.until = now + TIME_WAIT_S

    def admits(self, syn: TcpSegment) -> bool:
        """Return whether a segment is the SYN of a new connection, and not a late copy of a SYN of
        the old connection.
        """
        return syn.syn and not syn.ack and (syn.seq >= self.next or syn.stamp > self.recent)

    def receive(self, segment: TcpSegment, now: float) -> TcpSegment | None:
        """Process a segment. Return the reply, or None if it gets none."""
        if segment.rst:
            self.until = now
            return None
        if segment.fin:
            self.until = now + TIME_WAIT_S
        if segment.fin or segment.syn or segment.data:
            return TcpSegment(self.nxt, self.next, 0, b"", (), now, self.recent)
        return None

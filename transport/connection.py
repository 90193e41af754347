"""What a lane keeps of each connection: counts, what is not acknowledged, its pings. No I/O.

docs/spec/lane.md, section 5. A link may have several connections at once. One of them, the
outbox's `carrier`, takes the counted frames of this side; all of them bring the peer's, and each
answers for its own count.
"""

from collections import deque
from math import inf

from . import frame as wire
from .defaults import (
    ACK_BYTES,
    ACK_FRAMES,
    DOUBT_RTTS,
    DOUBT_S,
    FRAME_OVERHEAD_BYTES,
    PING_S,
    SLEPT_S,
    STALL_S,
    UNKNOWN_RTT_S,
)
from .frame import Cutter, Fault
from .lanestream import Entry

_COUNT = 0xFFFFFFFF
_TICK_S = 0.05  # no finer than this


class Connection:
    """One connection under a lane. `idle_s` and `silent_s` are those of `Limits`."""

    __slots__ = (
        "_acked",
        "_least_idle_s",
        "_looked",
        "_ping_mark",
        "_ping_sent",
        "_pinged",
        "_sent",
        "_silent_s",
        "_ticked",
        "_unacked",
        "cutter",
        "heard",
        "idle_s",
        "least_rtt",
        "received",
        "rtt",
        "unreported",
        "unreported_bytes",
        "urgent",
    )

    def __init__(self, *, idle_s: float, silent_s: float, now: float) -> None:
        self.cutter = Cutter()
        self.rtt: float | None = None  # seconds, the last ping's
        self.least_rtt: float | None = None
        self.heard = now  # when the last byte came
        self.received = 0  # counted frames, as the next frame out tells
        self.unreported = 0
        self.unreported_bytes = 0
        # A peer that pings and does not read must not grow it: the oldest falls out.
        self.urgent: deque[Entry] = deque(maxlen=8)
        self.idle_s = self._least_idle_s = idle_s
        self._silent_s = silent_s
        self._unacked: deque[Entry | None] = deque()  # None: leaves by another one again
        self._sent = 0
        self._acked = 0
        self._ticked = now
        self._pinged = now
        self._ping_sent: float | None = None
        self._ping_mark = 0
        self._looked = -inf
        self.ping(now)

    # Counted frames.

    @property
    def ack_due(self) -> bool:
        """Whether the peer should be told of what has come, by a frame of its own if need be."""
        return self.unreported >= ACK_FRAMES or self.unreported_bytes >= ACK_BYTES

    @property
    def unacknowledged(self) -> bool:
        """Whether counted frames are under way."""
        return bool(self._unacked)

    def keep(self, entry: Entry) -> None:
        """A counted frame leaves: it is kept until the peer says that it has it."""
        self._sent = (self._sent + 1) & _COUNT
        self._unacked.append(entry)

    def count(self, size: int) -> None:
        """A counted frame of the peer's has come."""
        self.received = (self.received + 1) & _COUNT
        self.unreported += 1
        self.unreported_bytes += size

    def acknowledge(self, received: int) -> int:
        """The peer has so many of our counted frames; the bytes that need not be kept any
        more, with each frame's overhead. Raises Fault."""
        fresh = (received - self._acked) & _COUNT
        if not fresh:
            return 0
        if fresh > len(self._unacked):
            raise Fault("bad-count")
        self._acked = received
        freed = 0
        for _ in range(fresh):
            entry = self._unacked.popleft()
            if entry is not None:
                freed += FRAME_OVERHEAD_BYTES + len(entry.head) + len(entry.payload)
        return freed

    def give_back(self) -> list[Entry]:
        """What may be lost, to be sent again elsewhere; acknowledgements may still come."""
        lost = [entry for entry in self._unacked if entry is not None]
        self._unacked = deque([None] * len(self._unacked))
        return lost

    # Urgent frames: outside the count, before everything else, lost with the connection.

    def push_urgent(self, kind: int, *, offset: int = 0, head: bytes = b"") -> None:
        """Queue one."""
        self.urgent.append(Entry(kind, 0, 0, offset, head, b""))

    # Time.

    def ping(self, now: float) -> None:
        """Ask for a sign of life, and for the round trip."""
        self._ping_sent = self._pinged = now
        self._ping_mark = self._ping_mark + 1 & 0xFFFF  # 0 marks the outbox's own pings
        self.push_urgent(wire.PING, offset=self._ping_mark + 1)

    def ping_soon(self, now: float) -> None:
        """The same, unless one is out."""
        if self._ping_sent is None:
            self.ping(now)

    def look(self, now: float) -> None:
        """The network may be another than before: is the peer still there?"""
        self._looked = now
        self.ping_soon(now)

    @property
    def unseen(self) -> bool:
        """Nothing has come since `look`."""
        return self.heard <= self._looked

    def ponged(self, offset: int, now: float) -> None:
        """A pong has come."""
        if self._ping_sent is None or offset != self._ping_mark + 1:
            return
        self.rtt = max(0.0, now - self._ping_sent)
        self.least_rtt = self.rtt if self.least_rtt is None else min(self.least_rtt, self.rtt)
        self._ping_sent = None

    def forgive(self, now: float) -> bool:
        """A tick that comes late means that this side's loop stood still, and bytes of the
        peer's may be waiting unread: that time does not count against the peer. Returns whether
        it was so long that the machine may have slept."""
        late = now - self._ticked
        if late > STALL_S:
            self.heard = min(now, self.heard + late)
            self._ticked = now
        return late > SLEPT_S

    def tick(self, now: float) -> float:
        """Ping when the peer is quiet; returns when to come again (on the same clock)."""
        if self.forgive(now):
            self.look(now)
        if self._ping_sent is None:
            ping_at = min(self.heard + self._quiet_for(), self._pinged + PING_S)
            if now < ping_at:
                self._ticked = ping_at
                return ping_at
            self.ping(now)
        self._ticked = max(now + _TICK_S, min(self.heard + self._silent_s, now + self._look()))
        return self._ticked

    def _quiet_for(self) -> float:
        """With frames under way nobody waits for long: a path that has died shows."""
        return self.idle_s if not self._unacked else min(self.idle_s, self._look())

    def _look(self) -> float:
        return DOUBT_S + DOUBT_RTTS * (UNKNOWN_RTT_S if self.rtt is None else self.rtt)

    def is_silent(self, now: float) -> bool:
        """Whether it counts as lost: nothing came for long, and a ping has had its time."""
        sent = self._ping_sent
        if sent is None or now < self.heard + self._silent_s:
            return False
        return now >= sent + max(self._silent_s - self._least_idle_s, self._look())

    def is_overdue(self, now: float) -> bool:
        """Whether frames are under way, and nothing has come for longer than round trips take."""
        return self.unacknowledged and now >= self.heard + self._look()

    def is_unanswered(self, now: float) -> bool:
        """Whether a ping has been out for longer than round trips take, whatever else has come:
        the way there may be cut, and the way back not."""
        sent = self._ping_sent
        return sent is not None and now >= sent + self._look()

    def is_doubtful(self, now: float) -> bool:
        """Whether another connection, if there is one, should be used: a ping has been out for
        longer than round trips take."""
        sent = self._ping_sent
        return sent is not None and now >= max(sent, self.heard) + self._look()

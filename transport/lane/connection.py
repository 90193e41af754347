"""State that a lane keeps for each connection: counts, unacknowledged frames, pings. No I/O.

docs/spec/lane.md, section 5. A link may have several connections at once. One of them, the
outbox's `carrier`, takes the counted frames of this side. All of them bring the peer's frames, and
each acknowledges its own count.
"""

from collections import deque
from math import inf

from ..defaults import (
    ACK_BYTES,
    ACK_FRAMES,
    DOUBT_RTTS,
    DOUBT_S,
    FRAME_OVERHEAD_BYTES,
    FRAME_PAYLOAD_BYTES,
    HINTED_S,
    PING_S,
    PROBED_BYTES,
    SLEPT_S,
    STALL_S,
    UNKNOWN_RTT_S,
)
from . import frame as wire
from .frame import Cutter, Fault, Priority
from .queueing import Yielding
from .stream import Entry

_COUNT = 0xFFFFFFFF
_PROBE = 1 << 32  # marks of pings behind bulk start here; all other marks are below
_URGENT = 8  # uncounted frames that may wait, a count
_TICK_S = 0.05  # the shortest time between two ticks


class Connection:
    """One connection under a lane. `idle_s` and `silent_s` are those of `Limits`. `yielding` bounds
    the bulk in flight (None: it is unbounded)."""

    __slots__ = (
        "_hinted",
        "_least_idle_s",
        "_looked",
        "_ping_mark",
        "_ping_sent",
        "_pinged",
        "_pressing",
        "_probed",
        "_probes",
        "_sent",
        "_silent_s",
        "_ticked",
        "_unacked",
        "acked",
        "bulk_at",
        "bulk_bytes",
        "bulk_waits",
        "cutter",
        "heard",
        "idle_s",
        "intake",
        "least_rtt",
        "received",
        "rtt",
        "unreported",
        "unreported_bytes",
        "urgent",
        "yielding",
    )

    def __init__(
        self, *, idle_s: float, silent_s: float, now: float, yielding: Yielding | None = None
    ) -> None:
        self.cutter = Cutter()
        self.intake: list[int] | None = None  # bytes by class, if a shaper counts them
        self.rtt: float | None = None  # seconds, measured by the last ping
        self.least_rtt: float | None = None
        self.heard = now  # when the last byte came
        self.received = 0  # counted frames, as the next outgoing frame reports
        self.unreported = 0
        self.unreported_bytes = 0
        self.urgent: list[Entry] = []
        self.idle_s = self._least_idle_s = idle_s
        self._silent_s = silent_s
        # An int stands for that many frames that now leave by another connection. A peer that
        # acknowledges nothing and makes us switch back and forth must not grow this frame by frame.
        self._unacked: deque[Entry | int] = deque()
        self._sent = 0
        self._pressing = 0  # unacknowledged frames that a caller may wait for
        self.acked = 0  # frames sent that the peer has acknowledged
        self._ticked = now
        self._pinged = now
        self._ping_sent: float | None = None
        self._ping_mark = 0
        self.yielding = yielding
        self.bulk_bytes = 0  # bytes of bulk in flight
        self.bulk_waits = False  # for an acknowledgement, or until the time
        self.bulk_at = inf  # in this field
        self._probes: list[int] = []  # marks of pings in flight behind bulk
        self._probed = now
        self._looked = -inf
        self._hinted = False
        self.ping(now)

    # Counted frames.

    @property
    def ack_due(self) -> bool:
        """Whether the peer is due an acknowledgement, if need be in a frame of its own."""
        return self.unreported >= ACK_FRAMES or self.unreported_bytes >= ACK_BYTES

    @property
    def unacknowledged(self) -> bool:
        """Whether counted frames are in flight."""
        return bool(self._unacked)

    def keep(self, entry: Entry, length: int, now: float) -> None:
        """Keep a counted frame that leaves until the peer acknowledges it. `length` is the size of
        its head and payload in bytes."""
        self._sent = (self._sent + 1) & _COUNT
        self._unacked.append(entry)
        self._pressing += _is_pressing(entry)
        if entry.flags & wire.PRIORITY_MASK == wire.BULK:
            size = FRAME_OVERHEAD_BYTES + length
            self.bulk_bytes += size
            if self.yielding is not None:
                self.yielding.spend(size, now)

    def count(self, size: int) -> None:
        """Count a frame received from the peer, of `size` bytes."""
        self.received = (self.received + 1) & _COUNT
        self.unreported += 1
        self.unreported_bytes += size

    def acknowledge(self, received: int) -> int:
        """Note that the peer has received this many of our counted frames, modulo 2**32. Return the
        bytes that need not be kept any more, overhead included. Raises Fault (`bad-count`)."""
        fresh = (received - self.acked) & _COUNT
        if not fresh:
            return 0
        if fresh > (self._sent - self.acked) & _COUNT:
            raise Fault("bad-count")
        self.acked = received
        freed = 0
        while fresh:
            entry = self._unacked.popleft()
            if isinstance(entry, int):
                if entry > fresh:
                    self._unacked.appendleft(entry - fresh)
                fresh -= min(entry, fresh)
                continue
            fresh -= 1
            self._pressing -= _is_pressing(entry)
            size = FRAME_OVERHEAD_BYTES + len(entry.head) + len(entry.payload)
            freed += size
            if entry.flags & wire.PRIORITY_MASK == wire.BULK:
                self.bulk_bytes -= size
                self.bulk_waits = False
        return freed

    def give_back(self) -> list[Entry]:
        """Return the frames that may be lost, to be sent again elsewhere. They may still be
        acknowledged."""
        lost = [entry for entry in self._unacked if not isinstance(entry, int)]
        count = (self._sent - self.acked) & _COUNT
        self._unacked = deque([count] if count else ())
        self._pressing = 0
        self.bulk_bytes = 0
        self.bulk_waits = False
        return lost

    # Bulk.

    def takes_bulk(self, now: float) -> int:
        """Return the largest piece of bulk that may leave; 0 until a pong or until `bulk_at`."""
        yielding = self.yielding
        if yielding is None:
            return FRAME_PAYLOAD_BYTES
        if yielding.room(self.bulk_bytes, now) > 0:
            self.bulk_at = inf
            return yielding.piece
        self.bulk_waits = True
        self.bulk_at = yielding.next_at(self.bulk_bytes, now)
        return 0

    def probe(self, now: float) -> int:
        """Return the mark of a ping to send behind bulk, or 0 if none is due."""
        if self.yielding is None or self.bulk_bytes < PROBED_BYTES:
            return 0
        if self._probes and now < self._probed + self.yielding.sample_s:
            return 0
        mark = self._probes[-1] + 1 if self._probes else _PROBE
        self._probes.append(mark)
        self._probed = now
        self.yielding.begin(self.bulk_bytes, now)
        return mark

    # Urgent frames: not counted, sent before everything else, and lost with the connection.

    def push_urgent(self, kind: int, *, offset: int = 0, head: bytes = b"") -> None:
        """Queue an urgent frame."""
        self.urgent.append(Entry(kind, 0, 0, offset, head, b""))
        if len(self.urgent) > _URGENT:  # bounds what a peer that pings and does not read can queue
            del self.urgent[0]

    # Time.

    def ping(self, now: float) -> None:
        """Send a ping, which also measures the round trip."""
        self._ping_sent = self._pinged = now
        self._ping_mark = self._ping_mark + 1 & 0xFFFF  # 0 marks the outbox's own pings
        self.push_urgent(wire.PING, offset=self._ping_mark + 1)

    def ping_soon(self, now: float) -> None:
        """Send a ping unless one is in flight."""
        if self._ping_sent is None:
            self.ping(now)

    def look(self, now: float) -> None:
        """Check whether the peer is still there after a possible change of the network."""
        self._looked = now
        self.ping_soon(now)

    def hint(self, now: float) -> None:
        """Check this connection with a short timeout: the peer has left it for a worse one, or
        replies on another. That is most of the evidence for a dead path already."""
        self._hinted = True
        self.ping_soon(now)

    @property
    def unseen(self) -> bool:
        """Whether nothing has been received since `look`."""
        return self.heard <= self._looked

    def ponged(self, offset: int, now: float) -> None:
        """Handle a pong."""
        if self._probes and offset == self._probes[0] and self.yielding is not None:
            del self._probes[0]
            self.bulk_waits = False
            self.yielding.end(now)
        if self._ping_sent is None or offset != self._ping_mark + 1:
            return
        self.rtt = max(0.0, now - self._ping_sent)
        self.least_rtt = self.rtt if self.least_rtt is None else min(self.least_rtt, self.rtt)
        self._ping_sent = None
        self._hinted = False

    def forgive(self, now: float) -> bool:
        """Discount the time for which this side's loop stood still, because the peer's bytes may be
        waiting unread. A late tick shows it. Return whether the machine may have slept."""
        late = now - self._ticked
        if late > STALL_S:
            self.heard = min(now, self.heard + late)
            self._ticked = now
        return late > SLEPT_S

    def tick(self, now: float) -> float:
        """Ping if the peer is quiet. Return when the next tick is due, on the same clock."""
        if self.forgive(now):
            self.look(now)
        if self._ping_sent is None:
            ping_at = min(self.heard + self._quiet_for(), self._pinged + PING_S)
            if now < ping_at:
                self._ticked = ping_at
                return ping_at
            self.ping(now)
        sent = now if self._ping_sent is None else self._ping_sent
        self._ticked = max(now + _TICK_S, min(self.heard + self._silent_s, sent + self._look()))
        return self._ticked

    def look_at(self, now: float) -> float:
        """Return when a frame that leaves now should have been acknowledged."""
        return now + self._look() if self._pressing else inf

    def _quiet_for(self) -> float:
        """Return the seconds of silence until a ping is due.

        They are few while a caller waits for frames in flight, so that a dead path shows soon. The
        acknowledgement of other frames can wait.
        """
        return min(self.idle_s, self._look()) if self._pressing else self.idle_s

    def _look(self) -> float:
        rtt = UNKNOWN_RTT_S if self.rtt is None else self.rtt
        return HINTED_S + rtt if self._hinted else DOUBT_S + DOUBT_RTTS * rtt

    def is_silent(self, now: float) -> bool:
        """Whether the connection counts as lost: long silence, and an overdue pong."""
        sent = self._ping_sent
        if sent is None or now < self.heard + self._silent_s:
            return False
        return now >= sent + max(self._silent_s - self._least_idle_s, self._look())

    def is_outrun(self, other: "Connection") -> bool:
        """Whether the other connection has received something since a ping here went unanswered."""
        sent = self._ping_sent
        return sent is not None and other.heard > max(sent, self.heard)

    def is_overdue(self, now: float) -> bool:
        """Whether frames are in flight and the peer has been silent for longer than a few round
        trips."""
        return self._pressing > 0 and now >= self.heard + self._look()

    def is_unanswered(self, now: float) -> bool:
        """Whether a pong is overdue, even if other frames have come: only the direction to the peer
        may be broken."""
        sent = self._ping_sent
        return sent is not None and now >= sent + self._look()

    def is_doubtful(self, now: float) -> bool:
        """Whether another connection, if there is one, should be used: a pong is overdue and
        nothing else has come either."""
        sent = self._ping_sent
        return sent is not None and now >= max(sent, self.heard) + self._look()


def _is_pressing(entry: Entry) -> bool:
    """Return whether the loss of a frame must show soon.

    Loss of posts and replies may show later. A caller that waits for a reply has its own call in
    flight, which shows a dead path on its side.
    """
    lazy = entry.kind in (wire.POST, wire.REPLY, wire.REFUSAL, wire.CANCEL)
    return not lazy or entry.flags & wire.PRIORITY_MASK == Priority.ACTIVATION

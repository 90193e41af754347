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
    FRAME_PAYLOAD_BYTES,
    HINTED_S,
    PING_S,
    PROBED_BYTES,
    SLEPT_S,
    STALL_S,
    UNKNOWN_RTT_S,
)
from .frame import Cutter, Fault, Priority
from .lanestream import Entry
from .queueing import Yielding

_COUNT = 0xFFFFFFFF
_PROBE = 1 << 32  # above it the marks of pings that bulk waits for, below it all others
_URGENT = 8  # uncounted frames that may wait
_TICK_S = 0.05  # no finer than this


class Connection:
    """One connection under a lane. `idle_s` and `silent_s` are those of `Limits`; `yielding` bounds
    the bulk under way (None: nothing does)."""

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
        self.intake: list[int] | None = None  # bytes by class, where somebody counts them
        self.rtt: float | None = None  # seconds, the last ping's
        self.least_rtt: float | None = None
        self.heard = now  # when the last byte came
        self.received = 0  # counted frames, as the next frame out tells
        self.unreported = 0
        self.unreported_bytes = 0
        self.urgent: list[Entry] = []
        self.idle_s = self._least_idle_s = idle_s
        self._silent_s = silent_s
        # A number stands for so many that leave by another one again: who acknowledges nothing
        # and makes us change to and fro must not have us count them one by one.
        self._unacked: deque[Entry | int] = deque()
        self._sent = 0
        self._pressing = 0  # unacknowledged frames that a caller may wait for
        self.acked = 0  # of the frames sent, as the peer has told
        self._ticked = now
        self._pinged = now
        self._ping_sent: float | None = None
        self._ping_mark = 0
        self.yielding = yielding
        self.bulk_bytes = 0  # of bulk, under way
        self.bulk_waits = False  # for something to be acknowledged, or for
        self.bulk_at = inf  # this time
        self._probes: list[int] = []  # marks of pings that are out for bulk
        self._probed = now
        self._looked = -inf
        self._hinted = False
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

    def keep(self, entry: Entry, length: int, now: float) -> None:
        """A counted frame leaves, its head and payload `length` bytes: it is kept until the peer
        says that it has it."""
        self._sent = (self._sent + 1) & _COUNT
        self._unacked.append(entry)
        self._pressing += _is_pressing(entry)
        if entry.flags & wire.PRIORITY_MASK == wire.BULK:
            size = FRAME_OVERHEAD_BYTES + length
            self.bulk_bytes += size
            if self.yielding is not None:
                self.yielding.spend(size, now)

    def count(self, size: int) -> None:
        """A counted frame of the peer's has come."""
        self.received = (self.received + 1) & _COUNT
        self.unreported += 1
        self.unreported_bytes += size

    def acknowledge(self, received: int) -> int:
        """The peer has so many of our counted frames; the bytes that need not be kept any
        more, with each frame's overhead. Raises Fault."""
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
        """What may be lost, to be sent again elsewhere; acknowledgements may still come."""
        lost = [entry for entry in self._unacked if not isinstance(entry, int)]
        count = (self._sent - self.acked) & _COUNT
        self._unacked = deque([count] if count else ())
        self._pressing = 0
        self.bulk_bytes = 0
        self.bulk_waits = False
        return lost

    # Bulk.

    def takes_bulk(self, now: float) -> int:
        """The largest piece of bulk that may leave; 0: a pong or `bulk_at` brings the next look."""
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
        """The mark of a ping to send behind bulk, 0 where none is due."""
        if self.yielding is None or self.bulk_bytes < PROBED_BYTES:
            return 0
        if self._probes and now < self._probed + self.yielding.sample_s:
            return 0
        mark = self._probes[-1] + 1 if self._probes else _PROBE
        self._probes.append(mark)
        self._probed = now
        self.yielding.begin(self.bulk_bytes, now)
        return mark

    # Urgent frames: outside the count, before everything else, lost with the connection.

    def push_urgent(self, kind: int, *, offset: int = 0, head: bytes = b"") -> None:
        """Queue one."""
        self.urgent.append(Entry(kind, 0, 0, offset, head, b""))
        if len(self.urgent) > _URGENT:  # a peer that pings and does not read must not grow it
            del self.urgent[0]

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

    def hint(self, now: float) -> None:
        """The peer has left this one for a worse, or answers on another: is it well? Most of the
        doubt is there."""
        self._hinted = True
        self.ping_soon(now)

    @property
    def unseen(self) -> bool:
        """Nothing has come since `look`."""
        return self.heard <= self._looked

    def ponged(self, offset: int, now: float) -> None:
        """A pong has come."""
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
        sent = now if self._ping_sent is None else self._ping_sent
        self._ticked = max(now + _TICK_S, min(self.heard + self._silent_s, sent + self._look()))
        return self._ticked

    def look_at(self, now: float) -> float:
        """When what leaves now should have been acknowledged."""
        return now + self._look() if self._pressing else inf

    def _quiet_for(self) -> float:
        """Return the seconds of silence until a ping is due.

        They are few while a caller waits for frames under way, so that a dead path shows soon. The
        acknowledgement of other frames has no hurry.
        """
        return min(self.idle_s, self._look()) if self._pressing else self.idle_s

    def _look(self) -> float:
        rtt = UNKNOWN_RTT_S if self.rtt is None else self.rtt
        return HINTED_S + rtt if self._hinted else DOUBT_S + DOUBT_RTTS * rtt

    def is_silent(self, now: float) -> bool:
        """Whether it counts as lost: nothing came for long, and a ping has had its time."""
        sent = self._ping_sent
        if sent is None or now < self.heard + self._silent_s:
            return False
        return now >= sent + max(self._silent_s - self._least_idle_s, self._look())

    def is_outrun(self, other: "Connection") -> bool:
        """Whether the other has been heard of since a ping was sent here in vain."""
        sent = self._ping_sent
        return sent is not None and other.heard > max(sent, self.heard)

    def is_overdue(self, now: float) -> bool:
        """Whether frames are under way, and nothing has come for longer than round trips take."""
        return self._pressing > 0 and now >= self.heard + self._look()

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


def _is_pressing(entry: Entry) -> bool:
    """Return whether the loss of a frame must show soon.

    No caller waits for news. A caller that waits for an answer has its own call under way, which
    shows a dead path on its side.
    """
    lazy = entry.kind in (wire.POST, wire.REPLY, wire.REFUSAL, wire.CANCEL)
    return not lazy or entry.flags & wire.PRIORITY_MASK == Priority.ACTIVATION

"""State that a lane keeps for each of its connections: frame counts, unacknowledged frames, and
pings. No I/O.

See docs/spec/lane.md, section 5. A link may have several connections at once. This side sends its
counted frames on only one of them, the outbox's `carrier`. Frames of the peer may arrive on any of
them. A frame is counted and acknowledged on the connection on which it arrived.
"""

from collections import deque
from math import inf

from ..defaults import (
    ACK_BYTES,
    ACK_FRAMES,
    DOUBT_RTTS,
    DOUBT_S,
    EASE_S,
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
from .stream import QueuedFrame

_COUNT = 0xFFFFFFFF
_PROBE = 1 << 32  # lowest mark of pings behind bulk; the marks of other pings are smaller
_URGENT = 8  # largest number of urgent frames that are queued
_TICK_S = 0.05  # the shortest time between two ticks


class LaneConnection:
    """One connection that carries a lane. `idle_s` and `silent_s` have the meaning they have in
    `Limits`. `yielding` bounds the bulk in flight; None means no bound."""

    __slots__ = (
        "_hinted",
        "_least_idle_s",
        "_looked",
        "_ping_sent",
        "_pinged",
        "_pressing",
        "_probed",
        "_probes",
        "_sent",
        "_silent_s",
        "_ticked",
        "acked",
        "bulk_at",
        "bulk_bytes",
        "bulk_waits",
        "cutter",
        "eased",
        "heard",
        "idle_s",
        "intake",
        "least_rtt",
        "ping_mark",
        "received",
        "rtt",
        "unacked",
        "unreported",
        "unreported_bytes",
        "urgent",
        "usual_rtt",
        "yielding",
    )

    def __init__(
        self, *, idle_s: float, silent_s: float, now: float, yielding: Yielding | None = None
    ) -> None:
        self.cutter = Cutter()
        # Received bytes of each traffic class; None if no shaper counts them.
        self.intake: list[int] | None = None
        self.rtt: float | None = None  # seconds, measured by the last ping
        self.least_rtt: float | None = None
        self.usual_rtt: float | None = None  # of the last two pings the shorter one: one may wait
        self.heard = now  # when the last byte was received
        self.received = 0  # counted frames received; each outgoing frame reports this number
        self.unreported = 0  # counted frames received since it was last reported
        self.unreported_bytes = 0
        self.urgent: list[QueuedFrame] = []
        self.idle_s = self._least_idle_s = idle_s
        self._silent_s = silent_s
        # An int stands for that many frames that are now sent on another connection. It saves
        # memory if a peer acknowledges nothing and makes this node switch back and forth.
        self.unacked: deque[QueuedFrame | int] = deque()
        self._sent = 0
        self._pressing = 0  # unacknowledged frames that a caller may be waiting for
        self.acked = 0  # sent frames that the peer has acknowledged
        self._ticked = now
        self._pinged = now
        self._ping_sent: float | None = None
        self.ping_mark = 0
        """Number of the last ping, modulo 65,536. A reply repeats it, plus one."""
        self.yielding = yielding
        """What delays bulk on a path that others share; None if nothing does."""
        self.bulk_bytes = 0  # bytes of bulk in flight
        self.bulk_waits = False  # bulk waits for an acknowledgement or for the time `bulk_at`
        self.bulk_at = inf
        """Time on the monotonic clock at which bulk may go on, in seconds."""
        self._probes: list[int] = []  # marks of the pings behind bulk that are in flight
        self._probed = now
        self._looked = -inf
        self._hinted = False
        self.eased = False  # whether a ping or its pong has arrived, so that the tick may wait
        self.ping(now)

    # Counted frames.

    @property
    def ack_due(self) -> bool:
        """Whether enough received frames are unacknowledged to send an acknowledgement now, in a
        frame of its own if necessary."""
        return self.unreported >= ACK_FRAMES or self.unreported_bytes >= ACK_BYTES

    @property
    def unacknowledged(self) -> bool:
        """Whether counted frames are in flight."""
        return bool(self.unacked)

    def keep(self, entry: QueuedFrame, length: int, now: float) -> None:
        """Store a counted frame that is being sent, until the peer acknowledges it. `length` is the
        size of its head and payload in bytes."""
        self._sent = (self._sent + 1) & _COUNT
        self.unacked.append(entry)
        self._pressing += _is_pressing(entry)
        if entry.flags & wire.PRIORITY_MASK == wire.BULK:
            size = FRAME_OVERHEAD_BYTES + length
            self.bulk_bytes += size
            if self.yielding is not None:
                self.yielding.spend(size, now)

    def count(self, size: int) -> None:
        """Count a frame of `size` bytes that was received from the peer."""
        self.received = (self.received + 1) & _COUNT
        self.unreported += 1
        self.unreported_bytes += size

    def acknowledge(self, received: int) -> int:
        """Process the peer's count of received frames (modulo 2**32), and release the frames that
        it acknowledges. Return the memory released, in bytes, including the overhead of each frame.
        Raises Fault with code `bad-count` if the count exceeds the number of frames sent."""
        fresh = (received - self.acked) & _COUNT
        if not fresh:
            return 0
        if fresh > (self._sent - self.acked) & _COUNT:
            raise Fault("bad-count")
        self.acked = received
        freed = 0
        while fresh:
            entry = self.unacked.popleft()
            if isinstance(entry, int):
                if entry > fresh:
                    self.unacked.appendleft(entry - fresh)
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

    def give_back(self) -> list[QueuedFrame]:
        """Return the unacknowledged frames, to be sent again on another connection. The peer may
        still acknowledge them on this one."""
        lost = [entry for entry in self.unacked if not isinstance(entry, int)]
        count = (self._sent - self.acked) & _COUNT
        self.unacked = deque([count] if count else ())
        self._pressing = 0
        self.bulk_bytes = 0
        self.bulk_waits = False
        return lost

    # Bulk.

    def takes_bulk(self, now: float) -> int:
        """Return the size in bytes of the largest piece of bulk that may leave now. Return 0 if
        none may leave before a pong or an acknowledgement arrives or the time `bulk_at` is
        reached."""
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
        """Return the mark that the next ping must have, or 0 if no ping is due. The ping is sent
        behind bulk, to measure how long its queue is."""
        if self.yielding is None or self.bulk_bytes < PROBED_BYTES:
            return 0
        if self._probes and now < self._probed + self.yielding.sample_s:
            return 0
        mark = self._probes[-1] + 1 if self._probes else _PROBE
        self._probes.append(mark)
        self._probed = now
        self.yielding.begin(self.bulk_bytes, now)
        return mark

    # Urgent frames are not counted. They are sent before all others, and are lost if the connection
    # is lost.

    def push_urgent(self, kind: int, *, offset: int = 0, head: bytes = b"") -> None:
        """Queue an urgent frame."""
        self.urgent.append(QueuedFrame(kind, 0, 0, offset, head, b""))
        if len(self.urgent) > _URGENT:  # the peer might send pings and not read the pongs
            del self.urgent[0]

    # Time.

    def ping(self, now: float) -> None:
        """Queue a ping, whose pong also measures the round trip."""
        self._ping_sent = self._pinged = now
        # The PING carries the mark plus 1, because 0 is used by the pings of the outbox.
        self.ping_mark = self.ping_mark + 1 & 0xFFFF
        self.push_urgent(wire.PING, offset=self.ping_mark + 1)

    def pong(self, offset: int) -> None:
        """Queue the pong to a ping of the peer, whose field `offset` it repeats."""
        self.push_urgent(wire.PONG, offset=offset)
        self.eased = True

    def ping_soon(self, now: float) -> None:
        """Queue a ping, unless one is in flight already."""
        if self._ping_sent is None:
            self.ping(now)

    def look(self, now: float) -> None:
        """Ping the peer to check whether this connection still works, because the network may have
        changed."""
        self._looked = now
        self.ping_soon(now)

    def hint(self, now: float) -> None:
        """Ping the peer to check whether this connection still works, with a short timeout. Call
        this if the peer has left this connection for a worse one, or has replied on another one:
        that is strong evidence for a dead path."""
        self._hinted = True
        self.ping_soon(now)

    @property
    def unseen(self) -> bool:
        """Whether nothing has been received since the last call of `look`."""
        return self.heard <= self._looked

    def ponged(self, offset: int, now: float) -> None:
        """Process a pong. It measures the round trip or, if it belongs to a ping behind bulk, the
        queueing delay. `offset` is the field by which a pong repeats the mark of its ping."""
        if self._probes and offset == self._probes[0] and self.yielding is not None:
            del self._probes[0]
            self.bulk_waits = False
            self.yielding.end(now)
        if self._ping_sent is None or offset != self.ping_mark + 1:
            return
        before, self.rtt = self.rtt, max(0.0, now - self._ping_sent)
        self.usual_rtt = self.rtt if before is None else min(before, self.rtt)
        self.least_rtt = self.rtt if self.least_rtt is None else min(self.least_rtt, self.rtt)
        self._ping_sent = None
        self._hinted = False
        self.eased = True

    def forgive(self, now: float) -> bool:
        """Check whether this tick is late, that is, whether this node's event loop was blocked.
        Such a time does not count as silence of the peer, because the peer's bytes may be waiting
        unread. Return whether the tick is so late that the machine may have slept."""
        late = now - self._ticked
        if late > STALL_S:
            self.heard = min(now, self.heard + late)
            self._ticked = now
        return late > SLEPT_S

    def tick(self, now: float) -> float:
        """Send a ping if the peer has been silent for long enough. Return the time at which the
        next tick is due."""
        if self.forgive(now):
            self.look(now)
        if self._ping_sent is None:
            if now < (ping_at := self._ping_at()):
                self._ticked = ping_at
                return ping_at
            self.ping(now)
        sent = now if self._ping_sent is None else self._ping_sent
        self._ticked = max(now + _TICK_S, min(self.heard + self._silent_s, sent + self._look()))
        return self._ticked

    def ease(self, due: float) -> float:
        """Return the time to which a tick that is due at `due` may be put off.

        That is `due` itself unless a ping or a pong has arrived, and the next ping is due much
        later.
        """
        ping_at = self._ping_at() if self.eased and self._ping_sent is None else due
        self.eased = False
        if ping_at < due + EASE_S:
            return due
        self._ticked = ping_at
        return ping_at

    def _ping_at(self) -> float:
        """Return the time at which the next ping is due, if none is in flight."""
        return min(self.heard + self._quiet_for(), self._pinged + PING_S)

    def look_at(self, now: float) -> float:
        """Return the time by which a frame that is sent now should be acknowledged. Return infinity
        if no caller waits for a frame in flight."""
        return now + self._look() if self._pressing else inf

    def _quiet_for(self) -> float:
        """Return after how many seconds of silence a ping is due.

        The time is short while a caller waits for frames in flight, so that a dead path is noticed
        soon. It is longer while only other frames wait for acknowledgement.
        """
        return min(self.idle_s, self._look()) if self._pressing else self.idle_s

    def _look(self) -> float:
        """Return how many seconds a pong may take before it is overdue."""
        rtt = UNKNOWN_RTT_S if self.rtt is None else self.rtt
        return HINTED_S + rtt if self._hinted else DOUBT_S + DOUBT_RTTS * rtt

    def is_silent(self, now: float) -> bool:
        """Return whether the connection counts as lost: the peer has been silent for long, and a
        pong is overdue."""
        sent = self._ping_sent
        if sent is None or now < self.heard + self._silent_s:
            return False
        return now >= sent + max(self._silent_s - self._least_idle_s, self._look())

    def is_outrun(self, other: "LaneConnection") -> bool:
        """Return whether a ping on this connection is unanswered, although something has arrived on
        `other` since the ping was sent."""
        sent = self._ping_sent
        return sent is not None and other.heard > max(sent, self.heard)

    def is_overdue(self, now: float) -> bool:
        """Return whether frames are in flight that a caller may be waiting for, and the peer has
        been silent for longer than a few round trips."""
        return self._pressing > 0 and now >= self.heard + self._look()

    def is_unanswered(self, now: float) -> bool:
        """Return whether a pong is overdue, even if other frames have arrived. In that case perhaps
        only the direction to the peer is broken."""
        sent = self._ping_sent
        return sent is not None and now >= sent + self._look()

    def is_doubtful(self, now: float) -> bool:
        """Return whether the link should use another connection if it has one: a pong is overdue
        and nothing else has arrived since the ping."""
        sent = self._ping_sent
        return sent is not None and now >= max(sent, self.heard) + self._look()


def _is_pressing(entry: QueuedFrame) -> bool:
    """Return whether the loss of a frame must be noticed soon.

    The loss of posts and replies may be noticed later. A caller that waits for a reply has its own
    call in flight, so it notices a dead path on its side. So does a link that a stream carries.
    """
    if entry.flags & wire.LAZY:
        return False
    lazy = entry.kind in (wire.POST, wire.REPLY, wire.REFUSAL, wire.CANCEL)
    return not lazy or entry.flags & wire.PRIORITY_MASK == Priority.ACTIVATION

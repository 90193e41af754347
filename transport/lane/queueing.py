"""Congestion control for bulk, which keeps the queue in a modem's buffer short. No I/O.

It bounds the bytes in flight by a window in the manner of LEDBAT (RFC 6817). The window grows while
the queue that the transfer meets is shorter than a target of 20 ms, and shrinks while it is longer.
So other traffic on the same line, ours or the owner's, finds a short queue, and a long transfer
yields to an urgent one. The queue is the part of a round trip beyond the shortest seen lately.

Most differences from the RFC follow LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus-06):

- It uses round trips instead of one-way delays, so only our own clock counts. A queue on the way
back is taken for one on the way out: while the owner downloads at full speed, our upload slows
down as well, at worst to `FLOOR_RATE`. A transfer that yields too much costs time, but one that
yields too little costs the owner's call.
- The window shrinks by a factor, to what would have met the target, by at most one half in a round
trip. It grows by a packet as in LEDBAT++, plus a part of itself where the queue is short: a packet
for each round trip would take minutes on a fast and long path.
- Every half minute it drops to nearly nothing for two round trips. Our own queue drains, and the
shortest round trip is measured again. Without this, the later of two transfers would take the
other's queue for the path's length (the latecomer's advantage).

Round trips are measured by PING and PONG, once for each `sample_s` while bulk is in flight. PONG
also carries the count of frames received, so it says what has left the network.
"""

from dataclasses import dataclass
from math import inf
from typing import Final

TARGET_S: Final = 0.02
"""Queueing that bulk may cause on the line, in seconds (RFC 6817 allows 0.1, LEDBAT++ uses 0.06).
With the bytes that wait in our own kernel after TLS, a call beside bulk meets about 25 ms."""
PACKET_BYTES: Final = 1448
"""The payload of a full TCP segment on Ethernet."""
INITIAL_BYTES: Final = 10 * PACKET_BYTES
"""The initial window, in bytes (RFC 6928)."""
FLOOR_BYTES: Final = 2 * PACKET_BYTES
"""The smallest window, in bytes."""
FLOOR_RATE: Final = 32 * 1024
"""The lowest rate, in bytes per second: the window is never less than this times the round trip."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""The largest window, in bytes: 2.5 Gbit/s over 200 ms."""
START_GROWTH: Final = 0.5
"""Relative growth of the window in a round trip at the start, until the line is full."""
GROWTH: Final = 0.08
"""Relative growth of the window in a round trip where the queue is empty."""
SHRINKAGE: Final = 0.5
"""The largest relative shrinkage of the window in a round trip."""
START_UNTIL: Final = 0.6
"""The part of the target at which the start ends."""
BASE_S: Final = 600.0
"""How long the shortest round trip is remembered, in seconds (RFC 6817: 10 minutes)."""
BASE_PIECE_S: Final = 60.0
"""Length of the pieces in which it is forgotten, in seconds."""
SAMPLES: Final = 4
"""Recent round trips of which the shortest counts: one that waited for a busy peer is no queue."""
SLOWDOWN_S: Final = 30.0
"""Time from one slowdown to the next, in seconds."""
SLOWDOWN_TRIPS: Final = 2
"""Duration of a slowdown, in round trips."""
IDLE_S: Final = 2.0
"""Time without bulk, in seconds, after which the window starts again at half its size."""
PACE: Final = 1.1
"""The rate limit as a multiple of one window per round trip, which prevents bursts."""
PACE_S: Final = 0.003
"""How much may leave at once, in seconds of that rate, so that a modem's queue sees no bursts."""
PIECE_BYTES: Final = (4 * 1024, 64 * 1024)
"""The smallest and the largest piece of bulk, in bytes, whatever the rate."""
SAMPLES_PER_TRIP: Final = 4
"""Measurements begun in one round trip; not closer together than `SAMPLE_S`, in seconds."""
SAMPLE_S: Final = 0.01
SAMPLE_BYTES: Final = 256
"""Size of a PING and its PONG with all headers; they may cost `SAMPLE_PART` of the rate."""
SAMPLE_PART: Final = 0.02
SHORTEST_S: Final = 1e-6
"""The shortest round trip, in seconds: a coarse clock may measure 0 inside a machine."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A round trip, in seconds, and the most bytes in flight just before it began."""

    trip: float
    under_way: int


class BaseDelay:
    """The shortest round trip of the last ten minutes, stored as a minimum for each minute."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, float]] = []  # minute, shortest

    def add(self, sample: float, now: float) -> None:
        """Add a round trip, in seconds."""
        minute = int(now // BASE_PIECE_S)
        if self._pieces and self._pieces[-1][0] == minute:
            sample = min(sample, self._pieces.pop()[1])
        self._pieces.append((minute, sample))
        while self._pieces[0][0] <= minute - BASE_S / BASE_PIECE_S:
            del self._pieces[0]

    @property
    def shortest(self) -> float:
        """The shortest round trip in seconds; infinite before the first one."""
        return min((sample for _, sample in self._pieces), default=inf)


class Yielding:
    """The window of one path's bulk: bytes that were sent but not acknowledged.

    Call `room` before sending and `spend` after it. Call `begin` for every PING that leaves while
    bulk is in flight and `end` for its PONG. PONGs come in the order of the PINGs.
    """

    def __init__(self, now: float, target_s: float = TARGET_S) -> None:
        self.target_s = target_s
        self._base = BaseDelay()
        self._recent: list[Sample] = []
        self._window = float(INITIAL_BYTES)
        self._starting = True
        self._updated = now
        self._limited = False  # the window stopped the sender since the last update
        self._sent = now
        self._begun: list[tuple[float, int]] = []
        self._credit = 0.0  # bytes that may leave at once
        self._credited = now
        self._peak = 0  # the most bytes in flight since the last PING
        self._slow_until = -inf
        self._slow_next = inf  # set once the start has ended

    # Measurements.

    @property
    def base_s(self) -> float | None:
        """The round trip without a queue, in seconds; None before the first one."""
        shortest = self._base.shortest
        return None if shortest == inf else shortest

    @property
    def queue_s(self) -> float:
        """The part of the current round trip beyond that, in seconds."""
        return self._trip - self._base.shortest if self._recent else 0.0

    @property
    def sample_s(self) -> float:
        """Time between two measurements while bulk is in flight, in seconds."""
        trip = self._trip
        cheap = SAMPLE_BYTES * trip / (SAMPLE_PART * self._window)
        return max(SAMPLE_S, trip / SAMPLES_PER_TRIP, min(cheap, trip / 2))

    def window(self, now: float) -> int:
        """Return how many bytes may be in flight."""
        if now < self._slow_until:
            return FLOOR_BYTES
        return int(max(self._window, FLOOR_BYTES, FLOOR_RATE * self._trip))

    def rate(self, now: float) -> float:
        """Return the rate to send at, in bytes per second; infinite before the first round trip."""
        trip = self._trip
        return PACE * self.window(now) / trip if trip else inf

    @property
    def _trip(self) -> float:
        return min((sample.trip for sample in self._recent), default=0.0)

    # Events.

    @property
    def piece(self) -> int:
        """Size of the pieces to split bulk into, in bytes, so that a frame is not a burst by
        itself."""
        least, most = PIECE_BYTES
        return int(min(max(self._burst, least), most)) if self._recent else INITIAL_BYTES // 2

    def room(self, under_way: int, now: float) -> int:
        """Return how many bytes may leave now; 0 until an acknowledgement or until `next_at`."""
        if now > self._sent + IDLE_S and not under_way:
            self._restart(now)
        self._peak = max(self._peak, under_way)
        room = self.window(now) - under_way
        if room <= max(self._window / 4, PACKET_BYTES):
            self._limited = True
        if room <= 0:
            return 0
        self._sent = now
        credit = self._refill(now)
        return max(1, int(min(room, credit))) if credit > 0 else 0

    def spend(self, size: int, now: float) -> None:
        """Charge bytes that have left. What exceeds `room` is owed."""
        if self._refill(now) < inf:
            self._credit -= size

    def next_at(self, under_way: int, now: float) -> float:
        """Return when the rate allows more bulk; infinite if an acknowledgement must come first.

        The time is later than `now` where `room` was 0, so that a caller that retries at that time
        does not loop forever.
        """
        room = self.window(now) - under_way
        if room <= 0:
            return inf
        return now + max(0.0, min(self._burst, room) / 2 - self._refill(now)) / self.rate(now)

    @property
    def _burst(self) -> float:
        trip = self._trip
        return max(PACE_S * PACE * self._window / trip, 2 * PACKET_BYTES) if trip else inf

    def _refill(self, now: float) -> float:
        burst = self._burst
        if burst == inf:
            return inf
        self._credit = min(burst, self._credit + (now - self._credited) * self.rate(now))
        self._credited = now
        return self._credit

    def begin(self, under_way: int, now: float) -> None:
        """Note that a PING leaves."""
        self._begun.append((now, max(self._peak, under_way)))
        self._peak = under_way

    def end(self, now: float) -> None:
        """Note that the PONG of the oldest PING has come."""
        if self._begun:
            began, under_way = self._begun.pop(0)
            self._take(max(now - began, SHORTEST_S), under_way, now)

    def _take(self, trip: float, under_way: int, now: float) -> None:
        self._base.add(trip, now)
        self._recent.append(Sample(trip, under_way))
        del self._recent[:-SAMPLES]
        if self._starting:
            latest = min(self._recent[-2:], key=lambda sample: sample.trip)
            if latest.trip - self._base.shortest > START_UNTIL * self.target_s:
                self._end_start(latest, now)
                return
        if now >= self._updated + trip:
            self._update(now)

    def _update(self, now: float) -> None:
        """Update the window, once in a round trip."""
        self._updated = now
        if now < self._slow_until:
            return
        if self._limited:  # an unused window says nothing about the path
            self._window += self._growth()
            self._limited = False
        best = min(self._recent, key=lambda sample: sample.trip)
        if best.trip - self._base.shortest > self.target_s:
            # The bytes in flight then made this queue. The window may have shrunk since.
            fitting = self._fitting(best, self.target_s)
            self._window = min(self._window, max(fitting, self._window * (1 - SHRINKAGE)))
        if now >= self._slow_next:
            self._slow_down(best, now)
        self._window = min(max(self._window, FLOOR_BYTES), MOST_BYTES)

    def _growth(self) -> float:
        """Return the growth for one round trip: the same for small and large windows, so that
        transfers become equal (LEDBAT++), plus a part of the window where the line is far from
        full."""
        if self._starting:
            return START_GROWTH * self._window
        free = max(0.0, 1 - 2 * self.queue_s / self.target_s)
        return min(PACKET_BYTES, self._window / 16) + GROWTH * self._window * free

    def _fitting(self, sample: Sample, queue_s: float) -> float:
        """Return the window that would have met such a queue: in flight = rate * round trip
        (Little)."""
        return sample.under_way * (self._base.shortest + queue_s) / sample.trip

    def _end_start(self, sample: Sample, now: float) -> None:
        self._starting = False
        self._updated = now
        self._window = max(FLOOR_BYTES, self._fitting(sample, self.target_s / 2))
        self._slow_next = now + SLOWDOWN_TRIPS * sample.trip

    def _slow_down(self, best: Sample, now: float) -> None:
        self._window = min(self._window, self._fitting(best, self.target_s / 2))
        self._slow_until = now + SLOWDOWN_TRIPS * max(sample.trip for sample in self._recent)
        self._slow_next = now + SLOWDOWN_S

    def _restart(self, now: float) -> None:
        self._starting = True
        self._window = max(self._window / 2, float(INITIAL_BYTES))
        self._slow_next = inf
        self._updated = now

"""Congestion control for bulk, which keeps the queue in a modem's buffer short. No I/O.

A window bounds the bytes in flight, in the manner of LEDBAT (RFC 6817). The window grows while the
queueing delay of the transfer is below a target of 20 ms, and shrinks while it is above. Other
traffic on the same line, from this node or from other programs of its owner, therefore meets a
short queue, and a long transfer yields to urgent traffic. The queueing delay is the part of a round
trip that exceeds the shortest round trip of the last minutes.

Most differences from the RFC follow LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus-06):

- Round trips are measured instead of one-way delays, so that only this node's clock matters. A
  queue in the direction from the peer is therefore mistaken for one in the direction to the peer.
  While the owner downloads at full speed, our uploads slow down as well, at worst to `FLOOR_RATE`.
  This is acceptable: a transfer that yields too much only takes longer, but one that yields too
  little disturbs the owner's calls.
- The window shrinks by a factor, to the size that would have met the target, but by at most one
  half per round trip. It grows by one packet per round trip as in LEDBAT++, plus a part of itself
  if the queue is short. Without that part, growth would take minutes on a fast and long path.
- Every half minute the window drops to nearly nothing for two round trips. This drains our own
  queue, so that the shortest round trip can be measured again. Without this, the later one of two
  transfers would mistake the other's queue for a part of the path (the latecomer's advantage).

Round trips are measured by PING and PONG, once every `sample_s` seconds while bulk is in flight. A
PONG also carries the count of frames received, which tells how much has left the network.

A PONG arrives late if it is behind bytes of a lost packet, which is sent again: on a fast line that
loses one packet in 200, nearly every PONG does. That delay is no queue. Over QUIC, therefore, the
round trips of single packets, which the connection measures, replace those of PING and PONG.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

TARGET_S: Final = 0.02
"""Queueing delay that bulk may cause on the line, in seconds (RFC 6817 allows 0.1, LEDBAT++ uses
0.06). Including the bytes that wait in this node's kernel, bulk delays a call by about 25 ms."""
PACKET_BYTES: Final = 1448
"""The payload of a full TCP segment on Ethernet."""
INITIAL_BYTES: Final = 10 * PACKET_BYTES
"""The initial window, in bytes (RFC 6928)."""
FLOOR_BYTES: Final = 2 * PACKET_BYTES
"""The smallest window, in bytes."""
FLOOR_RATE: Final = 32 * 1024
"""The lowest rate, in bytes per second. The window is never smaller than this rate times the round
trip."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""The largest window, in bytes. It allows 2.5 Gbit/s at a round trip of 200 ms."""
START_GROWTH: Final = 0.5
"""Relative growth of the window per round trip in the start phase, until the line is full."""
GROWTH: Final = 0.08
"""Relative growth of the window per round trip after the start phase, if the queue is empty."""
SHRINKAGE: Final = 0.5
"""The largest relative shrinkage of the window per round trip."""
START_UNTIL: Final = 0.6
"""The start phase ends when the queueing delay exceeds this part of the target."""
BASE_S: Final = 600.0
"""How long the shortest round trip is remembered, in seconds (RFC 6817: 10 minutes)."""
BASE_PIECE_S: Final = 60.0
"""Time for which one minimum is stored, in seconds. The oldest is forgotten as a whole."""
SAMPLES: Final = 4
"""Number of the latest round trips of which the shortest counts. A single long one may be due to a
busy peer instead of a queue."""
SLOWDOWN_S: Final = 30.0
"""Time from one slowdown to the next, in seconds."""
SLOWDOWN_TRIPS: Final = 2
"""Duration of a slowdown, in round trips."""
IDLE_S: Final = 2.0
"""Time without bulk, in seconds, after which the window is halved and the start phase begins
again."""
PACE: Final = 1.1
"""The sending rate, as a multiple of one window per round trip. It prevents bursts."""
PACE_S: Final = 0.003
"""Largest burst, given as a time in seconds: as many bytes as the sending rate allows in this time.
Its small value keeps bursts out of a modem's queue."""
PIECE_BYTES: Final = (4 * 1024, 64 * 1024)
"""Bounds on the size of a piece of bulk, in bytes: (smallest, largest)."""
SAMPLES_PER_TRIP: Final = 4
"""Number of measurements that are begun per round trip. They are at least `SAMPLE_S` seconds
apart."""
SAMPLE_S: Final = 0.01
SAMPLE_BYTES: Final = 256
"""Size of a PING and its PONG with all headers, in bytes. They may use the part `SAMPLE_PART` of
the rate."""
SAMPLE_PART: Final = 0.02
SHORTEST_S: Final = 1e-6
"""Lower bound of a measured round trip, in seconds, because a coarse clock may measure 0 within one
machine."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured round trip in seconds, and the most bytes that were in flight just before it
    began."""

    trip: float
    under_way: int


class BaseDelay:
    """The shortest round trip of the last ten minutes, stored as one minimum for each minute."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, float]] = []  # minute, shortest

    def add(self, sample: float, now: float) -> None:
        """Add a measured round trip, in seconds."""
        minute = int(now // BASE_PIECE_S)
        if self._pieces and self._pieces[-1][0] == minute:
            sample = min(sample, self._pieces.pop()[1])
        self._pieces.append((minute, sample))
        while self._pieces[0][0] <= minute - BASE_S / BASE_PIECE_S:
            del self._pieces[0]

    @property
    def shortest(self) -> float:
        """The shortest round trip in seconds; infinite before the first measurement."""
        return min((sample for _, sample in self._pieces), default=inf)


class Yielding:
    """The window of the bulk on one path: how many bytes may be sent but not yet acknowledged.

    Call `room` before sending and `spend` after it. Call `begin` for each PING that is sent while
    bulk is in flight, and `end` for its PONG. PONGs arrive in the order of their PINGs.
    `packet_rtt` returns the latest round trip of single packets in seconds, or 0 if the path does
    not measure it.
    """

    def __init__(
        self,
        now: float,
        target_s: float = TARGET_S,
        packet_rtt: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.target_s = target_s
        self._packet_rtt = packet_rtt
        self._base = BaseDelay()
        self._recent: list[Sample] = []
        self._window = float(INITIAL_BYTES)
        self._starting = True
        self._updated = now
        self._limited = False  # whether the window has limited the sender since the last update
        self._sent = now
        self._begun: list[tuple[float, int]] = []
        self._credit = 0.0  # bytes that may be sent at once
        self._credited = now
        self._peak = 0  # the most bytes in flight since the last PING
        self._slow_until = -inf
        self._slow_next = inf  # time of the next slowdown; infinite during the start phase

    # Measurements.

    @property
    def queue_s(self) -> float:
        """The present queueing delay in seconds: the part of a round trip that exceeds the shortest
        one."""
        return self._trip - self._base.shortest if self._recent else 0.0

    @property
    def sample_s(self) -> float:
        """Time between two measurements while bulk is in flight, in seconds."""
        trip = self._trip
        cheap = SAMPLE_BYTES * trip / (SAMPLE_PART * self._window)
        return max(SAMPLE_S, trip / SAMPLES_PER_TRIP, min(cheap, trip / 2))

    def window(self, now: float) -> int:
        """Return the number of bytes that may be in flight."""
        if now < self._slow_until:
            return FLOOR_BYTES
        return int(max(self._window, FLOOR_BYTES, FLOOR_RATE * self._trip))

    def rate(self, now: float) -> float:
        """Return the rate at which to send, in bytes per second. It is infinite before the first
        measurement."""
        trip = self._trip
        return PACE * self.window(now) / trip if trip else inf

    @property
    def _trip(self) -> float:
        """The shortest of the latest round trips in seconds; 0 before the first measurement."""
        return min((sample.trip for sample in self._recent), default=0.0)

    # Events.

    @property
    def piece(self) -> int:
        """Size in bytes of the pieces into which bulk is split, so that a single frame is not a
        burst."""
        least, most = PIECE_BYTES
        return int(min(max(self._burst, least), most)) if self._recent else INITIAL_BYTES // 2

    def room(self, under_way: int, now: float) -> int:
        """Return how many bytes may be sent now if `under_way` bytes are in flight. If it returns
        0, wait for an acknowledgement or until `next_at`."""
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
        """Charge bytes that were sent. If they are more than `room` allowed, later calls of `room`
        allow less."""
        if self._refill(now) < inf:
            self._credit -= size

    def next_at(self, under_way: int, now: float) -> float:
        """Return the time at which the rate allows more bulk. Return infinity if an acknowledgement
        must arrive first.

        If `room` has returned 0, this time is later than `now`, so that a caller that retries at
        that time does not loop forever.
        """
        room = self.window(now) - under_way
        if room <= 0:
            return inf
        return now + max(0.0, min(self._burst, room) / 2 - self._refill(now)) / self.rate(now)

    @property
    def _burst(self) -> float:
        """Number of bytes that may be sent at once; infinite before the first measurement."""
        trip = self._trip
        return max(PACE_S * PACE * self._window / trip, 2 * PACKET_BYTES) if trip else inf

    def _refill(self, now: float) -> float:
        """Refill the bucket of bytes that may be sent at once, and return its level."""
        burst = self._burst
        if burst == inf:
            return inf
        self._credit = min(burst, self._credit + (now - self._credited) * self.rate(now))
        self._credited = now
        return self._credit

    def begin(self, under_way: int, now: float) -> None:
        """Record that a PING is sent while `under_way` bytes are in flight."""
        self._begun.append((now, max(self._peak, under_way)))
        self._peak = under_way

    def end(self, now: float) -> None:
        """Record that the PONG of the oldest outstanding PING has arrived, and adapt the window."""
        if self._begun:
            began, under_way = self._begun.pop(0)
            self._take(max(self._packet_rtt() or now - began, SHORTEST_S), under_way, now)

    def _take(self, trip: float, under_way: int, now: float) -> None:
        """Add a measured round trip, and adapt the window at the end of the start phase or once per
        round trip."""
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
        """Adapt the window, once per round trip."""
        self._updated = now
        if now < self._slow_until:
            return
        if self._limited:  # an unused window says nothing about the path
            self._window += self._growth()
            self._limited = False
        best = min(self._recent, key=lambda sample: sample.trip)
        if best.trip - self._base.shortest > self.target_s:
            # The queue was caused by the bytes in flight at that time, not by the present window,
            # which may be smaller by now.
            fitting = self._fitting(best, self.target_s)
            self._window = min(self._window, max(fitting, self._window * (1 - SHRINKAGE)))
        if now >= self._slow_next:
            self._slow_down(best, now)
        self._window = min(max(self._window, FLOOR_BYTES), MOST_BYTES)

    def _growth(self) -> float:
        """Return by how many bytes the window grows in one round trip. One part is the same for
        small and large windows, so that transfers get equal rates (LEDBAT++). The other is
        proportional to the window, and is 0 unless the queue is short."""
        if self._starting:
            return START_GROWTH * self._window
        free = max(0.0, 1 - 2 * self.queue_s / self.target_s)
        return min(PACKET_BYTES, self._window / 16) + GROWTH * self._window * free

    def _fitting(self, sample: Sample, queue_s: float) -> float:
        """Return the window, in bytes, that would have caused a queueing delay of `queue_s`. By
        Little's law, the bytes in flight are the rate times the round trip."""
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

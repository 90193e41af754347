"""How much of a bulk transfer may be under way, so that it never fills a modem's buffer. No I/O.

A window in the manner of LEDBAT (RFC 6817): it grows while the queue that the transfer meets is
shorter than a target of 20 ms, and shrinks while it is longer, so that other traffic on the same
line, ours or the owner's, finds a short queue, and a transfer that lasts gives way to one that is
in a hurry. The queue is what a round trip takes beyond the shortest seen lately.

Where it differs from the RFC, most is as in LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus-06):

- Round trips instead of one-way delays, so no clock but our own counts. A queue on the way back is
  taken for one on the way there: while the owner downloads at full speed, our upload slows down
  as well, at worst to `FLOOR_RATE`. A transfer that yields too much costs time; one that yields too
  little costs the owner's call.
- The window shrinks by a factor, to what would have met the target, by one half at most in a round
  trip. It grows by a packet as there, and by a part of itself where the queue is short: a packet a
  round trip takes minutes on a fast and long path.
- Every half minute it drops to nearly nothing for two round trips: our own queue drains, and the
  shortest round trip is measured anew. Without this, two transfers that start one after the other
  take each other's queue for the path's length (the latecomer's advantage).

Round trips come from PING and PONG, one for each `sample_s` while bulk is under way; PONG also
carries the count of frames received, so it says what has left the network.
"""

from dataclasses import dataclass
from math import inf
from typing import Final

TARGET_S: Final = 0.02
"""Queueing that bulk may cause on the line, in seconds (RFC 6817 allows 0.1, LEDBAT++ takes 0.06).
With what has left TLS and waits in our own kernel, a call beside bulk meets some 25 ms."""
PACKET_BYTES: Final = 1448
"""The payload of a full TCP segment on Ethernet."""
INITIAL_BYTES: Final = 10 * PACKET_BYTES
"""The window to start with (RFC 6928)."""
FLOOR_BYTES: Final = 2 * PACKET_BYTES
"""The least window."""
FLOOR_RATE: Final = 32 * 1024
"""The least rate, in bytes per second: the window is never less than this times the round trip."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""The largest window: 2.5 Gbit/s over 200 ms."""
START_GROWTH: Final = 0.5
"""The part of itself by which it grows in a round trip at the start, until the line is full."""
GROWTH: Final = 0.08
"""The part of itself by which a window grows in a round trip, where the queue is empty."""
SHRINKAGE: Final = 0.5
"""The part of itself by which it shrinks at most in a round trip."""
START_UNTIL: Final = 0.6
"""The part of the target at which the start ends."""
BASE_S: Final = 600.0
"""So far back the shortest round trip is remembered (RFC 6817: 10 minutes), in seconds."""
BASE_PIECE_S: Final = 60.0
"""Forgotten in pieces of this length, in seconds."""
SAMPLES: Final = 4
"""Of so many round trips the shortest counts: one that waited for a busy peer is no queue."""
SLOWDOWN_S: Final = 30.0
"""From one slowdown to the next, in seconds."""
SLOWDOWN_TRIPS: Final = 2
"""How long one lasts, in round trips."""
IDLE_S: Final = 2.0
"""After so long without bulk, in seconds, the window is found anew from half of what it was."""
PACE: Final = 1.1
"""Bytes leave at most so much faster than a window in a round trip: without bursts."""
PACE_S: Final = 0.003
"""What may leave at once, in seconds of that rate: a modem's queue sees no bursts."""
PIECE_BYTES: Final = (4 * 1024, 64 * 1024)
"""The least and the largest piece to cut bulk into, whatever the rate."""
SAMPLES_PER_TRIP: Final = 4
"""Round trips begun while one lasts; not closer together than `SAMPLE_S`, in seconds."""
SAMPLE_S: Final = 0.01
SAMPLE_BYTES: Final = 256
"""A PING and its PONG with all headers; they may cost `SAMPLE_PART` of the rate."""
SAMPLE_PART: Final = 0.02
SHORTEST_S: Final = 1e-6
"""A round trip's least, in seconds: by a coarse clock one inside a machine takes no time."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A round trip, in seconds, and the most bytes that were under way just before it began."""

    trip: float
    under_way: int


class BaseDelay:
    """The shortest round trip of the last ten minutes, a minimum for each minute kept."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, float]] = []  # minute, shortest

    def add(self, sample: float, now: float) -> None:
        """A round trip, in seconds."""
        minute = int(now // BASE_PIECE_S)
        if self._pieces and self._pieces[-1][0] == minute:
            sample = min(sample, self._pieces.pop()[1])
        self._pieces.append((minute, sample))
        while self._pieces[0][0] <= minute - BASE_S / BASE_PIECE_S:
            del self._pieces[0]

    @property
    def shortest(self) -> float:
        """In seconds; infinite before the first."""
        return min((sample for _, sample in self._pieces), default=inf)


class Yielding:
    """The window of one path's bulk: bytes that were sent and are not yet acknowledged.

    Ask `room` before sending and after it, say what was sent (`spend`), and tell every PING that
    leaves while bulk is under way (`begin`) and its PONG (`end`): they answer in order.
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
        self._peak = 0  # bytes under way since the last PING, at most
        self._slow_until = -inf
        self._slow_next = inf  # set once the start is over

    # What has been found.

    @property
    def base_s(self) -> float | None:
        """The round trip without a queue, in seconds; None before the first."""
        shortest = self._base.shortest
        return None if shortest == inf else shortest

    @property
    def queue_s(self) -> float:
        """What the round trip takes beyond that now, in seconds."""
        return self._trip - self._base.shortest if self._recent else 0.0

    @property
    def sample_s(self) -> float:
        """How often to begin a round trip while bulk is under way, in seconds."""
        trip = self._trip
        cheap = SAMPLE_BYTES * trip / (SAMPLE_PART * self._window)
        return max(SAMPLE_S, trip / SAMPLES_PER_TRIP, min(cheap, trip / 2))

    def window(self, now: float) -> int:
        """Bytes that may be under way."""
        if now < self._slow_until:
            return FLOOR_BYTES
        return int(max(self._window, FLOOR_BYTES, FLOOR_RATE * self._trip))

    def rate(self, now: float) -> float:
        """Bytes per second to send at; infinite before the first round trip."""
        trip = self._trip
        return PACE * self.window(now) / trip if trip else inf

    @property
    def _trip(self) -> float:
        return min((sample.trip for sample in self._recent), default=0.0)

    # What happens.

    @property
    def piece(self) -> int:
        """Bytes to cut bulk into, so that a frame is no burst by itself."""
        least, most = PIECE_BYTES
        return int(min(max(self._burst, least), most)) if self._recent else INITIAL_BYTES // 2

    def room(self, under_way: int, now: float) -> int:
        """Bytes that may leave now; 0 where an acknowledgement must come first, or `next_at`."""
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
        """So many bytes have left; what was more than `room` said is owed."""
        if self._refill(now) < inf:
            self._credit -= size

    def next_at(self, under_way: int, now: float) -> float:
        """When bulk may leave for the pace's sake; infinite where an acknowledgement must come.

        Later than now where `room` was 0, or who asks again at that time would never end.
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
        """A PING leaves."""
        self._begun.append((now, max(self._peak, under_way)))
        self._peak = under_way

    def end(self, now: float) -> None:
        """Its PONG has come."""
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
        """Once a round trip."""
        self._updated = now
        if now < self._slow_until:
            return
        if self._limited:  # a window that is not used says nothing about the path
            self._window += self._growth()
            self._limited = False
        best = min(self._recent, key=lambda sample: sample.trip)
        if best.trip - self._base.shortest > self.target_s:
            # What was under way made this queue; the window may have shrunk since.
            fitting = self._fitting(best, self.target_s)
            self._window = min(self._window, max(fitting, self._window * (1 - SHRINKAGE)))
        if now >= self._slow_next:
            self._slow_down(best, now)
        self._window = min(max(self._window, FLOOR_BYTES), MOST_BYTES)

    def _growth(self) -> float:
        """As much for a small window as for a large one, so that transfers become equal (LEDBAT++);
        and a part of itself where the line is far from full."""
        if self._starting:
            return START_GROWTH * self._window
        free = max(0.0, 1 - 2 * self.queue_s / self.target_s)
        return min(PACKET_BYTES, self._window / 16) + GROWTH * self._window * free

    def _fitting(self, sample: Sample, queue_s: float) -> float:
        """The window that would have met such a queue: under way = rate * round trip (Little)."""
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

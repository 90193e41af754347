"""Model of one direction of a link: delay, a rate with a bounded queue, and loss.

It performs no I/O: it gets the times of packets, and returns their times of arrival. The simulator
and the user-space link of the kernel backend use the same class, so that their results can be
compared.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

# Results of `Pipe.offer` for a packet that does not arrive.
LOST: Final = -1.0
OVERFLOWED: Final = -2.0
TOO_BIG: Final = -3.0
CUT: Final = -4.0
REASONS: Final = {LOST: "lost", OVERFLOWED: "queue", TOO_BIG: "mtu", CUT: "cut"}

_ROUNDING: Final = 1e-9  # upper bound in seconds for the rounding errors of float sums


@dataclass(frozen=True, slots=True)
class Burst:
    """Gilbert-Elliott model of loss in bursts: a link alternates between a good state and a bad
    one.

    For each packet, `bad` is the probability of changing to the bad state, and `good` that of
    changing back. `loss_bad` and `loss_good` are the probabilities of loss in each state. In the
    long run, `bad / (bad + good)` of the packets meet the bad state, which lasts `1 / good` packets
    on average (Gilbert 1960, Elliott 1963).
    """

    bad: float
    good: float
    loss_bad: float
    loss_good: float = 0.0

    @property
    def loss(self) -> float:
        """Fraction of packets lost in the long run."""
        share = self.bad / (self.bad + self.good)
        return share * self.loss_bad + (1 - share) * self.loss_good


@dataclass(frozen=True, slots=True)
class CyclePhase:
    """Part of a cycle, from `start` seconds after the beginning of the cycle for `length` seconds.

    During the phase, `delay` seconds are added to the delay of each packet, and a packet is lost
    with probability `loss`. If `fades` is True, the added delay falls linearly to zero at the end
    of the phase.
    """

    start: float
    length: float
    delay: float
    loss: float = 0.0
    fades: bool = False


@dataclass(frozen=True, slots=True)
class Cycle:
    """Effects that repeat every `period` seconds and affect all links at the same time, such as the
    handovers of a low-orbit satellite.
    """

    period: float
    phases: tuple[CyclePhase, ...]

    def at(self, now: float) -> tuple[float, float]:
        """Return (additional delay in seconds, probability of loss) at `now`."""
        turn = now % self.period
        for phase in self.phases:
            into = turn - phase.start
            if 0 <= into < phase.length:
                part = 1 - into / phase.length if phase.fades else 1.0
                return phase.delay * part, phase.loss
        return 0.0, 0.0


@dataclass(frozen=True, slots=True)
class PipeSpec:
    """Parameters of one direction of a link. Times are seconds, and chances are probabilities."""

    delay: float = 0.0
    # Maximum addition to the delay. The addition is drawn again after `jitter` seconds, because
    # packets close to each other meet the same conditions. Packets stay in order.
    jitter: float = 0.0
    rate: float | None = None  # bytes per second; None: unlimited, without a queue
    queue: float = 0.25  # seconds of `rate` that may wait; a packet that does not fit is dropped
    loss: float = 0.0
    burst: Burst | None = None
    reorder: float = 0.0  # probability that a packet is late and others overtake it
    reorder_delay: float = 0.01  # additional delay of such a packet
    duplicate: float = 0.0  # probability that a packet arrives twice
    mtu: int = 1500  # bytes, IP header included
    cycle: Cycle | None = None

    @property
    def by_chance(self) -> bool:
        """Whether any parameter needs random numbers."""
        drawn = self.jitter or self.loss or self.burst or self.reorder or self.duplicate
        return bool(drawn or (self.cycle and any(phase.loss for phase in self.cycle.phases)))


class Pipe:
    """State of one direction of a link.

    `random` is the generator of its random numbers. It may be None if the parameters need none
    (`PipeSpec.by_chance`).
    """

    __slots__ = (
        "_bad",
        "_delay",
        "_extra",
        "_free",
        "_last",
        "_mtu",
        "_plain",
        "_queue",
        "_random",
        "_redraw",
        "_seconds",
        "duplicates",
        "spec",
    )

    def __init__(self, spec: PipeSpec, random: Random | None) -> None:
        self._free = 0.0  # time at which the queue will be empty
        self._last = 0.0  # the latest arrival so far
        self._extra = 0.0  # current jitter in seconds
        self._redraw = 0.0  # time at which the jitter is drawn again
        self._bad = False  # whether `burst` is in its bad state
        self._mtu = 0  # negative while this direction is cut
        self.change(spec, random)

    def change(self, spec: PipeSpec, random: Random | None) -> None:
        """Replace the parameters. Packets in flight are unaffected. Raises ValueError if the
        parameters need random numbers and `random` is None.
        """
        if random is None and spec.by_chance:
            raise ValueError("this link needs random numbers, but got no stream to draw them from")
        self.spec = spec
        self._random = random
        self._delay = spec.delay
        self._seconds = 1 / spec.rate if spec.rate is not None else 0.0  # per byte
        self._queue = spec.queue + _ROUNDING
        self._plain = not (spec.by_chance or spec.cycle)
        self.duplicates = bool(spec.duplicate)  # if True, `again` must be called for each packet
        self._mtu = spec.mtu if self._mtu >= 0 else -spec.mtu

    @property
    def cut(self) -> bool:
        """Whether this direction is cut, so that no packet passes."""
        return self._mtu < 0

    @cut.setter
    def cut(self, cut: bool) -> None:
        # Every size exceeds a negative MTU, so the check costs nothing for a link that is not cut.
        self._mtu = -self.spec.mtu if cut else self.spec.mtu

    def waiting(self, now: float) -> float:
        """Return the number of bytes in the queue at `now`."""
        return max(0.0, self._free - now) / self._seconds if self._seconds else 0.0

    def offer(self, now: float, size: int) -> float:
        """Queue a packet of `size` bytes at `now`. Return its time of arrival in seconds. If the
        packet is lost, return one of the negative values in `REASONS`.
        """
        if size > self._mtu:
            return CUT if self._mtu < 0 else TOO_BIG
        if self._seconds:
            free = self._free
            if free > now:
                when = free + size * self._seconds
                if when - now > self._queue:
                    return OVERFLOWED
            else:
                when = now + size * self._seconds
            self._free = when
            when += self._delay
        else:
            when = now + self._delay
        if self._plain:
            # A packet of a plain pipe can only overtake packets sent before a change of the pipe.
            if when < self._last:
                when = self._last
            self._last = when
            return when
        return self._by_chance(now, when)

    def _by_chance(self, now: float, when: float) -> float:
        """Apply loss, jitter and reordering to a packet that would otherwise arrive at `when`.
        Return its time of arrival, or `LOST`.
        """
        spec = self.spec
        loss = spec.loss
        if spec.cycle is not None:
            delay, lost = spec.cycle.at(now)
            when += delay
            loss = max(loss, lost)
        random = self._random
        if random is None:
            return self._in_order(when)
        if spec.burst is not None:
            loss = max(loss, self._burst_loss(spec.burst, random))
        if loss and random.random() < loss:
            return LOST
        if spec.jitter:
            if now >= self._redraw:
                self._extra = random.random() * spec.jitter
                self._redraw = now + spec.jitter
            when += self._extra
        if spec.reorder and random.random() < spec.reorder:
            return max(when, self._last) + spec.reorder_delay
        return self._in_order(when)

    def _in_order(self, when: float) -> float:
        """Return the time of arrival of a packet that would arrive at `when`, but must not
        overtake earlier packets. Record the time as the latest arrival.
        """
        if when < self._last:
            when = self._last
        self._last = when
        return when

    def _burst_loss(self, burst: Burst, random: Random) -> float:
        """Draw the state of the burst model for the next packet. Return the probability of loss in
        this state.
        """
        turn = random.random()
        self._bad = turn >= burst.good if self._bad else turn < burst.bad
        return burst.loss_bad if self._bad else burst.loss_good

    def again(self) -> bool:
        """Return whether the packet that was just offered arrives a second time."""
        return self._random is not None and self._random.random() < self.spec.duplicate


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """Parameters of both directions of an access link: `up` from the host, `down` to it."""

    up: PipeSpec = PipeSpec()
    down: PipeSpec = PipeSpec()

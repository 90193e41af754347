"""One direction of a link: delay, rate with a bounded queue, loss. No I/O: times in, times out.

The simulator and the kernel backend's user-space link drive the same class, so that the two
can be compared.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

LOST: Final = -1.0
OVERFLOWED: Final = -2.0
TOO_BIG: Final = -3.0
REASONS: Final = {LOST: "lost", OVERFLOWED: "queue", TOO_BIG: "mtu"}


@dataclass(frozen=True, slots=True)
class Burst:
    """Gilbert-Elliott loss: per packet, the chance to go bad and to become good again, and
    the loss in each state."""

    bad: float
    good: float
    loss_bad: float
    loss_good: float = 0.0


@dataclass(frozen=True, slots=True)
class PipeSpec:
    """One direction. Seconds, bytes per second, probabilities."""

    delay: float = 0.0
    jitter: float = 0.0  # up to so much is added to the delay, per packet, order kept
    rate: float | None = None  # bytes per second; None: no queue
    queue: float = 0.25  # seconds of `rate` that wait before packets are dropped
    loss: float = 0.0
    burst: Burst | None = None
    reorder: float = 0.0  # chance that a packet overtakes: it skips the jitter and the order
    duplicate: float = 0.0
    mtu: int = 1500  # bytes, IP header included


class Pipe:
    """The state of one direction: when it is free again, and its draw of luck."""

    __slots__ = ("_bad", "_free", "_last", "_plain", "_random", "spec")

    def __init__(self, spec: PipeSpec, random: Random) -> None:
        self.spec = spec
        self._random = random
        self._free = 0.0  # when the queue is empty
        self._last = 0.0  # the latest arrival so far
        self._bad = False

    def offer(self, now: float, size: int) -> float:
        """When a packet of `size` bytes offered `now` arrives; negative: why it does not."""
        spec = self.spec
        if size > spec.mtu:
            return TOO_BIG
        when = now
        if spec.rate is not None:
            start = self._free if self._free > now else now
            if start - now > spec.queue:
                return OVERFLOWED
            when = self._free = start + size / spec.rate
        if (spec.loss or spec.burst) and self._is_lost():
            return LOST
        when += spec.delay
        if spec.jitter:
            if spec.reorder and self._random.random() < spec.reorder:
                return when
            when += self._random.random() * spec.jitter
            if when < self._last:
                when = self._last
            self._last = when
        return when

    def _is_lost(self) -> bool:
        burst = self.spec.burst
        if burst is None:
            return self._random.random() < self.spec.loss
        turn = self._random.random()
        self._bad = turn >= burst.good if self._bad else turn < burst.bad
        loss = burst.loss_bad if self._bad else burst.loss_good
        return self._random.random() < max(loss, self.spec.loss)


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """Both directions of an access link, as its host sees them."""

    up: PipeSpec = PipeSpec()
    down: PipeSpec = PipeSpec()

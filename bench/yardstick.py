"""A yardstick of this machine, so that goals in milliseconds are portable between machines.

`work()` is a fixed piece of Python like that of an event loop: small objects, a dictionary, bytes.
It took a millisecond on the machine where the goals were first reached (an AMD EPYC of 2026, Python
3.11). A script divides the time of its own work by the time of this piece, which gives milliseconds
of that machine: *reference ms*. On a machine that is twice as slow, or twice as busy, both double.
Samples are taken between the measured pieces, with the same clock.
"""

import time
from collections.abc import Callable
from statistics import median

# One millisecond of the reference machine.
ROUNDS = 3_000


class _Item:
    __slots__ = ("data", "key")

    def __init__(self, key: int, data: bytes) -> None:
        self.key = key
        self.data = data


def work() -> int:
    """Run a reference millisecond of pure Python; the result keeps the work from being skipped."""
    table: dict[int, _Item] = {}
    total = 0
    for number in range(ROUNDS):
        item = _Item(number * 7919 % 509, number.to_bytes(8))
        old = table.get(item.key)
        if old is not None:
            total += len(old.data) + old.key
        table[item.key] = item
        total += sum(item.data[4:])
    return total


class Yardstick:
    """Samples of `work()`, by the clock that measures the rest; each of `length` reference ms."""

    def __init__(self, clock: Callable[[], float] = time.process_time, *, length: int = 1) -> None:
        self._clock = clock
        self._length = length
        self._samples: list[float] = []
        for _ in range(20):  # the interpreter specialises code that runs often
            work()

    def sample(self, count: int = 1) -> None:
        """Take samples."""
        for _ in range(count):
            began = self._clock()
            for _ in range(self._length):
                work()
            self._samples.append((self._clock() - began) / self._length)

    @property
    def ms(self) -> float:
        """Return the ms that a reference millisecond takes here: the median of the samples."""
        return median(self._samples) * 1e3

    def reference_ms(self, ms: float) -> float:
        """Convert milliseconds of this run into milliseconds of the reference machine."""
        return ms / self.ms

    def reference_tail_ms(self, ms: float, share: float) -> float:
        """Convert a percentile by the same percentile of the samples: a busy machine lengthens the
        tails of both.
        """
        samples = sorted(self._samples)
        return ms / 1e3 / samples[int(share * (len(samples) - 1))]

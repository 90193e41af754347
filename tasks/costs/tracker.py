"""Compares measured seconds with predicted ones, and corrects predictions by what was measured.

Measured seconds must be of this node's own clock, except those that a node reports of itself. Each
correction is the median of the last ratios, so up to half of them may be wrong, by chance or by
intent, without effect. The first measured step already replaces what was claimed.
"""

import math
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

WINDOW = 15
"""Ratios of which the median is taken: a lasting change counts after 8 steps."""
RATIO = 1e6
"""Largest ratio of measured and predicted seconds, in either direction."""
ERROR_MEMORY = 0.98
"""Weight of the past in the mean error: that of the last 50 samples."""
ERROR_MOST = 10.0
"""Largest relative error of one sample that counts, so that one hang does not hide the others."""
LONGEST = 3600.0
"""Seconds above which a measured time is not believed."""

K = TypeVar("K", bound=Hashable)


class Deviation(NamedTuple):
    """How far predictions were from what was measured: the mean of |predicted - measured| /
    measured, over about the last 50 of `samples`."""

    mean: float
    samples: int


class MeanError:
    """Mean relative error of predictions, over about the last 50 of them."""

    __slots__ = ("_mean", "_samples")

    def __init__(self) -> None:
        self._mean = 0.0
        self._samples = 0

    @property
    def value(self) -> Deviation:
        """The mean error so far."""
        return Deviation(self._mean, self._samples)

    def note(self, predicted: float, measured: float) -> None:
        """Record a prediction and what was measured. Ignores seconds that are not believed."""
        if not _believed(predicted, measured):
            return
        self._samples += 1
        error = min(abs(predicted - measured) / measured, ERROR_MOST)
        self._mean += max(1.0 / self._samples, 1.0 - ERROR_MEMORY) * (error - self._mean)


class Tracker:
    """Predicted against measured seconds of one thing: a shard, a peer's stage, or a link.

    `factor` is what predictions must be multiplied with; 1 until something was measured.
    """

    __slots__ = ("_error", "_recent", "_sorted", "factor", "samples")

    def __init__(self) -> None:
        self.factor = 1.0
        self.samples = 0
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._error = MeanError()

    @property
    def error(self) -> Deviation:
        """The error of the corrected predictions, each made before its measurement."""
        return self._error.value

    def note(self, predicted: float, measured: float) -> bool:
        """Record one uncorrected prediction and the measured seconds. Return whether they were
        believed: both must be finite, above 0 and at most LONGEST."""
        if not _believed(predicted, measured):
            return False
        if self.samples:
            self._error.note(predicted * self.factor, measured)
        self.samples += 1
        ratio = min(max(measured / predicted, 1 / RATIO), RATIO)
        if len(self._recent) == WINDOW:
            self._sorted.remove(self._recent.popleft())
        self._recent.append(ratio)
        insort(self._sorted, ratio)
        self.factor = self._median()
        return True

    def _median(self) -> float:
        """Return the median ratio; of two in the middle, their geometric mean."""
        middle, odd = divmod(len(self._sorted), 2)
        upper = self._sorted[middle]
        return upper if odd else math.sqrt(self._sorted[middle - 1] * upper)


def _believed(predicted: float, measured: float) -> bool:
    """Return whether both are seconds that a clock can show. NaN is not."""
    return 0.0 < predicted <= LONGEST and 0.0 < measured <= LONGEST


class Expected(NamedTuple, Generic[K]):
    """A part of a measured time: whose it is, the seconds that are predicted from its claims, and
    those that it would take on a slow machine, which no claim can change."""

    key: K
    predicted: float
    cautious: float


class Trackers(Generic[K]):
    """Trackers of many peers, shards or links: at most `most`; the least recently used one goes.

    A new key, such as a peer with a new name, is trusted as little as its claims are.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._by_key: OrderedDict[K, Tracker] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def factor(self, key: K) -> float:
        """Return the factor for predictions about `key`, 1 if nothing was measured."""
        tracker = self._by_key.get(key)
        return tracker.factor if tracker else 1.0

    def samples(self, key: K) -> int:
        """Return the number of measurements of `key`."""
        tracker = self._by_key.get(key)
        return tracker.samples if tracker else 0

    def error(self, key: K) -> Deviation:
        """Return the error of the predictions about `key`."""
        tracker = self._by_key.get(key)
        return tracker.error if tracker else Deviation(0.0, 0)

    def note(self, key: K, predicted: float, measured: float) -> bool:
        """Record one prediction about `key`, and what was measured, in seconds (see
        `Tracker.note`)."""
        return self._of(key).note(predicted, measured)

    def note_sum(self, parts: Sequence[Expected[K]], measured: float) -> bool:
        """Record the measured seconds of several parts together, such as the stages of a chain.

        Time beyond the corrected predictions is divided by how uncertain each part is: a
        part that was never measured may take as long as a slow machine would, whatever it claims.
        Each measurement makes a part less uncertain. Return whether the measurement was believed.
        """
        if not parts or not 0.0 < measured <= LONGEST:
            return False
        known = [each.predicted * self.factor(each.key) for each in parts]
        doubts = [self._doubt(each, now) for each, now in zip(parts, known, strict=True)]
        excess, doubt = measured - sum(known), sum(doubts)
        if not (math.isfinite(excess) and 0.0 < doubt < math.inf):
            return False
        for each, now, own in zip(parts, known, doubts, strict=True):
            share = now + excess * own / doubt
            self._of(each.key).note(each.predicted, max(share, now / 4, 1e-9))
        return True

    def _doubt(self, part: Expected[K], now: float) -> float:
        """Return how many seconds a part's prediction may be wrong by."""
        samples = self.samples(part.key)
        return now / math.sqrt(samples) if samples else max(now, part.cautious)

    def _of(self, key: K) -> Tracker:
        tracker = self._by_key.get(key)
        if tracker is None:
            tracker = self._by_key[key] = Tracker()
            if len(self._by_key) > self._most:
                self._by_key.popitem(last=False)
        self._by_key.move_to_end(key)
        return tracker

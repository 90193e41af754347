"""Token buckets: how often something may happen, in all and for each of many."""

from collections import OrderedDict
from dataclasses import dataclass

from . import defaults


@dataclass(frozen=True, slots=True)
class Rate:
    """`burst` at once, and `per_s` a second in the long run."""

    burst: float
    per_s: float


class Bucket:
    """One thing's rate, full at the time `now`."""

    __slots__ = ("_at", "_level", "_rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._level = rate.burst
        self._at = now

    def take(self, now: float, count: float = 1) -> bool:
        """Whether so many more may happen; if so, they count."""
        if not self.has(now, count):
            return False
        self._level -= count
        return True

    def give(self, now: float, count: float = 1) -> None:
        """So many that were taken did not count after all."""
        self.has(now)
        self._level = min(self._rate.burst, self._level + count)

    def has(self, now: float, count: float = 1) -> bool:
        """Whether so many more may happen."""
        return self.level(now) >= count

    def level(self, now: float) -> float:
        """Return how many more may happen."""
        earned = max(0.0, now - self._at) * self._rate.per_s
        self._level = min(self._rate.burst, self._level + earned)
        self._at = now
        return self._level

    @property
    def due(self) -> float:
        """When one more may happen, if nothing happens until then."""
        return self._at + max(0.0, 1.0 - self._level) / self._rate.per_s


class Rates:
    """A bucket for each key, and one for all together where there is a `total`.

    Bounded in memory: of more keys than `keys`, those seen longest ago start anew. Who makes up
    keys to be forgotten gains nothing over the bucket of all together.
    """

    def __init__(
        self, each: Rate, total: Rate | None = None, *, keys: int = defaults.RATE_KEYS
    ) -> None:
        self._each = each
        self._total = None if total is None else Bucket(total, 0.0)
        self._keys = keys
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, key: str, now: float, count: float = 1) -> bool:
        """Whether it may happen for this key now, so many times; if so, it counts."""
        bucket = self._buckets.pop(key, None) or Bucket(self._each, now)
        self._buckets[key] = bucket
        if len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)
        if not bucket.has(now, count) or not (self._total is None or self._total.take(now, count)):
            return False
        return bucket.take(now, count)

    def give(self, key: str, now: float) -> None:
        """One that was taken did not count after all."""
        if (bucket := self._buckets.get(key)) is not None:
            bucket.give(now)

    def __len__(self) -> int:
        """Keys that are remembered."""
        return len(self._buckets)

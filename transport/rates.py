"""Rate limiters (token buckets): one in all, or one for each of many keys."""

from collections import OrderedDict
from dataclasses import dataclass

from . import defaults


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate: `burst` events at once, and `per_s` events per second in the long run."""

    burst: float
    per_s: float


class Bucket:
    """Rate limiter, full at the time `now`."""

    __slots__ = ("_at", "_level", "_rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._level = rate.burst
        self._at = now

    def take(self, now: float, count: float = 1) -> bool:
        """Take `count` tokens if there are as many. Return whether there were."""
        if not self.has(now, count):
            return False
        self._level -= count
        return True

    def give(self, now: float, count: float = 1) -> None:
        """Return `count` tokens that were taken but not used."""
        self.has(now)
        self._level = min(self._rate.burst, self._level + count)

    def has(self, now: float, count: float = 1) -> bool:
        """Whether there are `count` tokens."""
        return self.level(now) >= count

    def level(self, now: float) -> float:
        """Return how many tokens there are."""
        earned = max(0.0, now - self._at) * self._rate.per_s
        self._level = min(self._rate.burst, self._level + earned)
        self._at = now
        return self._level

    @property
    def due(self) -> float:
        """When there will be one token, if none is taken until then."""
        return self._at + max(0.0, 1.0 - self._level) / self._rate.per_s


class Rates:
    """Rate limiter for each key, and one for all keys together if there is a `total`.

    Memory is bounded: beyond `keys` keys, those used longest ago start again with a full bucket.
    So inventing keys helps against the limiter of one key, but not against the total.
    """

    def __init__(
        self, each: Rate, total: Rate | None = None, *, keys: int = defaults.RATE_KEYS
    ) -> None:
        self._each = each
        self._total = None if total is None else Bucket(total, 0.0)
        self._keys = keys
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, key: str, now: float, count: float = 1) -> bool:
        """Take `count` tokens of this key and of the total if both have them. Return whether they
        had."""
        bucket = self._buckets.pop(key, None) or Bucket(self._each, now)
        self._buckets[key] = bucket
        if len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)
        if not bucket.has(now, count) or not (self._total is None or self._total.take(now, count)):
            return False
        return bucket.take(now, count)

    def give(self, key: str, now: float) -> None:
        """Return a token of a key that was taken but not used."""
        if (bucket := self._buckets.get(key)) is not None:
            bucket.give(now)

    def __len__(self) -> int:
        """Return the number of keys that are remembered."""
        return len(self._buckets)

"""Rate limiters (token buckets) and budgets: one in all, or one for each of many keys, source
networks, targets or links."""

from collections import OrderedDict, deque
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from . import defaults
from .networks import Network, networks, targets

_SLICES: Final = 60


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

    def spend(self, now: float, count: float) -> None:
        """Take `count` tokens even if there are fewer. The rest is owed."""
        self._level = self.level(now) - count

    def when(self, now: float, count: float) -> float:
        """Return when there will be `count` tokens, if none is taken until then."""
        return now + max(0.0, count - self.level(now)) / self._rate.per_s

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


class SourceRates:
    """Rate limiter by source network, with a rate for each network size and one for all sources.

    A source spends from every network that contains it (`networks.networks`). Memory is bounded: a
    new network replaces the one that was used least recently, as in `Rates`.
    """

    def __init__(
        self,
        each: Rate,
        total: Rate | None = None,
        *,
        kept: float = 0.0,
        keys: int = defaults.RATE_KEYS,
    ) -> None:
        """`each` is the rate of the smallest networks.

        The last `kept` tokens of `total` are reserved for sources that are `new`.
        """
        self._each = each
        self._most = total or Rate(inf, inf)
        self._total = None if total is None else Bucket(total, 0.0)
        self._kept = kept
        self._keys = keys
        self._rates: dict[int, Rate] = {}
        self._buckets: OrderedDict[Network, Bucket] = OrderedDict()

    def take(self, ip: str, now: float, *, new: bool = False) -> bool:
        """Return whether one more from this source is within all rates, and count it if so."""
        buckets = [self._bucket(each, now) for each in networks(ip)]
        while len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)
        for bucket in buckets:
            if not bucket.has(now):
                return False
        if self._total is not None:
            if not self._total.has(now, 1 if new else 1 + self._kept):
                return False
            self._total.take(now)
        for bucket in buckets:
            bucket.take(now)
        return True

    def _bucket(self, source: Network, now: float) -> Bucket:
        bucket = self._buckets.get(source)
        if bucket is None:
            bucket = self._buckets[source] = Bucket(self._rate(source.share), now)
        else:
            self._buckets.move_to_end(source)
        return bucket

    def _rate(self, share: int) -> Rate:
        rate = self._rates.get(share)
        if rate is None:
            each, most = self._each, self._most
            burst = bound_of(each.burst, share, most.burst)
            rate = self._rates[share] = Rate(burst, bound_of(each.per_s, share, most.per_s))
        return rate

    def __len__(self) -> int:
        """Return the number of networks with a bucket."""
        return len(self._buckets)


def bound_of(each: float, share: int, most: float) -> float:
    """Return the bound of a network that counts as `share` of the smallest ones, of which one may
    have `each` and all sources `most`."""
    return max(each, min(each * share, most * defaults.LARGEST_SHARE))


class Holder(Protocol):
    """A connection, as far as `MemoryBudget` needs it."""

    def close(self, code: str) -> None: ...


class MemoryBudget:
    """Budget of bytes that several connections hold in memory. Above the limit, the one that holds
    most is closed (`overloaded`)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_holder: dict[Holder, int] = {}
        self._used = 0

    def set(self, holder: Holder, held: int) -> None:
        """Record how many bytes a connection holds now."""
        self._used += held - self._by_holder.get(holder, 0)
        self._by_holder[holder] = held
        if self._used > self._limit:
            most = max(self._by_holder, key=self._by_holder.__getitem__)
            self.drop(most)
            most.close("overloaded")

    def drop(self, holder: Holder) -> None:
        """Forget a connection that has ended."""
        self._used -= self._by_holder.pop(holder, 0)


class _Account:
    """Spending on one target."""

    __slots__ = ("slices", "spent")

    def __init__(self) -> None:
        self.slices: deque[list[int]] = deque()  # [slice's number, count]
        self.spent = 0

    def forget(self, before: int) -> None:
        while self.slices and self.slices[0][0] < before:
            self.spent -= self.slices.popleft()[1]

    def add(self, number: int) -> None:
        if not self.slices or self.slices[-1][0] != number:
            self.slices.append([number, 0])
        self.slices[-1][1] += 1
        self.spent += 1


class TargetBudget:
    """Budget for what this node sends to addresses that peers have named.

    An attacker that makes peers name an address must not be able to aim a swarm at it. So each node
    bounds what it sends per address and per network that may belong to one victim
    (`networks.targets`): `most` times in any window of `window_s` seconds. Spending is counted in
    slices of a sixtieth of the window. A slice that is partly over still counts, so no window
    exceeds the bound. Memory is bounded to `accounts` targets.
    """

    def __init__(self, most: int, window_s: float, accounts: int) -> None:
        self._most = most
        self._slice_s = window_s / _SLICES
        self._limit = accounts
        self._accounts: dict[str, _Account] = {}

    def take(self, ip: str, now: float) -> bool:
        """Count one packet or dial to an IP address. Return False if it must not be made."""
        found = []
        for target in targets(ip):
            account = self._accounts.get(target.name)
            if account is None:
                if len(self._accounts) >= self._limit and not self._make_room(now):
                    return False
                account = self._accounts[target.name] = _Account()
            account.forget(self._oldest(now))
            if account.spent >= self._most * target.share:
                return False
            found.append(account)
        for account in found:
            account.add(int(now / self._slice_s))
        return True

    def left(self, ip: str, now: float) -> int:
        """Return how often `take` would still allow an IP address now."""
        left = []
        for target in targets(ip):
            account = self._accounts.get(target.name)
            spent = 0
            if account is not None:
                account.forget(self._oldest(now))
                spent = account.spent
            left.append(self._most * target.share - spent)
        return min(left)

    def __len__(self) -> int:
        """Return the number of targets with an account."""
        return len(self._accounts)

    def _oldest(self, now: float) -> int:
        """Return the oldest slice that counts. The newest is incomplete, so one extra counts."""
        return int(now / self._slice_s) - _SLICES

    def _make_room(self, now: float) -> bool:
        """Forget targets on which nothing was spent for a window. Active ones are never forgotten:
        otherwise an attacker could reset its target by naming a thousand others."""
        oldest = self._oldest(now)
        for key, account in list(self._accounts.items()):
            account.forget(oldest)
            if not account.spent:
                del self._accounts[key]
        return len(self._accounts) < self._limit

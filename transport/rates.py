"""Rate limiters (token buckets) and budgets.

There are limiters for a single caller, and for each of many keys, source networks or links.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

import trio

from . import defaults
from .networks import ContainingNetwork, networks, targets

_SLICES: Final = 60  # slices into which a window is divided, a count


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate: `burst` events at once, and `per_s` events per second in the long run."""

    burst: float
    per_s: float


class RateLimiter:
    """Rate limiter (token bucket), which is full at the time `now`. Times are in seconds."""

    __slots__ = ("_at", "_level", "_rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._level = rate.burst
        self._at = now

    def take(self, now: float, count: float = 1) -> bool:
        """Take `count` tokens if there are enough. Return whether there were."""
        if not self.has(now, count):
            return False
        self._level -= count
        return True

    def give(self, now: float, count: float = 1) -> None:
        """Put back `count` tokens that were taken but not used."""
        self.has(now)
        self._level = min(self._rate.burst, self._level + count)

    def has(self, now: float, count: float = 1) -> bool:
        """Return whether there are at least `count` tokens."""
        return self.level(now) >= count

    def level(self, now: float) -> float:
        """Return the number of tokens. It is negative while tokens are owed (`spend`)."""
        earned = max(0.0, now - self._at) * self._rate.per_s
        self._level = min(self._rate.burst, self._level + earned)
        self._at = now
        return self._level

    def spend(self, now: float, count: float) -> None:
        """Take `count` tokens even if there are fewer. The level then becomes negative."""
        self._level = self.level(now) - count

    async def pay(self, count: float) -> None:
        """Spend `count` tokens, and wait until none are owed."""
        now = trio.current_time()
        self.spend(now, count)
        if (due := self.when(now, 0)) > now:
            await trio.sleep_until(due)

    def when(self, now: float, count: float) -> float:
        """Return the time at which there will be `count` tokens, if none is taken until then."""
        return now + max(0.0, count - self.level(now)) / self._rate.per_s

    @property
    def due(self) -> float:
        """The time at which there will be one token, if none is taken until then."""
        return self._at + max(0.0, 1.0 - self._level) / self._rate.per_s


class Rates:
    """Rate limiter for each key, and one for all keys together if `total` is given.

    Memory is bounded. If there are more than `keys` keys, the least recently used one is removed,
    and starts again with a full bucket later. An attacker that invents keys can therefore evade the
    limit per key, but not the total.
    """

    def __init__(
        self, each: Rate, total: Rate | None = None, *, keys: int = defaults.RATE_KEYS
    ) -> None:
        self._each = each
        self._total = None if total is None else RateLimiter(total, 0.0)
        self._keys = keys
        self._buckets: OrderedDict[str, RateLimiter] = OrderedDict()

    def take(self, key: str, now: float, count: float = 1) -> bool:
        """Take `count` tokens of this key and of the total, if both have enough. Return whether
        they had."""
        bucket = self._buckets.pop(key, None) or RateLimiter(self._each, now)
        self._buckets[key] = bucket
        if len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)
        if not bucket.has(now, count) or not (self._total is None or self._total.take(now, count)):
            return False
        return bucket.take(now, count)

    def give(self, key: str, now: float) -> None:
        """Put back one token of a key that was taken but not used. The total does not get it
        back."""
        if (bucket := self._buckets.get(key)) is not None:
            bucket.give(now)

    def __len__(self) -> int:
        """Return the number of keys that have a bucket."""
        return len(self._buckets)


class DialLimiter:
    """Rate limiter of dials for background work, because a dial costs more than its request.

    It allows one dial each `pause` seconds, the first after the first pause. Each pause is 1.5
    times as long as the previous one, but at most `most` seconds, because a node has the most
    background work soon after its start. Requests of a user or an application do not use it.
    """

    def __init__(self, pause: float, now: float, most: float = 0.0) -> None:
        self.pause = pause
        self._most = max(pause, most)
        self.at = now + pause
        """Time at which the next dial is allowed."""

    def take(self, now: float) -> bool:
        """Return whether a dial may begin now. If so, the next pause starts."""
        if now < self.at:
            return False
        self.pause = min(1.5 * self.pause, self._most)
        self.at = now + self.pause
        return True

    def within(self, seconds: float, dials: int, now: float) -> "DialLimiter":
        """Return a rate limiter that allows `dials` dials within `seconds`.

        This is the same object if it is fast enough. Otherwise, it is a faster one, because a
        thousand records, for example, must not expire while they are being announced.
        """
        if dials * self.pause <= seconds:
            return self
        return DialLimiter(seconds / dials, now)


class SourceRates:
    """Rate limiter by source network, with a rate for each network size and one for all sources.

    Each network that contains a source (`networks.networks`) has a bucket, and a source takes a
    token from each of them. Memory is bounded: a new network replaces the one that was used least
    recently, as in `Rates`.
    """

    def __init__(
        self,
        each: Rate,
        total: Rate | None = None,
        *,
        kept: float = 0.0,
        keys: int = defaults.RATE_KEYS,
    ) -> None:
        """`each` is the rate of each smallest network, and `total` the rate of all sources
        together.

        The last `kept` tokens of `total` are reserved for calls of `take` with `new=True`. `keys`
        is the largest number of networks that have a bucket.
        """
        self._each = each
        self._most = total or Rate(inf, inf)
        self._total = None if total is None else RateLimiter(total, 0.0)
        self._kept = kept
        self._keys = keys
        self._rates: dict[int, Rate] = {}
        self._buckets: OrderedDict[ContainingNetwork, RateLimiter] = OrderedDict()

    def take(self, ip: str, now: float, *, new: bool = False) -> bool:
        """Take a token from all buckets of a source, if each has one. Return whether they had.

        If `new` is True, the reserved tokens of the total may be taken as well.
        """
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

    def _bucket(self, source: ContainingNetwork, now: float) -> RateLimiter:
        """Return the bucket of a network. Creates it if there is none."""
        bucket = self._buckets.get(source)
        if bucket is None:
            bucket = self._buckets[source] = RateLimiter(self._rate(source.share), now)
        else:
            self._buckets.move_to_end(source)
        return bucket

    def _rate(self, share: int) -> Rate:
        """Return the rate of a network whose limit is `share` times that of a smallest network."""
        rate = self._rates.get(share)
        if rate is None:
            each, most = self._each, self._most
            burst = bound_of(each.burst, share, most.burst)
            rate = self._rates[share] = Rate(burst, bound_of(each.per_s, share, most.per_s))
        return rate

    def __len__(self) -> int:
        """Return the number of networks that have a bucket."""
        return len(self._buckets)


def bound_of(each: float, share: int, most: float) -> float:
    """Return the limit of a network: `share` times `each`, but at most half of `most` and at least
    `each`.

    `each` is the limit of a smallest network, and `most` the limit of all sources together.
    """
    return max(each, min(each * share, most * defaults.LARGEST_SHARE))


class MemoryUser(Protocol):
    """Connection that holds bytes in memory. This is the part of its interface that `MemoryBudget`
    uses."""

    def close(self, code: str) -> None:
        """Close the connection with an error code."""
        ...


class MemoryBudget:
    """Budget of bytes that several connections hold in memory.

    If they exceed `limit` bytes, the connection that holds most is closed with the code
    `overloaded`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_user: dict[MemoryUser, int] = {}
        self._used = 0

    def set(self, user: MemoryUser, held: int) -> None:
        """Record the number of bytes that a connection holds now. If the total then exceeds the
        limit, close the connection that holds most."""
        self._used += held - self._by_user.get(user, 0)
        self._by_user[user] = held
        if self._used > self._limit:
            most = max(self._by_user, key=self._by_user.__getitem__)
            self.drop(most)
            most.close("overloaded")

    def drop(self, user: MemoryUser) -> None:
        """Remove a connection that has ended."""
        self._used -= self._by_user.pop(user, 0)


class ByteBudget:
    """Fixed budget of `limit` bytes that several users share."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        """Bytes that are taken now."""

    def take(self, size: int) -> bool:
        """Take `size` bytes. Return False, and take none, if fewer are left."""
        if self.used + size > self.limit:
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        """Give back `size` bytes that were taken."""
        self.used -= size


class _Account:
    """Sliding count of what was sent to one target."""

    __slots__ = ("slices", "spent")

    def __init__(self) -> None:
        self.slices: deque[list[int]] = deque()  # [number of the slice, count in it]
        self.spent = 0

    def forget(self, before: int) -> None:
        """Remove the slices with numbers below `before`."""
        while self.slices and self.slices[0][0] < before:
            self.spent -= self.slices.popleft()[1]

    def add(self, number: int) -> None:
        """Add 1 to the slice with this number, which is the newest one."""
        if not self.slices or self.slices[-1][0] != number:
            self.slices.append([number, 0])
        self.slices[-1][1] += 1
        self.spent += 1


class TargetBudget:
    """Budget for what this node sends to addresses that peers have named.

    An attacker could make many peers name the address of a victim, and so direct a whole swarm at
    it. Each node therefore limits what it sends to each address, and to each network that may
    belong to one victim (`networks.targets`). It may send `most` times in any window of `window_s`
    seconds; a larger network gets a multiple of `most`. The count is kept in slices of a sixtieth
    of the window. A slice that lies only partly inside the window counts in full, so that no window
    exceeds the limit.

    Memory is bounded: at most `accounts` targets have a counter.
    """

    def __init__(self, most: int, window_s: float, accounts: int) -> None:
        self._most = most
        self._slice_s = window_s / _SLICES
        self._limit = accounts
        self._accounts: dict[str, _Account] = {}
        self._held: Counter[str] = Counter()

    def take(self, ip: str, now: float) -> bool:
        """Count one packet or dial to an IP address, or return False if it must not be sent."""
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
        """Return how many more packets or dials to an IP address are allowed now, after those that
        are held."""
        left, new = [], 0
        for target in targets(ip):
            account = self._accounts.get(target.name)
            spent = 0
            if account is None:
                new += 1
            else:
                account.forget(self._oldest(now))
                spent = account.spent
            left.append(self._most * target.share - spent - self._held[target.name])
        if new and len(self._accounts) + new > self._limit and not self._make_room(now, new):
            return 0
        return min(left)

    @contextmanager
    def hold(self, ip: str, cost: int) -> Iterator[None]:
        """Hold `cost` packets or dials to an IP address during the block, because they may be
        counted at its end. They are held against each network of the address."""
        names = [target.name for target in targets(ip)]
        for name in names:
            self._held[name] += cost
        try:
            yield
        finally:
            for name in names:
                self._held[name] -= cost
                if not self._held[name]:
                    del self._held[name]

    def __len__(self) -> int:
        """Return the number of targets that have a counter."""
        return len(self._accounts)

    def _oldest(self, now: float) -> int:
        """Return the number of the oldest slice that counts.

        The newest slice is not complete yet, so 61 slices count.
        """
        return int(now / self._slice_s) - _SLICES

    def _make_room(self, now: float, count: int = 1) -> bool:
        """Remove the counters of targets to which nothing was sent for a whole window.

        Returns whether there is room for `count` new targets. Other counters are never removed:
        otherwise an attacker could reset the counter of its victim by naming a thousand other
        addresses.
        """
        oldest = self._oldest(now)
        for key, account in list(self._accounts.items()):
            account.forget(oldest)
            if not account.spent:
                del self._accounts[key]
        return len(self._accounts) + count <= self._limit

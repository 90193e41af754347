"""How often something may be done: a token bucket for each key, and one for all together."""

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from . import defaults


@dataclass(frozen=True, slots=True)
class Rate:
    """`burst` at once, and `per_second` in the long run."""

    burst: float
    per_second: float


class Rates:
    """Bounded in memory: of more keys than `keys`, those seen longest ago start anew.

    Who makes up keys to be forgotten gains nothing over the bucket of all together.
    """

    def __init__(self, each: Rate, total: Rate, *, keys: int = defaults.RATE_KEYS) -> None:
        self._each = each
        self._total = _Bucket(total, 0.0)
        self._keys = keys
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def allow(self, key: str, now: float) -> bool:
        """Whether it may be done for this key now; if so, it counts."""
        bucket = self._buckets.pop(key, None) or _Bucket(self._each, now)
        self._buckets[key] = bucket
        if len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)
        if bucket.level(now) < 1 or self._total.level(now) < 1:
            return False
        bucket.take()
        self._total.take()
        return True

    def __len__(self) -> int:
        """Keys that are remembered."""
        return len(self._buckets)


class _Bucket:
    __slots__ = ("_at", "_level", "_rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._level = rate.burst
        self._at = now

    def level(self, now: float) -> float:
        filled = self._level + (now - self._at) * self._rate.per_second
        self._level = min(self._rate.burst, filled)
        self._at = now
        return self._level

    def take(self) -> None:
        self._level -= 1


def subnet(ip: str) -> str:
    """The /24 (IPv4) or /56 (IPv6: what a home gets) of an IP address."""
    found = ip_address(ip)
    return str(ip_network((found, 24 if found.version == 4 else 56), strict=False))


def region(ip: str) -> str:
    """The /16 (IPv4) or /32 (IPv6): addresses of one are likely one provider's."""
    found = ip_address(ip)
    return str(ip_network((found, 16 if found.version == 4 else 32), strict=False))

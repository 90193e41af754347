"""Token buckets: how often something may happen, for one source or for each of many."""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

_SOURCES: Final = 4096
"""Sources remembered; beyond it the one heard longest ago is forgotten."""


class Bucket:
    """`rate` a second on average, `burst` at once."""

    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = self._level = burst
        self._at = now

    def take(self, now: float) -> bool:
        """Whether one more may happen; then it counts."""
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level < 1:
            return False
        self._level -= 1
        return True


class Buckets:
    """One bucket per source."""

    def __init__(self, rate: float, burst: float, sources: int = _SOURCES) -> None:
        self._rate = rate
        self._burst = burst
        self._sources = sources
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, source: str, now: float) -> bool:
        """Whether one more may come from there."""
        bucket = self._buckets.pop(source, None) or Bucket(self._rate, self._burst, now)
        self._buckets[source] = bucket
        if len(self._buckets) > self._sources:
            self._buckets.popitem(last=False)
        return bucket.take(now)


def subnet_of(address: str) -> str:
    """What counts as one source: a /24 of IPv4, a /64 of IPv6 (one home has as many)."""
    ip = ip_address(address)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return str(ip_network((ip, 24 if ip.version == 4 else 64), strict=False))

"""Port forwards that inner hosts have requested from a gateway, with their lifetimes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ...network.gateway import SubnetRouter
from ...network.packet import Addr
from ..ports import HIGH_PORT, LOW_PORT

LEASES: Final = 1024
PER_HOST: Final = 128


class Full(Exception):
    """The table has no space for another lease."""


@dataclass(slots=True)
class Lease:
    """Forward of one outer port to an inner endpoint until the time `expires` (infinity:
    forever).
    """

    proto: int
    port: int
    inner: Addr
    expires: float
    nonce: bytes | None = None  # only a PCP client that knows it may change the lease
    description: str = ""
    timed: bool = False  # whether an event is scheduled that checks the lease


class Leases:
    """Table of leases that UPnP, NAT-PMP and PCP of one gateway share.

    If `works` is False, the router confirms requests but forwards nothing.
    """

    def __init__(self, gateway: SubnetRouter, *, longest: float, works: bool) -> None:
        self.gateway = gateway
        self.longest = longest  # seconds that a lease can have
        self._works = works
        self._booted = gateway.network.events.now
        self._by_port: dict[tuple[int, int], Lease] = {}
        self._by_inner: dict[tuple[int, Addr], Lease] = {}

    @property
    def now(self) -> float:
        return self.gateway.network.events.now

    @property
    def epoch(self) -> int:
        """Seconds since the table last lost its state (RFC 6886, section 3.6; RFC 6887, section
        8.5).
        """
        return int(self.now - self._booted)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._by_port.values()))

    def __len__(self) -> int:
        return len(self._by_port)

    def forget(self) -> None:
        """Delete all leases, because the gateway has rebooted."""
        self._by_port.clear()
        self._by_inner.clear()
        self._booted = self.now

    def at_port(self, proto: int, port: int) -> Lease | None:
        """Return the lease of an outer port, or None. `proto` is the IP protocol number."""
        return self._by_port.get((proto, port))

    def of(self, proto: int, inner: Addr) -> Lease | None:
        return self._by_inner.get((proto, inner))

    def free_port(self, proto: int, wish: int) -> int:
        """Return the port `wish` if it is free, otherwise another free port. Raises Full if none is
        found.
        """
        if wish and (proto, wish) not in self._by_port:
            return wish
        random = self.gateway.network.streams.get(self.gateway.name, "igd")
        for _ in range(64):
            port = random.randint(LOW_PORT, HIGH_PORT)
            if (proto, port) not in self._by_port:
                return port
        raise Full

    def add(self, proto: int, port: int, inner: Addr, seconds: float) -> Lease:
        """Forward a port to an inner endpoint for `seconds`, or renew its lease; infinity means
        forever. Raises Full if there is no space.
        """
        lease = self._by_port.get((proto, port))
        if lease is None:
            mine = sum(each.inner[0] == inner[0] for each in self._by_port.values())
            if len(self._by_port) >= LEASES or mine >= PER_HOST:
                raise Full
            lease = self._by_port[proto, port] = Lease(proto, port, inner, 0.0)
        elif lease.inner != inner:
            self._by_inner.pop((proto, lease.inner), None)
            lease.inner = inner
        self._by_inner[proto, inner] = lease
        lease.expires = self.now + seconds
        if self._works:
            self.gateway.forward(proto, port, inner)
        self._watch(lease)
        return lease

    def remove(self, lease: Lease) -> None:
        """End a lease. A connection through it may continue."""
        self._by_port.pop((lease.proto, lease.port), None)
        if self._by_inner.get((lease.proto, lease.inner)) is lease:
            del self._by_inner[lease.proto, lease.inner]
        self.gateway.unforward(lease.proto, lease.port)

    def _watch(self, lease: Lease) -> None:
        if not lease.timed and lease.expires < math.inf:
            lease.timed = True
            self.gateway.network.events.at(lease.expires, self._look, lease)

    def _look(self, lease: Lease) -> None:
        """End a lease whose time has come, unless it was renewed in the meantime."""
        lease.timed = False
        if self._by_port.get((lease.proto, lease.port)) is not lease:
            return
        if lease.expires <= self.now:
            self.remove(lease)
        else:
            self._watch(lease)

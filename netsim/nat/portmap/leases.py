"""The ports that inside hosts have asked a gateway to lead to them, and for how long."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ...network.gateway import Gateway
from ...network.packet import Addr
from ..ports import HIGH_PORT, LOW_PORT

LEASES: Final = 1024
PER_HOST: Final = 128


class Full(Exception):
    """The table has no space for another lease."""


@dataclass(slots=True)
class Lease:
    """One outer port that leads inside until `expires` (infinity: forever)."""

    proto: int
    port: int
    inner: Addr
    expires: float
    nonce: bytes | None = None  # of PCP: only a client that knows it may change the lease
    description: str = ""
    timed: bool = False  # an event will check it


class Leases:
    """The table that UPnP, NAT-PMP and PCP of one gateway share.

    `works` False is a router that confirms requests but forwards nothing.
    """

    def __init__(self, gateway: Gateway, *, longest: float, works: bool) -> None:
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
        """Seconds since the table last lost its state (RFC 6886 3.6, RFC 6887 8.5)."""
        return int(self.now - self._booted)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._by_port.values()))

    def __len__(self) -> int:
        return len(self._by_port)

    def forget(self) -> None:
        """Forget all leases: the gateway has rebooted."""
        self._by_port.clear()
        self._by_inner.clear()
        self._booted = self.now

    def at_port(self, proto: int, port: int) -> Lease | None:
        return self._by_port.get((proto, port))

    def of(self, proto: int, inner: Addr) -> Lease | None:
        return self._by_inner.get((proto, inner))

    def free_port(self, proto: int, wish: int) -> int:
        """Return `wish` if it is free, otherwise another free port. Raises Full."""
        if wish and (proto, wish) not in self._by_port:
            return wish
        random = self.gateway.network.streams.get(self.gateway.name, "igd")
        for _ in range(64):
            port = random.randint(LOW_PORT, HIGH_PORT)
            if (proto, port) not in self._by_port:
                return port
        raise Full

    def add(self, proto: int, port: int, inner: Addr, seconds: float) -> Lease:
        """Lead a port inside, or extend a lease: 0 < seconds <= infinity. Raises Full."""
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
        """End a lease; a connection through it may continue."""
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

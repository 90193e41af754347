"""Port allocation of one host. Linux's rules decide which sockets may share a port (socket(7))."""

import errno
import os
from collections.abc import Callable
from random import Random

WILDCARDS = ("0.0.0.0", "::")


class PortClaim:
    """Local address and port of a socket. Port 0 means that it has no port yet."""

    __slots__ = ("address", "automatic", "listens", "only6", "port", "reuse_address", "reuse_port")

    def __init__(self, address: str) -> None:
        self.address = address
        self.port = 0
        self.only6 = False  # IPV6_V6ONLY
        self.reuse_address = False
        self.reuse_port = False
        self.listens = False
        self.automatic = False  # whether `connect` chose the port

    def overlaps(self, other: "PortClaim") -> bool:
        """Return whether some packet could match both bindings."""
        a, b = self.address, other.address
        if (":" in a) == (":" in b):
            return a == b or a in WILDCARDS or b in WILDCARDS
        six = self if ":" in a else other
        return six.address == "::" and not six.only6

    def tolerates(self, other: "PortClaim") -> bool:
        """Return whether this binding may be added to a port where `other` overlaps it (Linux:
        inet_bind_conflict).
        """
        if self.reuse_port and other.reuse_port:
            return True
        shares = self.reuse_address and other.reuse_address
        return shares and not other.listens

    def inherit(self, address: str) -> "PortClaim":
        """Return the binding of a connection that arrived at this listener, at the local address
        `address`.
        """
        child = PortClaim(address)
        child.port = self.port
        child.only6 = self.only6
        child.reuse_address = self.reuse_address
        child.reuse_port = self.reuse_port
        return child


class PortClaims:
    """Table of all bindings on one host."""

    def __init__(self, random: Random, low: int, high: int) -> None:
        self._claims: dict[int, dict[PortClaim, None]] = {}
        self._low = low
        self._high = high
        self._last = random.randrange(low, high)

    def claim(self, binding: PortClaim, port: int) -> None:
        """Bind to a port; 0 means any free port. Raises OSError (EADDRINUSE) if another binding
        conflicts.
        """
        port = port or self._free(lambda claims: not claims)
        if not self.may_stand(binding, port):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.add(binding, port)

    def may_stand(self, binding: PortClaim, port: int) -> bool:
        """Return whether no other binding conflicts with this one at `port`."""
        return all(
            other is binding or not binding.overlaps(other) or binding.tolerates(other)
            for other in self._claims.get(port, ())
        )

    def claim_for_dial(self, binding: PortClaim, taken: Callable[[int], bool]) -> None:
        """Choose a port for `connect`: an unused port or, if all are used, a port that only other
        outgoing connections use. `taken` returns whether a port already has a connection to the
        same remote endpoint. Raises OSError (EADDRNOTAVAIL) if no port is left.
        """
        binding.automatic = True
        try:
            port = self._free(lambda claims: not claims)
        except OSError:
            port = self._shared(taken)
        self.add(binding, port)

    def add(self, binding: PortClaim, port: int) -> None:
        """Register a binding at a port without checking for conflicts."""
        binding.port = port
        self._claims.setdefault(port, {})[binding] = None

    def release(self, binding: PortClaim) -> None:
        """Remove a binding from the table, if it is there."""
        claims = self._claims.get(binding.port)
        if claims is not None and binding in claims:
            del claims[binding]
            if not claims:
                del self._claims[binding.port]

    def _free(self, usable: Callable[[dict[PortClaim, None] | None], bool]) -> int:
        """Return the next port whose bindings are `usable`. Raises OSError (EADDRINUSE) if there is
        none.
        """
        for _ in range(self._high - self._low + 1):
            self._last = self._last + 1 if self._last < self._high else self._low
            if usable(self._claims.get(self._last)):
                return self._last
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    def _shared(self, taken: Callable[[int], bool]) -> int:
        """Return a port that only outgoing connections use and that is not `taken`. Raises OSError
        (EADDRNOTAVAIL) if there is none.
        """
        for port in range(self._low, self._high + 1):
            claims = self._claims.get(port, {})
            if all(claim.automatic for claim in claims) and not taken(port):
                return port
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))

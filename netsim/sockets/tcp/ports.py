"""Port allocation of one host: which sockets may share a port, by Linux's rules (socket(7))."""

import errno
import os
from collections.abc import Callable
from random import Random

WILDCARDS = ("0.0.0.0", "::")


class Binding:
    """Claim of a socket on a local address and port; port 0 means none yet."""

    __slots__ = ("address", "automatic", "listens", "only6", "port", "reuse_address", "reuse_port")

    def __init__(self, address: str) -> None:
        self.address = address
        self.port = 0
        self.only6 = False  # IPV6_V6ONLY
        self.reuse_address = False
        self.reuse_port = False
        self.listens = False
        self.automatic = False  # the port was chosen by a connect

    def overlaps(self, other: "Binding") -> bool:
        """Whether some packet could be for either binding."""
        a, b = self.address, other.address
        if (":" in a) == (":" in b):
            return a == b or a in WILDCARDS or b in WILDCARDS
        six = self if ":" in a else other
        return six.address == "::" and not six.only6

    def tolerates(self, other: "Binding") -> bool:
        """Whether both may exist although they overlap (inet_bind_conflict of Linux)."""
        if self.reuse_port and other.reuse_port:
            return True
        shares = self.reuse_address and other.reuse_address
        return shares and not other.listens

    def inherit(self, address: str) -> "Binding":
        """Return the claim of a connection that arrived at this listener."""
        child = Binding(address)
        child.port = self.port
        child.only6 = self.only6
        child.reuse_address = self.reuse_address
        child.reuse_port = self.reuse_port
        return child


class Ports:
    """All claims on one host."""

    def __init__(self, random: Random, low: int, high: int) -> None:
        self._claims: dict[int, dict[Binding, None]] = {}
        self._low = low
        self._high = high
        self._last = random.randrange(low, high)

    def claim(self, binding: Binding, port: int) -> None:
        """Bind to a port, 0 for a free one. Raises OSError (EADDRINUSE)."""
        port = port or self._free(lambda claims: not claims)
        if not self.may_stand(binding, port):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.add(binding, port)

    def may_stand(self, binding: Binding, port: int) -> bool:
        """Whether no other claim conflicts with this binding at `port`."""
        return all(
            other is binding or not binding.overlaps(other) or binding.tolerates(other)
            for other in self._claims.get(port, ())
        )

    def claim_for_dial(self, binding: Binding, taken: Callable[[int], bool]) -> None:
        """Choose a port for a connect: an unused one, else one that dials share and for which the
        pair of addresses is not `taken`. Raises OSError (EADDRNOTAVAIL).
        """
        binding.automatic = True
        try:
            port = self._free(lambda claims: not claims)
        except OSError:
            port = self._shared(taken)
        self.add(binding, port)

    def add(self, binding: Binding, port: int) -> None:
        """Record a claim without checking for conflicts."""
        binding.port = port
        self._claims.setdefault(port, {})[binding] = None

    def release(self, binding: Binding) -> None:
        """Release a claim, if there is one."""
        claims = self._claims.get(binding.port)
        if claims is not None and binding in claims:
            del claims[binding]
            if not claims:
                del self._claims[binding.port]

    def _free(self, usable: Callable[[dict[Binding, None] | None], bool]) -> int:
        for _ in range(self._high - self._low + 1):
            self._last = self._last + 1 if self._last < self._high else self._low
            if usable(self._claims.get(self._last)):
                return self._last
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    def _shared(self, taken: Callable[[int], bool]) -> int:
        for port in range(self._low, self._high + 1):
            claims = self._claims.get(port, {})
            if all(claim.automatic for claim in claims) and not taken(port):
                return port
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))

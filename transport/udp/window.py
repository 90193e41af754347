"""How far a peer may write ahead of the reader: more where the path is long and fast."""

from . import defaults
from .defaults import UdpLimits


class Extra:
    """What the windows of all connections have grown by."""

    def __init__(self, limits: UdpLimits) -> None:
        self.left = limits.extra_bytes
        """Bytes that may still be added."""

    def take(self, size: int) -> bool:
        """Whether a window may grow by so many bytes; they are taken."""
        if size > self.left:
            return False
        self.left -= size
        return True

    def give_back(self, size: int) -> None:
        """A connection with so many has ended."""
        self.left += size


class Window:
    """The window of one connection, in bytes.

    It is small until the peer has proven itself (`trust`). Then it doubles when it is read within
    `WINDOW_ROUNDS` round trips: then it, not the path, is what the sender waits for.
    """

    def __init__(self, limits: UdpLimits, extra: Extra) -> None:
        self.bytes = min(limits.stranger_window_bytes, limits.window_bytes)
        self.taken = 0
        """Bytes that the reader has taken."""
        self._limits = limits
        self._extra = extra
        self._since = 0.0
        self._since_taken = 0
        self._trusted = False

    def trust(self) -> None:
        """The other end has proven itself."""
        if not self._trusted:
            self._trusted = True
            self.bytes = self._limits.window_bytes

    @property
    def limit(self) -> int:
        """Up to which byte the peer may write."""
        return self.taken + self.bytes

    def owes(self, granted: int) -> bool:
        """Whether the peer, who knows of that limit, should hear of the new one."""
        return self.limit - granted >= self.bytes // 4

    def grant(self, now: float, rtt: float) -> int:
        """The limit to tell the peer; looks whether the window is too small."""
        read, took = self.taken - self._since_taken, now - self._since
        if self._trusted and read * defaults.WINDOW_ROUNDS * rtt > took * self.bytes:
            more = min(self.bytes, self._limits.largest_window_bytes - self.bytes)
            if more > 0 and self._extra.take(more):
                self.bytes += more
        self._since, self._since_taken = now, self.taken
        return self.limit

    def close(self) -> None:
        """The connection has ended."""
        self._extra.give_back(max(0, self.bytes - self._limits.window_bytes))
        self.bytes = min(self.bytes, self._limits.window_bytes)

"""Flow control window: how far a peer may write ahead of the reader."""

from . import defaults
from .defaults import UdpLimits


class Extra:
    """Memory for the growth of all connections' windows."""

    def __init__(self, limits: UdpLimits) -> None:
        self.left = limits.extra_bytes
        """Bytes that may still be added."""

    def take(self, size: int) -> bool:
        """Take `size` bytes for a window; return whether they were available."""
        if size > self.left:
            return False
        self.left -= size
        return True

    def give_back(self, size: int) -> None:
        """Return the bytes of a connection that has ended."""
        self.left += size


class Window:
    """The window of one connection, in bytes.

    The window is small until the peer is authenticated (`trust`). Then it doubles whenever it is
    read within `WINDOW_ROUNDS` round trips, as it then limits the sender more than the path does.
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
        """Open the full window, as the other end is authenticated."""
        if not self._trusted:
            self._trusted = True
            self.bytes = self._limits.window_bytes

    @property
    def limit(self) -> int:
        """Stream offset up to which the peer may write."""
        return self.taken + self.bytes

    def owes(self, granted: int) -> bool:
        """Whether to send the peer a new limit, if it knows the limit `granted`."""
        return self.limit - granted >= self.bytes // 4

    def grant(self, now: float, rtt: float) -> int:
        """Return the limit to send to the peer, after growing the window if it is too small."""
        read, took = self.taken - self._since_taken, now - self._since
        if self._trusted and read * defaults.WINDOW_ROUNDS * rtt > took * self.bytes:
            more = min(self.bytes, self._limits.largest_window_bytes - self.bytes)
            if more > 0 and self._extra.take(more):
                self.bytes += more
        self._since, self._since_taken = now, self.taken
        return self.limit

    def close(self) -> None:
        """Return the memory by which the window has grown."""
        self._extra.give_back(max(0, self.bytes - self._limits.window_bytes))
        self.bytes = min(self.bytes, self._limits.window_bytes)

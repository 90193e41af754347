"""Flow control window, which determines how many bytes a peer may send before the reader has read
them."""

from ..rates import ByteBudget
from . import defaults
from .defaults import UdpLimits


class FlowWindow:
    """Flow control window of one connection. Sizes are in bytes.

    The window is small until the peer is authenticated (`trust`). After that it doubles whenever
    the reader consumes all of it within `WINDOW_ROUNDS` round trips, because in this case the
    window limits the sender more than the path does. All connections take the bytes by which their
    windows grow from the budget `growth`.
    """

    def __init__(self, limits: UdpLimits, growth: ByteBudget) -> None:
        self.bytes = min(limits.stranger_window_bytes, limits.window_bytes)
        self.taken = 0
        """Bytes that the reader has consumed so far."""
        self._limits = limits
        self._growth = growth
        self._since = 0.0
        self._since_taken = 0
        self._trusted = False

    def trust(self) -> None:
        """Open the full window, because the other end is now authenticated."""
        if not self._trusted:
            self._trusted = True
            self.bytes = self._limits.window_bytes

    @property
    def limit(self) -> int:
        """Stream offset up to which the peer may send."""
        return self.taken + self.bytes

    def owes(self, granted: int) -> bool:
        """Return whether a new limit should be sent to the peer, which knows the limit
        `granted`."""
        return self.limit - granted >= self.bytes // 4

    def grant(self, now: float, rtt: float) -> int:
        """Return the new limit to send to the peer. Before that, enlarge the window if it is too
        small for the path."""
        read, took = self.taken - self._since_taken, now - self._since
        if self._trusted and read * defaults.WINDOW_ROUNDS * rtt > took * self.bytes:
            more = min(self.bytes, self._limits.largest_window_bytes - self.bytes)
            if more > 0 and self._growth.take(more):
                self.bytes += more
        self._since, self._since_taken = now, self.taken
        return self.limit

    def close(self) -> None:
        """Return to the common budget the memory by which the window has grown."""
        self._growth.give(max(0, self.bytes - self._limits.window_bytes))
        self.bytes = min(self.bytes, self._limits.window_bytes)

"""Detection of network changes: new addresses of this machine, or a sleep."""

from .. import defaults
from ..host.seam import Host


class SeenNetwork:
    """State of this machine's network at the last call of `has_changed`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._before = host.interfaces()
        self._wall = host.wall() - host.now()

    def has_changed(self) -> bool:
        """Return whether this machine's addresses have changed since the last call, or it has
        slept.

        During a sleep the wall clock advances, but the monotonic clock does not.
        """
        before, wall = self._before, self._wall
        self._before, self._wall = self._host.interfaces(), self._host.wall() - self._host.now()
        return self._before != before or self._wall - wall > defaults.SLEPT_S

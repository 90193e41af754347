"""Detection of network changes: other addresses of this machine, or a sleep."""

from .. import defaults
from ..host.seam import Host


class Network:
    """The network of this machine, as last seen by `has_changed`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._before = host.interfaces()
        self._wall = host.wall() - host.now()

    def has_changed(self) -> bool:
        """Whether addresses changed since the last call, or the machine slept (the wall clock ran
        ahead of the monotonic one)."""
        before, wall = self._before, self._wall
        self._before, self._wall = self._host.interfaces(), self._host.wall() - self._host.now()
        return self._before != before or self._wall - wall > defaults.SLEPT_S

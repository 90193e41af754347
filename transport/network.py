"""Whether a node's network is still the one that it was."""

from . import defaults
from .host import Host


class Network:
    """The network that this machine is in: `has_changed` tells of another one."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._before = host.interfaces()
        self._wall = host.wall() - host.now()

    def has_changed(self) -> bool:
        """Since it was asked last: other addresses, or time that passed without us, as when a lid
        was closed."""
        before, wall = self._before, self._wall
        self._before, self._wall = self._host.interfaces(), self._host.wall() - self._host.now()
        return self._before != before or self._wall - wall > defaults.SLEPT_S

"""Applies settings to the parts of the daemon: at its start and, for some keys, while it runs."""

from collections.abc import Callable
from dataclasses import dataclass

from ...dht.content.library import Library
from ...dht.content.quota import LibraryLimit, Quota, allowance_of
from ...state.membership.membership import Membership
from ...transport.host.seam import Host
from ...transport.lane.shaper import Cap, Caps, Shaper
from ...transport.relay.defaults import RelayLimits
from ..defaults import DISK_LEAST
from .config import NodeConfig
from .settings import Setting, Settings


def relaying_of(config: NodeConfig) -> RelayLimits:
    """Return the limits for relaying that the configuration sets."""
    if config.relay is None:
        return RelayLimits()
    return RelayLimits(volunteer=config.relay > 0, rate=config.relay)


def caps_of(config: NodeConfig) -> Caps:
    """Return the bandwidth limits that the configuration sets for sending and receiving."""
    return Caps(up=Cap(node=config.up), down=Cap(node=config.down))


def disk_of(host: Host, config: NodeConfig, library: Library) -> LibraryLimit:
    """Return the disk limit of the library: the configured one or, for "auto", one that depends on
    the free space."""
    if config.disk != "auto":
        return LibraryLimit(config.disk)
    free = host.files.free_space(config.data)
    return allowance_of(free, library.store.used_bytes, DISK_LEAST)


@dataclass(frozen=True, slots=True)
class LiveParts:
    """The parts of a running daemon that change when a live setting is changed."""

    host: Host
    library: Library
    membership: Membership
    quota: Quota
    shaper: Shaper


def _apply_caps(parts: LiveParts, config: NodeConfig) -> None:
    parts.shaper.change(caps_of(config), parts.host.now())


def _apply_disk(parts: LiveParts, config: NodeConfig) -> None:
    """Set the library's disk limit. If it is exceeded, the library evicts content when it next
    needs space."""
    parts.quota.allow(disk_of(parts.host, config, parts.library))


def _apply_links(parts: LiveParts, config: NodeConfig) -> None:
    """Set the number of links below which this node dials further members. Existing links stay."""
    parts.membership.dial_up_to(config.links)


LIVE: dict[str, Callable[[LiveParts, NodeConfig], None]] = {
    "up": _apply_caps,
    "down": _apply_caps,
    "disk": _apply_disk,
    "links": _apply_links,
}
"""Maps each `live` key to the function that applies its new value to the parts."""


class LiveSettings:
    """The settings of a running daemon. They can be changed while it runs."""

    def __init__(self, config: NodeConfig, given: Settings | None = None) -> None:
        """The settings in `given` override `config`."""
        self.given = given or Settings()
        self.config = self.given.applied(config)

    def change(self, setting: Setting, parts: LiveParts) -> None:
        """Change a setting whose key is `live`, and apply it to the parts at once."""
        self.given = self.given.with_(setting)
        self.config = setting.key.change(self.config, setting.value)
        LIVE[setting.key.name](parts, self.config)

"""Applies settings to the parts of the daemon: at its start and, for some keys, while it runs."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...dht.content.library import Library
from ...dht.content.quota import Allowance, allowance_of
from ...transport.host.seam import Host
from ...transport.lane.shaper import Cap, Caps
from ...transport.relay.defaults import RelayLimits
from ..defaults import DISK_LEAST
from .config import NodeConfig

if TYPE_CHECKING:
    from ..daemon.daemon import Node


def relaying_of(config: NodeConfig) -> RelayLimits:
    """Return the limits for relaying."""
    if config.relay is None:
        return RelayLimits()
    return RelayLimits(volunteer=config.relay > 0, rate=config.relay)


def caps_of(config: NodeConfig) -> Caps:
    """Return the bandwidth limits for sending and receiving."""
    return Caps(up=Cap(node=config.up), down=Cap(node=config.down))


def disk_of(host: Host, config: NodeConfig, library: Library) -> Allowance:
    """Return the disk limit of the library."""
    if config.disk != "auto":
        return Allowance(config.disk)
    free = host.files.free_space(config.data)
    return allowance_of(free, library.store.used_bytes, DISK_LEAST)


def _apply_caps(node: "Node") -> None:
    node.shaper.change(caps_of(node.config), node.host.now())


def _apply_disk(node: "Node") -> None:
    """Set the library's disk limit. The library evicts when it next needs space."""
    node.quota.allow(disk_of(node.host, node.config, node.library))


def _apply_links(node: "Node") -> None:
    """Set the number of links up to which members are dialled. Existing links stay."""
    node.membership.most_links = node.config.links


LIVE: dict[str, Callable[["Node"], None]] = {
    "up": _apply_caps,
    "down": _apply_caps,
    "disk": _apply_disk,
    "links": _apply_links,
}
"""For every `live` key, the function that applies a new value in `Node.config` to the parts."""

"""Chooses the addresses that this node publishes, from those of its own network interfaces."""

import ipaddress
from collections.abc import Iterable

from ...transport.address import Address
from ...transport.host.seam import Interface
from ...transport.identity import PeerId

# Beginnings of the names of interfaces that lead to containers and virtual machines only.
VIRTUAL = ("docker", "br-", "veth", "virbr", "vmnet", "lxc", "cni", "podman")
MOST = 8  # most addresses that are published


def own_addresses(
    listen: str, port: int, peer: PeerId, interfaces: Iterable[Interface]
) -> list[Address]:
    """Return the addresses to publish for a listener on the IP address `listen`, the best first.

    For a listener on all addresses, these are the addresses of the interfaces: public ones first,
    those of virtual switches last. Loopback addresses are only published if there is no other.
    """
    address = ipaddress.ip_address(listen)
    if not address.is_unspecified:
        return [Address(listen, port, peer)]
    version = address.version
    found = [item for item in interfaces if ipaddress.ip_address(item.address).version == version]
    usable = [item for item in found if not ipaddress.ip_address(item.address).is_link_local]
    usable.sort(key=_rank)
    outside = [item for item in usable if not ipaddress.ip_address(item.address).is_loopback]
    return [Address(item.address, port, peer) for item in (outside or usable)[:MOST]]


def _rank(item: Interface) -> tuple[bool, bool]:
    """Return a sort key that puts private addresses after public ones, and virtual switches
    last."""
    virtual = item.name.startswith(VIRTUAL)
    return virtual, ipaddress.ip_address(item.address).is_private

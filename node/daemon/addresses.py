"""Chooses the addresses that this node publishes, from those of its own network interfaces."""

import ipaddress
from collections.abc import Iterable

from ...transport.address import Address
from ...transport.host.seam import Interface
from ...transport.identity import PeerId

VIRTUAL = ("docker", "br-", "veth", "virbr", "vmnet", "lxc", "cni", "podman")
MOST = 8  # published addresses


def own_addresses(
    listen: str, port: int, peer: PeerId, interfaces: Iterable[Interface]
) -> list[Address]:
    """Return the addresses to publish for a listener on `listen`, best first.

    A listener on all addresses publishes those of the interfaces: public addresses first and
    addresses of virtual switches last. Loopback is published only if there is no other address.
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
    virtual = item.name.startswith(VIRTUAL)
    return virtual, ipaddress.ip_address(item.address).is_private

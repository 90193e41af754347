"""Where others can reach this node, as far as the node can know by itself."""

import ipaddress
from collections.abc import Iterable

from ..transport.address import Address
from ..transport.host import Interface
from ..transport.identity import PeerId

VIRTUAL = ("docker", "br-", "veth", "virbr", "vmnet", "lxc", "cni", "podman")
MOST = 8  # addresses that are published


def own_addresses(
    listen: str, port: int, peer: PeerId, interfaces: Iterable[Interface]
) -> list[Address]:
    """The addresses to publish, best first: what a listener on `listen` can be reached by.

    A listener on all addresses is reached by those of the interfaces: public ones first,
    those of virtual switches last, loopback where there is nothing else.
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

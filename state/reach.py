"""Which addresses learnt from others may be dialled.

A stranger's record must not make this node knock at its owner's machines (server-side request
forgery by address book). So an address counts for as much as where its record came from: one of
the loopback or of a private network is dialled only if everybody who handed the record on, down
to its author, was seen at an address at least as near. Whoever hands a record on says how near it
came from, and each receiver lowers that to what it sees itself.
"""

from dataclasses import replace
from enum import IntEnum
from ipaddress import IPv6Address, ip_address

from ..transport.address import Address
from ..transport.errors import TransportError
from ..transport.identity import PeerId


class Reach(IntEnum):
    """How near an address is."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2


def reach_of(host: str) -> Reach | None:
    """How near an IP address is; None for what nobody should be told to dial: names (they resolve
    to anything), link-local and metadata addresses, multicast, the unspecified address."""
    try:
        found = ip_address(host)
    except ValueError:
        return None
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return reach_of(str(found.ipv4_mapped))
        if found.sixtofour is not None or found.teredo is not None:
            return None  # they carry an IPv4 address to wherever
    if found.is_loopback:
        return Reach.LOOPBACK
    if found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved:
        return None
    return Reach.PUBLIC if found.is_global else Reach.PRIVATE


def seen_at(host: str) -> Reach:
    """How near a peer is by the address its link has; the unclear counts as far."""
    reach = reach_of(host)
    return Reach.PUBLIC if reach is None else reach


def dialable(addresses: tuple[str, ...], peer: PeerId, reach: Reach) -> list[Address]:
    """The addresses of a record that may be dialled, as its author's and nobody else's."""
    found = []
    for text in addresses:
        try:
            address = Address.parse(text)
        except TransportError:
            continue
        nearness = reach_of(address.host)
        if nearness is None or nearness > reach or address.peer not in (None, peer):
            continue
        if address.relay is not None or address.transport != "tcp":
            found.append(address if address.peer is not None else replace(address, peer=peer))
        else:
            found.append(Address(address.host, address.port, peer))
    return found

"""Which addresses learnt from others may be dialled.

A stranger's record must not make this node knock at its owner's machines (server-side request
forgery by address book). So an address counts for as much as where its record came from: one of
the loopback or of a private network is dialled only if everybody who handed the record on, down
to its author, was seen at an address at least as near. Whoever hands a record on says how near it
came from, and each receiver lowers that to what it sees itself. Ports below 1024 but for 443 are
never dialled because a record names them.
"""

from dataclasses import replace

from ..transport.address import Address
from ..transport.errors import TransportError
from ..transport.identity import PeerId
from ..transport.place import Nearness, may_dial_port, nearness_of


def dialable(addresses: tuple[str, ...], peer: PeerId, reach: Nearness) -> list[Address]:
    """The addresses of a record that may be dialled, as its author's and nobody else's."""
    found = []
    for text in addresses:
        try:
            address = Address.parse(text)
        except TransportError:
            continue
        nearness = nearness_of(address.host)
        if nearness is None or nearness > reach or address.peer not in (None, peer):
            continue
        if not may_dial_port(address.port):
            continue
        if address.relay is not None or address.transport != "tcp":
            found.append(address if address.peer is not None else replace(address, peer=peer))
        else:
            found.append(Address(address.host, address.port, peer))
    return found

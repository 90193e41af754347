"""Filter for addresses that peers report: decides which of them may be dialled.

A stranger's record must not make this node connect to machines of its owner (server-side request
forgery). Therefore an address is trusted only as far as the source of its record. An address of the
loopback or of a private network is dialled only if the record's author, and every node that
forwarded the record, was seen at an address at least as near. A node that forwards a record states
how near the record came from, and each receiver lowers that to what it sees itself. Ports below
1024 other than 443 are never dialled because of a record.
"""

from dataclasses import replace

from ...transport.address import Address
from ...transport.errors import TransportError
from ...transport.identity import PeerId
from ...transport.networks import Nearness, may_dial_port, nearness_of


def dialable(addresses: tuple[str, ...], peer: PeerId, reach: Nearness) -> list[Address]:
    """Return the addresses of a record that may be dialled, each with the author's peer id.

    `peer` is the author, and `reach` how near the record's source is.
    """
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

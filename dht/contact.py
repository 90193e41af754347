"""A contact: a node that serves, and where it may be reached.

Who says so is not believed: nobody enters the table before having answered under its own key.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Final

import msgpack

from ..transport.address import Address
from ..transport.decoding import decode
from ..transport.errors import TransportError, Undecodable
from ..transport.identity import KEY_BYTES, PeerId, peer_id_of, public_key_of
from ..transport.place import Nearness, nearness_at, network, parse_ip
from . import defaults
from .errors import BadMessage
from .key import Key, node_key, point

_ADDRESS_LIMIT: Final = defaults.CONTACT_BYTES - KEY_BYTES


class Contact:
    """A peer and up to `CONTACT_ADDRESSES` addresses; equal by the peer alone."""

    def __init__(self, peer: PeerId, addresses: Iterable[Address] = ()) -> None:
        """Addresses beyond the bounds are left out; each names the peer."""
        self.peer = peer
        self.addresses = _fitting(
            each if each.peer is not None else replace(each, peer=peer) for each in addresses
        )

    @cached_property
    def key(self) -> Key:
        return node_key(self.peer)

    @cached_property
    def point(self) -> int:
        """The key as a number: distances are computed by the thousand."""
        return point(self.key)

    @cached_property
    def networks(self) -> frozenset[str]:
        """The public networks in which it says to be: /24 or /48; names are one network, as they
        may mean any. Whoever is behind a relay, in a private network or on this machine has none.
        """
        found = (network_of(each.host) for each in self.addresses if each.relay is None)
        return frozenset(each for each in found if each)

    @cached_property
    def direct(self) -> bool:
        """Whether it has an address that needs no relay."""
        return any(each.relay is None for each in self.addresses)

    @cached_property
    def packed(self) -> bytes:
        """Wire form: [public key, addresses as texts]. Addresses do not end in the peer id, which
        follows from the key: it would be half of the bytes of a look-up's answer."""
        name = _named(self.peer)
        texts = [str(each).removesuffix(name) for each in self.addresses]
        packed: bytes = msgpack.packb([public_key_of(self.peer), texts])
        return packed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contact) and other.peer == self.peer

    def __hash__(self) -> int:
        return hash(self.peer)

    def __repr__(self) -> str:
        return f"<contact {self.peer} {self.key.hex()[:8]}>"


def merged(accounts: Sequence[Contact]) -> Contact:
    """What several say of where one peer is: of each the first address, then the second, and so
    on, so that nobody's crowd out the others'."""
    ranks = zip_longest(*(each.addresses for each in accounts))
    return Contact(accounts[0].peer, (found for rank in ranks for found in rank if found))


def network_of(host: str) -> str:
    """What counts as one network with a public host; "" for one that is near."""
    found = parse_ip(host)
    if found is None:
        return "names"
    if nearness_at(host) is not Nearness.PUBLIC:
        return ""
    return network(host, defaults.SUBNET_FOUR, defaults.SUBNET_SIX)


def met_at(ip: str) -> str:
    """What counts as one network with a peer that is met there: "" for one that is near. All that
    are met through others are one, or whoever hides behind a relay would be held to no bound."""
    return network_of(ip) if ip else "relayed"


@lru_cache(4096)
def read_contact(packed: bytes) -> Contact:
    """A contact of a message; addresses that this version does not understand are left out.

    Raises BadMessage.
    """
    try:
        fields = decode(packed, limit=defaults.CONTACT_BYTES)
    except Undecodable as error:
        raise BadMessage(f"a contact is not readable: {error}") from None
    if type(fields) is not list or [type(item) for item in fields[:2]] != [bytes, list]:
        raise BadMessage("a contact has a wrong form")
    key, texts = fields[:2]
    if len(key) != KEY_BYTES or len(texts) > defaults.CONTACT_ADDRESSES:
        raise BadMessage("a contact is out of bounds")
    peer = peer_id_of(key)
    return Contact(peer, _understood(texts, _named(peer)))


def _named(peer: PeerId) -> str:
    """Return the end of a multiaddr that names its peer."""
    return f"/p2p/{peer}"


def _understood(texts: list[object], name: str) -> Iterable[Address]:
    for text in texts:
        if type(text) is not str:
            raise BadMessage("a contact's address is no text")
        try:
            yield Address.parse(text if text.endswith(name) else text + name)
        except TransportError:
            continue


def _fitting(addresses: Iterable[Address]) -> tuple[Address, ...]:
    found: dict[Address, None] = {}
    left = _ADDRESS_LIMIT - 8  # the envelope's own bytes
    for each in addresses:
        size = len(str(each)) + 3
        if each not in found and size <= left and len(found) < defaults.CONTACT_ADDRESSES:
            found[each] = None
            left -= size
    return tuple(found)

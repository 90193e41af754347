"""Contact: the id of a serving node, and the addresses at which it may be reached.

A contact is a claim. A node enters the routing table only after it has proven its key and answered.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Annotated, Final

from msgspec import Meta

from ...transport.address import Address
from ...transport.decoding import read
from ...transport.errors import TransportError, Undecodable
from ...transport.identity import KEY_BYTES, PeerId, peer_id_of, public_key_of
from ...transport.message import PublicKey, Row, pack
from ...transport.networks import Nearness, nearness_at, network, parse_ip
from .. import defaults
from ..errors import BadMessage
from .key import Key, node_key, point

_ADDRESS_LIMIT: Final = defaults.CONTACT_BYTES - KEY_BYTES


class _ToldContact(Row, frozen=True):
    """Contact as it is encoded in a message. The addresses are multiaddrs without the peer id."""

    key: PublicKey
    addresses: Annotated[tuple[str, ...], Meta(max_length=defaults.CONTACT_ADDRESSES)]


class Contact:
    """A peer and up to `CONTACT_ADDRESSES` addresses. Contacts of the same peer are equal."""

    def __init__(self, peer: PeerId, addresses: Iterable[Address] = ()) -> None:
        """Create a contact. The peer id is added to each address that lacks it.

        Duplicates, and addresses beyond the limits, are dropped.
        """
        self.peer = peer
        self.addresses = _fitting(
            each if each.peer is not None else replace(each, peer=peer) for each in addresses
        )

    @cached_property
    def key(self) -> Key:
        """Key of the node in the DHT."""
        return node_key(self.peer)

    @cached_property
    def point(self) -> int:
        """The key as an integer. It is cached, because look-ups compute thousands of distances."""
        return point(self.key)

    @cached_property
    def networks(self) -> frozenset[str]:
        """Public networks (/24 or /48) of the contact's addresses.

        All DNS names count as one network, because they may resolve to any address. Addresses at a
        relay, in a local network, or on this machine do not count.
        """
        found = (network_of(each.host) for each in self.addresses if each.relay is None)
        return frozenset(each for each in found if each)

    @cached_property
    def direct(self) -> bool:
        """Whether the contact has an address that needs no relay."""
        return any(each.relay is None for each in self.addresses)

    @cached_property
    def packed(self) -> bytes:
        """Encoded form: [public key, addresses as texts].

        The addresses omit the peer id, which follows from the public key. Otherwise peer ids would
        be half of the bytes of a reply.
        """
        name = _named(self.peer)
        texts = [str(each).removesuffix(name) for each in self.addresses]
        return pack(_ToldContact(public_key_of(self.peer), tuple(texts)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contact) and other.peer == self.peer

    def __hash__(self) -> int:
        return hash(self.peer)

    def __repr__(self) -> str:
        return f"<contact {self.peer} {self.key.hex()[:8]}>"


def merged(accounts: Sequence[Contact]) -> Contact:
    """Merge several contacts of the same peer, which may have different addresses.

    The result has the first address of each contact, then the second of each, and so on, so that no
    contact crowds out the addresses of the others.
    """
    ranks = zip_longest(*(each.addresses for each in accounts))
    return Contact(accounts[0].peer, (found for rank in ranks for found in rank if found))


def network_of(host: str) -> str:
    """Return the network of a public host, or "" for a host in a local network.

    All DNS names count as the network "names".
    """
    found = parse_ip(host)
    if found is None:
        return "names"
    if nearness_at(host) is not Nearness.PUBLIC:
        return ""
    return network(host, defaults.SUBNET_FOUR, defaults.SUBNET_SIX)


def met_at(ip: str) -> str:
    """Return the network of a peer that is linked at the IP address `ip`.

    Returns "" for a peer in a local network. If `ip` is "", the link passes a relay, and the
    network is "relayed". All relayed peers count as one network. Otherwise a peer could escape the
    limits per network by using many relays.
    """
    return network_of(ip) if ip else "relayed"


@lru_cache(4096)
def read_contact(packed: bytes) -> Contact:
    """Decode a contact. Addresses that this version does not understand are dropped.

    Raises BadMessage if the contact is malformed.
    """
    try:
        told = read(_ToldContact, packed, limit=defaults.CONTACT_BYTES)
    except Undecodable as error:
        raise BadMessage(f"cannot decode a contact: {error}") from None
    peer = peer_id_of(told.key)
    return Contact(peer, _understood(told.addresses, _named(peer)))


def _named(peer: PeerId) -> str:
    """Return `/p2p/PEER`, the end of a multiaddr that names its peer."""
    return f"/p2p/{peer}"


def _understood(texts: Iterable[str], name: str) -> Iterable[Address]:
    """Parse the addresses of a peer, and yield those that can be parsed."""
    for text in texts:
        try:
            yield Address.parse(text if text.endswith(name) else text + name)
        except TransportError:
            continue


def _fitting(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Return the addresses without duplicates, and without those beyond the limits."""
    found: dict[Address, None] = {}
    left = _ADDRESS_LIMIT - 8  # less the bytes of the envelope
    for each in addresses:
        size = len(str(each)) + 3
        if each not in found and size <= left and len(found) < defaults.CONTACT_ADDRESSES:
            found[each] = None
            left -= size
    return tuple(found)

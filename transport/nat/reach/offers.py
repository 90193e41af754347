"""Offers of peers for measurements: UDP ports that answer Binding requests, and dial-backs.

Encodes and parses the reply to `reach.observe` (docs/spec/reach.md), and orders the peers to ask.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...identity import PeerId
from ...networks import is_public, region
from .natkind import Observer


@dataclass(frozen=True, slots=True)
class ObserverOffer:
    """Up to two UDP ports on which a peer answers Binding requests, and whether it dials back."""

    ports: tuple[int, ...] = ()
    dials: bool = False

    @property
    def header(self) -> dict[str, object]:
        """The header of the reply to `reach.observe`."""
        return {"udp": list(self.ports), "dialback": self.dials}


def parse_offer(header: Mapping[str, object]) -> ObserverOffer:
    """Parse a peer's reply to `reach.observe`. Malformed fields count as missing."""
    ports = header.get("udp")
    if not isinstance(ports, list) or len(ports) > 2:
        ports = []
    if not all(type(port) is int and 0 < port < 65536 for port in ports):
        ports = []
    return ObserverOffer(tuple(ports), header.get("dialback") is True)


@dataclass(frozen=True, slots=True)
class LinkedPeer:
    """A linked peer with its offer. Its link may have paths over both IP versions."""

    peer: PeerId
    ip: str  # the main address at which this node sees the peer
    offer: ObserverOffer
    others: tuple[str, ...] = ()  # its address of the other IP version, if it is seen there too

    @property
    def observer(self) -> Observer:
        """The peer's ports that answer Binding requests, as input for the `Classifier`."""
        return Observer(self.peer, self.ip, self.offer.ports)


def observers(peers: Iterable[LinkedPeer]) -> list[Observer]:
    """Return the peers that can tell how this node looks from the internet, sorted by `spread`."""
    able = [each for each in peers if each.offer.ports and can_observe(each.ip)]
    return [each.observer for each in spread(able)]


def can_observe(ip: str) -> bool:
    """Return whether a peer at the IP address `ip` sees this node from outside its NAT.

    A peer on the local network does not. IPv6 addresses do not count, because NATs translate IPv4.
    """
    return ":" not in ip and is_public(ip)


def spread(peers: Sequence[LinkedPeer]) -> list[LinkedPeer]:
    """Return the peers in an order that alternates between networks (`networks.region`).

    First comes one peer of each network, then a second one of each, and so on. The owner of one
    network therefore cannot provide the majority of the first few peers.
    """
    rank: dict[str, int] = {}
    ranked = []
    for each in peers:
        where = region(each.ip)
        rank[where] = rank.get(where, -1) + 1
        ranked.append((rank[where], each))
    return [each for _, each in sorted(ranked, key=lambda item: item[0])]

"""Offers of peers: on which UDP ports they observe, and whether they dial back.

This has the wire form of `reach.observe` (docs/spec/reach.md), and the choice among peers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...identity import PeerId
from ...networks import is_public, region
from .natkind import Observer


@dataclass(frozen=True, slots=True)
class Offer:
    """Up to two UDP ports on which a peer answers Binding requests, and whether it dials back."""

    ports: tuple[int, ...] = ()
    dials: bool = False

    @property
    def header(self) -> dict[str, object]:
        """The header of a reply with this offer."""
        return {"udp": list(self.ports), "dialback": self.dials}


def parse_offer(header: Mapping[str, object]) -> Offer:
    """Parse the offer in a peer's reply. Malformed parts offer nothing."""
    ports = header.get("udp")
    if not isinstance(ports, list) or len(ports) > 2:
        ports = []
    if not all(type(port) is int and 0 < port < 65536 for port in ports):
        ports = []
    return Offer(tuple(ports), header.get("dialback") is True)


@dataclass(frozen=True, slots=True)
class LinkedPeer:
    """A linked peer: the IP address at which this node reaches it, its offer, and the address of
    the other IP version if a path of the link uses that as well."""

    peer: PeerId
    ip: str
    offer: Offer
    others: tuple[str, ...] = ()

    @property
    def observer(self) -> Observer:
        return Observer(self.peer, self.ip, self.offer.ports)


def observers(peers: Iterable[LinkedPeer]) -> list[Observer]:
    """Return the peers that can tell what the internet sees, spread over networks."""
    able = [each for each in peers if each.offer.ports and can_observe(each.ip)]
    return [each.observer for each in spread(able)]


def can_observe(ip: str) -> bool:
    """Whether a peer sees our NAT's outside: not on the LAN, and over IPv4, which NATs
    translate."""
    return ":" not in ip and is_public(ip)


def spread(peers: Sequence[LinkedPeer]) -> list[LinkedPeer]:
    """Sort peers: first one of each region (`place.region`), then a second one of each, and so on,
    so that the owner of one network cannot be the majority."""
    rank: dict[str, int] = {}
    ranked = []
    for each in peers:
        where = region(each.ip)
        rank[where] = rank.get(where, -1) + 1
        ranked.append((rank[where], each))
    return [each for _, each in sorted(ranked, key=lambda item: item[0])]

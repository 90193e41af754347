"""What peers offer to each other: on which UDP ports they observe, and whether they dial back.

The wire form of `reach.observe` (docs/spec/reach.md), and the choice among those that offer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..identity import PeerId
from ..place import is_public, region
from .natkind import Observer


@dataclass(frozen=True, slots=True)
class Offer:
    """Up to two UDP ports on which a peer answers Binding requests; whether it dials back."""

    ports: tuple[int, ...] = ()
    dials: bool = False

    @property
    def header(self) -> dict[str, Any]:
        """As the header of a reply."""
        return {"udp": list(self.ports), "dialback": self.dials}


def parse_offer(header: Mapping[str, Any]) -> Offer:
    """What a peer's reply offers; what is malformed offers nothing."""
    ports = header.get("udp")
    if not isinstance(ports, list) or len(ports) > 2:
        ports = []
    if not all(type(port) is int and 0 < port < 65536 for port in ports):
        ports = []
    return Offer(tuple(ports), header.get("dialback") is True)


@dataclass(frozen=True, slots=True)
class LinkedPeer:
    """A linked peer: the IP address at which this node reaches it, what it offers, and the address
    of the other IP version, where a path of the link goes by that as well."""

    peer: PeerId
    ip: str
    offer: Offer
    others: tuple[str, ...] = ()

    @property
    def observer(self) -> Observer:
        return Observer(self.peer, self.ip, self.offer.ports)


def observers(peers: Iterable[LinkedPeer]) -> list[Observer]:
    """Those that can tell what the internet sees, far apart from each other first."""
    able = [each for each in peers if each.offer.ports and can_observe(each.ip)]
    return [each.observer for each in spread(able)]


def can_observe(ip: str) -> bool:
    """A neighbour on the LAN sees what no NAT has touched. (NATs are IPv4's.)"""
    return ":" not in ip and is_public(ip)


def spread(peers: Sequence[LinkedPeer]) -> list[LinkedPeer]:
    """First one of each region (`place.region`), then a second one of each, and so on: who owns one
    network shall not make the majority."""
    rank: dict[str, int] = {}
    ranked = []
    for each in peers:
        where = region(each.ip)
        rank[where] = rank.get(where, -1) + 1
        ranked.append((rank[where], each))
    return [each for _, each in sorted(ranked, key=lambda item: item[0])]

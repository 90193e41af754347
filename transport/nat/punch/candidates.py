"""Candidate addresses for hole punching: kinds, encoding, and to which of them a node may send.

A peer names its own addresses, and may lie. A node that sent to every named address could be abused
to attack the owner of an address (as a reflector). A node therefore sends to an address only if a
third node has seen the peer there, or if it is a private address in this node's own network.

There is one exception. The relay between two homes often has no IPv6, and does not know their IPv6
addresses. A few UDP checks may therefore be sent to a public IPv6 address that only the peer has
named (`PunchBudget.unseen`), and more once the peer has replied from there.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address, ip_network
from typing import Final

from ...host.datagrams import Place
from ...networks import Nearness, is_public, may_dial_port, nearness_of, plain_ip
from .defaults import CANDIDATES, UNSEEN

_PRIVATE: Final = tuple(
    ip_network(each) for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)


class CandidateKind(StrEnum):
    """Source from which a node knows one of its own addresses."""

    LAN = "lan"  # a private address of an interface
    PUBLIC = "public"  # a public address of an interface
    OBSERVED = "observed"  # an address at which peers see the node
    MAPPED = "mapped"  # a port that the router forwards to the node


class CandidateTransport(StrEnum):
    """Transport protocol of an address."""

    TCP = "tcp"
    UDP = "udp"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One address at which a peer may be reached. Its IP address is in canonical spelling."""

    place: Place
    kind: CandidateKind
    transport: CandidateTransport


@dataclass(frozen=True, slots=True)
class SeenAddresses:
    """IP addresses of a peer that this node knows from others than the peer itself."""

    vouched: Collection[str] = ()
    """Addresses at which a third node (the relay, or another linked peer) sees the peer."""
    same_site: bool = False
    """Whether this node is also seen at one of the `vouched` addresses, so that both are in the
    same network."""
    found: Collection[str] = ()
    """Addresses at which the peer has replied to this node's mDNS queries."""


def is_private(ip: str) -> bool:
    """Return whether an IP address belongs to a private network (RFC 1918, RFC 4193)."""
    found = ip_address(ip)
    return any(found in net for net in _PRIVATE if net.version == found.version)


def may_probe(ip: str, seen: SeenAddresses) -> bool:
    """Return whether this node may send to an IP address that the peer has named as its own."""
    nearness = nearness_of(ip)
    if nearness is None or plain_ip(ip) != ip:
        return False
    if ip in seen.vouched:
        return True
    if nearness is Nearness.LOOPBACK or not is_private(ip):
        return False
    return seen.same_site or ip in seen.found


def probeable(candidates: Iterable[Candidate], seen: SeenAddresses) -> list[Candidate]:
    """Return those of a peer's candidates to which this node may send."""
    return [
        each
        for each in candidates
        if may_dial_port(each.place[1]) and may_probe(each.place[0], seen)
    ]


def unseen(candidates: Iterable[Candidate], seen: SeenAddresses) -> list[Candidate]:
    """Return the first few of a peer's public IPv6 addresses for UDP that only the peer has named.

    A few checks may be sent to them, as the exception in the module's docstring says.
    """
    found = [
        each
        for each in candidates
        if each.transport is CandidateTransport.UDP
        and may_dial_port(each.place[1])
        and ":" in each.place[0]
        and is_public(each.place[0])
        and not may_probe(each.place[0], seen)
    ]
    return found[:UNSEEN]


# Encoding.

_KINDS: Final = {str(each): each for each in CandidateKind}
_TRANSPORTS: Final = {str(each): each for each in CandidateTransport}


def encode(candidates: Sequence[Candidate]) -> list[list[object]]:
    """Encode the first 16 candidates for an offer, each as [IP address, port, kind, transport]."""
    return [[*each.place, str(each.kind), str(each.transport)] for each in candidates[:CANDIDATES]]


def decode(value: object) -> list[Candidate] | None:
    """Decode a peer's candidates, without duplicates.

    Returns None if the value is malformed or too long. Candidates of unknown kind or transport are
    skipped, because later versions may define more.
    """
    if not isinstance(value, list) or len(value) > CANDIDATES:
        return None
    found: dict[Candidate, None] = {}
    for item in value:
        if not isinstance(item, list) or len(item) != 4:
            return None
        ip, port, kind, transport = item
        if type(port) is not int or not (isinstance(ip, str) and 0 < port < 65536):
            return None
        if not isinstance(kind, str) or not isinstance(transport, str):
            return None
        plain = plain_ip(ip)
        if plain is None:
            return None
        if kind in _KINDS and transport in _TRANSPORTS:
            place = plain, port
            found[Candidate(place, _KINDS[kind], _TRANSPORTS[transport])] = None
    return list(found)


# This node's candidates.


def gather(
    transport: CandidateTransport,
    port: int,
    interfaces: Iterable[str],
    *,
    observed: Iterable[Place] = (),
    mapped: Iterable[Place] = (),
) -> list[Candidate]:
    """Return this node's candidates for one transport, with those most likely to work first.

    `port` is the node's port. `interfaces` are the IP addresses of this machine. `observed` are the
    addresses at which peers see the node, and `mapped` those that the router forwards to it. A
    loopback address counts only if peers see the node at that address. An observed address that
    belongs to an interface counts as an address of the interface.
    """
    observed = list(observed)
    seen = {ip for ip, _ in observed}
    own = dict.fromkeys(ip for ip in map(plain_ip, interfaces) if ip is not None)
    found = {place: CandidateKind.OBSERVED for place in observed if place[0] not in own}
    found |= {place: CandidateKind.MAPPED for place in mapped if place not in found}
    for ip in own:
        address = ip_address(ip)
        if address.is_link_local or (address.is_loopback and ip not in seen):
            continue
        near = is_private(ip) or address.is_loopback
        found.setdefault((ip, port), CandidateKind.LAN if near else CandidateKind.PUBLIC)
    return [Candidate(place, kind, transport) for place, kind in found.items()][:CANDIDATES]

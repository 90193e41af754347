"""Candidate addresses of a peer for hole punching: their kinds, encoding, and which are trusted.

A peer names its own addresses, so each is a claim. If a node sent to every address that a peer
names, it would be a reflector. An address passes only if a third node has seen the peer there, or
if it can only be the peer's in our own network. A public IPv6 address may pass without a witness,
because the relay between two homes often has no IPv6. It gets a few UDP checks
(`Budget.unseen`), and more once the peer has answered there.
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


class Kind(StrEnum):
    """Source of an address."""

    LAN = "lan"  # a private address of an interface
    PUBLIC = "public"  # a public address of an interface
    OBSERVED = "observed"  # an address at which others see the node
    MAPPED = "mapped"  # a port that the router forwards to the node


class Transport(StrEnum):
    TCP = "tcp"
    UDP = "udp"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One address of one side: an IP address in canonical spelling, and a port."""

    place: Place
    kind: Kind
    transport: Transport


@dataclass(frozen=True, slots=True)
class Seen:
    """Addresses of a peer that this node knows from others than the peer.

    `vouched` are IP addresses at which a third node (the relay or another common peer) saw it.
    `same_site` says that one of them is an address of our own. `found` are IP addresses at which
    it answered our mDNS questions.
    """

    vouched: Collection[str] = ()
    same_site: bool = False
    found: Collection[str] = ()


def is_private(ip: str) -> bool:
    """Whether an IP address belongs to a private network (RFC 1918, RFC 4193)."""
    found = ip_address(ip)
    return any(found in net for net in _PRIVATE if net.version == found.version)


def may_probe(ip: str, seen: Seen) -> bool:
    """Whether datagrams may be sent to an IP address that the peer named as its own."""
    nearness = nearness_of(ip)
    if nearness is None or plain_ip(ip) != ip:
        return False
    if ip in seen.vouched:
        return True
    if nearness is Nearness.LOOPBACK or not is_private(ip):
        return False
    return seen.same_site or ip in seen.found


def probeable(candidates: Iterable[Candidate], seen: Seen) -> list[Candidate]:
    """Return the candidates of a peer that may be probed."""
    return [
        each
        for each in candidates
        if may_dial_port(each.place[1]) and may_probe(each.place[0], seen)
    ]


def unseen(candidates: Iterable[Candidate], seen: Seen) -> list[Candidate]:
    """Return a peer's first few UDP candidates on public IPv6 that only the peer vouches for."""
    found = [
        each
        for each in candidates
        if each.transport is Transport.UDP
        and may_dial_port(each.place[1])
        and ":" in each.place[0]
        and is_public(each.place[0])
        and not may_probe(each.place[0], seen)
    ]
    return found[:UNSEEN]


# Encoding.

_KINDS: Final = {str(each): each for each in Kind}
_TRANSPORTS: Final = {str(each): each for each in Transport}


def encode(candidates: Sequence[Candidate]) -> list[list[object]]:
    """Encode for an offer: [IP address, port, kind, transport] for each of the first sixteen."""
    return [[*each.place, str(each.kind), str(each.transport)] for each in candidates[:CANDIDATES]]


def decode(value: object) -> list[Candidate] | None:
    """Decode a peer's candidates, without duplicates. None if the value is malformed or too long.

    Unknown kinds and transports are skipped, because a later version may have more.
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
    transport: Transport,
    port: int,
    interfaces: Iterable[str],
    *,
    observed: Iterable[Place] = (),
    mapped: Iterable[Place] = (),
) -> list[Candidate]:
    """Return a node's candidates, likely ones first.

    `interfaces` are IP addresses of this machine. Loopback addresses among them count only if
    others see this node there. An interface's address at which others see this node is public.
    """
    observed = list(observed)
    seen = {ip for ip, _ in observed}
    own = dict.fromkeys(ip for ip in map(plain_ip, interfaces) if ip is not None)
    found = {place: Kind.OBSERVED for place in observed if place[0] not in own}
    found |= {place: Kind.MAPPED for place in mapped if place not in found}
    for ip in own:
        address = ip_address(ip)
        if address.is_link_local or (address.is_loopback and ip not in seen):
            continue
        near = is_private(ip) or address.is_loopback
        found.setdefault((ip, port), Kind.LAN if near else Kind.PUBLIC)
    return [Candidate(place, kind, transport) for place, kind in found.items()][:CANDIDATES]

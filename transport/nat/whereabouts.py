"""Addresses at which peers can reach this node, and the choice of a peer's addresses to dial."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..address import Address
from ..bytestream import PathKind
from ..defaults import HTTPS_PORT
from ..dial.endpoint import Endpoint
from ..host.datagrams import Place
from ..host.seam import Host
from ..networks import is_public, path_kind_to
from ..relay.client import RelayClient
from ..udp.port import UdpPort
from .portmap.mapper import PortMapper
from .reach.reachability import DialBackResult, Ipv6
from .reach.service import Reach


@dataclass(frozen=True, slots=True)
class AddressSources:
    """Sources of one node's addresses, beside its interfaces. `udp` is None without a UDP port."""

    udp: UdpPort | None
    reach: Reach
    relays: RelayClient
    mapper: PortMapper


_EVERYWHERE: Final = ("0.0.0.0", "::")
"""Bind addresses with which a listener accepts connections on every interface."""


class Whereabouts:
    """Addresses of this node, gathered from its interfaces, router, peers and relays."""

    def __init__(self, host: Host, endpoint: Endpoint, sources: AddressSources) -> None:
        self._host = host
        self._endpoint = endpoint
        self._reach = sources.reach
        self._relays = sources.relays
        self._mapper = sources.mapper

    # This node's addresses.

    def addresses(self) -> list[Address]:
        """Return the addresses at which peers can reach this node.

        These are the public addresses on which it listens, the port that the router forwards, the
        addresses at which dial-backs arrived, and the addresses through relays. The best come
        first. The IPv4 addresses of this machine's own interfaces are left out if they have the
        node's TCP port.
        """
        found: dict[Address, None] = {}
        peer, own = self._endpoint.peer, self._public()
        for ip in own:
            for port in self._ports(ip):
                found[Address(ip, port, peer)] = None
        mapping = self._mapper.mapping
        if mapping is not None and mapping.tcp_port:
            found[Address(mapping.address, mapping.tcp_port, peer)] = None
        for place in self._reach.reachability.reached("tcp"):
            found[Address(*place, peer)] = None
        for place in self._udp_places():
            found[Address(*place, peer, transport="udp")] = None
        mine = {(ip, self._endpoint.port) for ip in self._interfaces() if ":" not in ip}
        outside = [
            each for each in found if each.transport == "udp" or (each.host, each.port) not in mine
        ]
        return [*outside, *self._relays.addresses()]

    def _udp_places(self) -> list[Place]:
        """Return the UDP addresses to publish.

        These are the addresses at which a dial-back arrived, and this node's own public IPv4
        addresses for which no dial-back has given a result.
        """
        known, port = self._reach.reachability, self._endpoint.udp_port
        tried = {item.place for item in known.dialled if item.answer != DialBackResult.UNKNOWN}
        own = [(ip, port) for ip in self._public() if ":" not in ip and port]
        return [*known.reached("udp"), *(place for place in own if place not in tried)]

    def reachable(self) -> bool:
        """Whether any peer that has IPv4 can dial this node over TCP.

        If no peer could test this, the result is True if the node has a public IPv4 address of its
        own.
        """
        shown = self.shown_reachable()
        return self.public_ipv4() if shown is None else shown

    def shown_reachable(self) -> bool | None:
        """Whether a peer has reached this node at an IPv4 address that stays open to any peer.

        Such an address is a public one of the node itself, or a port that its router forwards.
        Returns False if the node has no such address, and None if it has one that no peer could
        test. The outer port of a full-cone NAT does not count, because its mapping expires. IPv6
        does not count either, because a peer that has only IPv4 cannot use it.
        """
        known, mapping = self._reach.reachability, self._mapper.mapping
        places = {(ip, self._endpoint.port) for ip in self._public() if ":" not in ip}
        if mapping is not None and mapping.tcp_port:
            places.add((mapping.address, mapping.tcp_port))
        if not places:
            return False
        answers = {
            item.answer
            for item in known.dialled
            if item.transport == "tcp"
            and item.place in places
            and item.answer != DialBackResult.UNKNOWN
        }
        return DialBackResult.REACHED in answers if answers else None

    def public_ipv4(self) -> bool:
        """Whether this node listens at a public IPv4 address of its own."""
        return any(":" not in ip for ip in self._public())

    def everywhere(self) -> bool:
        """Whether this node listens on TCP port 443 of a public IPv4 address.

        A peer can then reach it even from a network that blocks all outgoing connections but the
        web's.
        """
        return any(HTTPS_PORT in self._ports(ip) for ip in self._public() if ":" not in ip)

    def _interfaces(self) -> list[str]:
        return [item.address for item in self._host.interfaces()]

    def _public(self) -> list[str]:
        """Return the public IP addresses of this machine on which the node listens.

        IPv6 addresses are left out if a measurement has shown that a firewall filters them.
        """
        filtered = self._reach.reachability.ipv6 is Ipv6.FILTERED
        return [
            ip
            for ip in self._interfaces()
            if is_public(ip) and self._ports(ip) and not (filtered and ":" in ip)
        ]

    def _ports(self, ip: str) -> list[int]:
        """Return the TCP ports on which this node listens at its IP address `ip`."""
        general = "::" if ":" in ip else "0.0.0.0"
        return [port for at, port in self._endpoint.listening if at in (ip, general)]

    # Peers' addresses.

    def dialable(self, addresses: Sequence[Address], found: Sequence[str] = ()) -> list[Address]:
        """Return those of a peer's `addresses` that this node may dial.

        In each network, the same private address belongs to a different computer. This node
        therefore dials a private address only in three cases: if the peer has answered there
        (`found` lists such IP addresses), if the peer and this node have a public IP address in
        common, or if neither of the two has a public address.
        """
        theirs = {each.host for each in addresses if each.relay is None and not _is_near(each)}
        ours = self.outside()
        same = bool(theirs & ours) or not (theirs or ours)
        return [
            each
            for each in addresses
            if same or each.relay is not None or not _is_near(each) or each.host in found
        ]

    def outside(self) -> set[str]:
        """Return the public IP addresses at which others see this node."""
        if not any(at in _EVERYWHERE or not _near(at) for at, _ in self._endpoint.listening):
            return set()  # this node listens only on private or loopback addresses
        known, mapping = self._reach.reachability, self._mapper.mapping
        found = {place[0] for place in (known.udp_place, known.tcp_place) if place is not None}
        found |= {held.seen.ip for held in self._relays.relays if held.seen is not None}
        found |= {mapping.address} if mapping is not None else set()
        found |= set(self._public())
        return {ip for ip in found if not _near(ip)}


def _near(ip: str) -> bool:
    return path_kind_to(ip) is not PathKind.DIRECT


def _is_near(address: Address) -> bool:
    return _near(address.host)

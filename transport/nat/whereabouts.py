"""Addresses at which this node can be reached, and the addresses of a peer that it may dial."""

from collections.abc import Sequence
from typing import Final

from ..address import Address
from ..bytestream import PathKind
from ..defaults import HTTPS_PORT
from ..dial.endpoint import Endpoint
from ..host.datagrams import Place
from ..host.seam import Host
from ..networks import is_public, path_kind_to
from ..relay.client import RelayClient
from .portmap.mapper import PortMapper
from .reach.reachability import Answer, Ipv6
from .reach.service import Reach

_EVERYWHERE: Final = ("0.0.0.0", "::")


class Whereabouts:
    """Addresses of one node, gathered from its own parts."""

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        reach: Reach,
        relays: RelayClient,
        mapper: PortMapper,
    ) -> None:
        self._host = host
        self._endpoint = endpoint
        self._reach = reach
        self._relays = relays
        self._mapper = mapper

    # This node's addresses.

    def addresses(self) -> list[Address]:
        """Return the addresses at which others can reach it besides the IPv4 addresses of its
        interfaces, best first: on IPv6, on TCP 443, as mapped by the router, where peers got
        through, and through relays."""
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
        """Return where UDP got through, and its own public IPv4 addresses that no peer has
        tried."""
        known, port = self._reach.reachability, self._endpoint.udp_port
        tried = {item.place for item in known.dialled if item.answer != Answer.UNKNOWN}
        own = [(ip, port) for ip in self._public() if ":" not in ip and port]
        return [*known.reached("udp"), *(place for place in own if place not in tried)]

    def reachable(self) -> bool:
        """Whether any peer with IPv4 can dial this node, as far as is known. If no peer could tell,
        a public address of its own is enough."""
        shown = self.shown_reachable()
        return self.public_ipv4() if shown is None else shown

    def shown_reachable(self) -> bool | None:
        """Whether peers that dialled it got here, and others will be able to: at a public address
        of its own, or at a port that its router forwards. None if no peer could tell. A full-cone
        NAT does not count, because its mapping expires, and IPv6 alone does not count either."""
        known, mapping = self._reach.reachability, self._mapper.mapping
        places = {(ip, self._endpoint.port) for ip in self._public() if ":" not in ip}
        if mapping is not None and mapping.tcp_port:
            places.add((mapping.address, mapping.tcp_port))
        if not places:
            return False
        answers = {
            item.answer
            for item in known.dialled
            if item.transport == "tcp" and item.place in places and item.answer != Answer.UNKNOWN
        }
        return Answer.REACHED in answers if answers else None

    def public_ipv4(self) -> bool:
        """Whether it listens at a public IPv4 address of its own."""
        return any(":" not in ip for ip in self._public())

    def everywhere(self) -> bool:
        """Whether networks that allow only the web's port outbound can reach it."""
        return any(HTTPS_PORT in self._ports(ip) for ip in self._public() if ":" not in ip)

    def _interfaces(self) -> list[str]:
        return [item.address for item in self._host.interfaces()]

    def _public(self) -> list[str]:
        """Return its own public addresses on which it listens; no IPv6 ones if they are
        filtered."""
        filtered = self._reach.reachability.ipv6 is Ipv6.FILTERED
        return [
            ip
            for ip in self._interfaces()
            if is_public(ip) and self._ports(ip) and not (filtered and ":" in ip)
        ]

    def _ports(self, ip: str) -> list[int]:
        """Return the TCP ports on which it listens at one of its addresses."""
        general = "::" if ":" in ip else "0.0.0.0"
        return [port for at, port in self._endpoint.listening if at in (ip, general)]

    # Peers' addresses.

    def dialable(self, addresses: Sequence[Address], found: Sequence[str] = ()) -> list[Address]:
        """Return the addresses of a peer that may be dialled. A private address belongs to another
        computer in each network. It is dialled only if the peer answered there (`found`), if it is
        seen at the same public address as this node, or if neither has a public one."""
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
            return set()  # it listens on loopback only
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

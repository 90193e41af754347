"""A box between two subnets: the common part of NATs, firewalls and carrier NATs."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Final, Protocol

import trio

from ..host import Host
from ..nat.segments import reset_for
from ..sockets.groups import is_group
from .link import LinkSpec
from .network import Attachment, Network, Subnet
from .packet import ICMP, IP4_HEADER, IP6_HEADER, TCP, UDP, Addr, Icmp, Packet

ICMP_BYTES: Final = 36  # header, and the start of the packet that the error refers to

Allowed = frozenset[tuple[int, int]]
"""(protocol, destination port) pairs that may leave."""


class Filter(Protocol):
    """Decides which packets may pass: IPv6, or IPv4 without translation."""

    def allows_out(self, packet: Packet) -> bool: ...

    def allows_in(self, packet: Packet) -> bool: ...

    def clear(self) -> None: ...


class Service(Protocol):
    """Program that a gateway runs on its inner address (`nat/portmap/igd.py`)."""

    async def run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None: ...

    def rebooted(self) -> None: ...

    def announce(self) -> None: ...


@dataclass(frozen=True, slots=True)
class GatewayPlace:
    """Where a gateway stands: the subnet outside, and its address and access link there."""

    network: Network
    name: str
    outside: Subnet
    address: str
    link: LinkSpec | None = None
    site: int = 0


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What can be set for every gateway; kinds of gateway add their own.

    `allow` limits what may leave; `blocked` is "drop", or "reject" to send an ICMP error to the
    sender. `prefix` (a /64) is routed to the inside, through the filter `six` if one is set.
    """

    inside: str = "192.168.1.0/24"
    addresses: tuple[str, ...] = ()  # further outer ones
    allow: Allowed | None = None
    blocked: str = "drop"
    prefix: str | None = None


class Gateway:
    """Router that passes packets between `inside` and `outside`; subclasses translate and filter.

    `wan` is its attachment outside, behind the access link; `lan` is its attachment inside, the
    default route of the hosts there.
    """

    routed = True  # inside IPv4 addresses are reachable from outside

    def __init__(self, place: GatewayPlace, settings: GatewaySettings) -> None:
        check("blocked", settings.blocked, ("drop", "reject"))
        network, name = place.network, place.name
        self.network = network
        self.name = name
        self.up = True
        self.inside = Subnet(network, f"{name}/lan", 0.0)
        self.wan = place.outside.attach(self, name="wan", link=place.link, site=place.site)
        self.outside = place.outside
        for each in (place.address, *settings.addresses):
            self._dial(each)
        self.lan = self.inside.attach(self, name="lan")
        self._lan = IPv4Network(settings.inside)
        self.inside.prefix = self._lan.prefixlen
        self._free = iter(self._lan.hosts())
        self.inside.assign(self.lan, next(map(str, self._free)))
        self.inside.gateway = self.lan
        self.six: Filter | None = None
        self.box: Host | None = None  # the gateway's own computer, if it runs a service
        self.service: Service | None = None
        self.forwards: dict[tuple[int, int], Addr] = {}  # (protocol, outer port): inner address
        self.forwarded: dict[tuple[int, Addr], int] = {}  # the other way round
        prefix = self.prefix = settings.prefix
        self._free6 = iter(IPv6Network(prefix).hosts()) if prefix is not None else None
        if self._free6 is not None:
            self.inside.assign(self.lan, str(next(self._free6)))
        self._allow = settings.allow
        self._reject = settings.blocked == "reject"
        self._power = 0  # counts reboots, so that an earlier one does not switch it on

    # Addresses.

    @property
    def address(self) -> str:
        """Return its first outer IPv4 address."""
        return self.wan.addresses[0]

    def free_address(self) -> str:
        """Return an unused inside IPv4 address, preferring addresses that were never used.

        Raises ValueError if none is left.
        """
        for _ in range(2):
            for text in map(str, self._free):
                if text not in self.inside.members:
                    return text
            self._free = iter(self._lan.hosts())
        raise ValueError(f"the inside of gateway `{self.name}` has no address left")

    def free_address6(self) -> str:
        """Return an unused IPv6 address of the routed prefix. Raises ValueError if there is
        none.
        """
        if self._free6 is None:
            raise ValueError(f"gateway `{self.name}` has no IPv6 (`ipv6=True`)")
        return str(next(self._free6))

    def route(self, address: str) -> None:
        """Route an inside address to this gateway from outside, as far as it is not translated:
        IPv6, and IPv4 of a gateway that is `routed`.
        """
        gateway: Gateway | None = self
        while gateway is not None and (":" in address or gateway.routed):
            gateway.outside.members[address] = gateway.wan
            gateway = gateway.outer

    @property
    def outer(self) -> "Gateway | None":
        """The gateway that this one is behind, or None."""
        owner = self.outside.gateway.owner if self.outside.gateway is not None else None
        return owner if isinstance(owner, Gateway) else None

    def _dial(self, address: str) -> None:
        """Take an outer address."""
        self.outside.assign(self.wan, address)
        if self.outer is not None:
            self.outer.route(address)

    # Packets.

    def receive(self, packet: Packet, at: Attachment) -> None:
        to = packet.dst[0]
        if at is self.lan and (to in at.addresses or is_group(to)):
            self._take(packet)
            return
        packet.ttl -= 1
        if packet.ttl <= 0:
            self.network.drop("ttl", self.name, packet)
            self.unreachable(packet, at, "ttl")
        elif at is self.lan:
            self._from_inside(packet)
        elif ":" in to:
            if self.six is None or self.six.allows_in(packet):
                self.deliver_inside(packet)
        else:
            self.inbound(packet)

    def _from_inside(self, packet: Packet) -> None:
        if self._allow is not None and not self._may_leave(packet):
            self.network.drop("firewall", self.name, packet)
            if self._reject:
                self.unreachable(packet, self.lan, "admin")
        elif ":" in packet.dst[0]:
            if self.six is None or self.six.allows_out(packet):
                self.wan.send(packet)
        else:
            self.outbound(packet)

    def _may_leave(self, packet: Packet) -> bool:
        assert self._allow is not None
        return packet.proto == ICMP or (packet.proto, packet.dst[1]) in self._allow

    def _take(self, packet: Packet) -> None:
        """Take a packet from inside that is addressed to the gateway itself."""
        if self.box is not None:
            self.box.receive(packet, self.lan)
        elif not is_group(packet.dst[0]):
            self.refuse(packet, self.lan)

    def outbound(self, packet: Packet) -> None:
        """Forward an IPv4 packet from inside; here without a change."""
        self.wan.send(packet)

    def inbound(self, packet: Packet) -> None:
        """Forward an IPv4 packet from outside."""
        self.deliver_inside(packet)

    def deliver_inside(self, packet: Packet) -> None:
        """Send a packet to the inside, or drop it if no host there has its address; never send it
        out again.
        """
        if packet.dst[0] in self.inside.members:
            self.lan.send(packet)
        else:
            self.network.drop("no-route", self.name, packet)

    # Ports that lead inside, requested from inside (UPnP, PCP) or set by the owner.

    def forward(self, proto: int, port: int, inner: Addr) -> None:
        """Lead an outer port to an inside endpoint, for every sender, until `unforward`."""
        self.unforward(proto, port)
        self.forwards[proto, port] = inner
        self.forwarded[proto, inner] = port

    def unforward(self, proto: int, port: int) -> None:
        inner = self.forwards.pop((proto, port), None)
        if inner is not None and self.forwarded.get((proto, inner)) == port:
            del self.forwarded[proto, inner]

    # Errors.

    def unreachable(self, packet: Packet, at: Attachment, kind: str, source: str = "") -> None:
        """Send the sender of `packet`, which arrived at `at`, an ICMP error; never about an ICMP
        error.
        """
        if packet.proto == ICMP:
            return
        six = ":" in packet.src[0]
        mine = source or next((a for a in at.addresses if (":" in a) == six), packet.dst[0])
        size = ICMP_BYTES + (IP6_HEADER if six else IP4_HEADER)
        about = Icmp(kind, packet)
        at.send(Packet(ICMP, (mine, 0), (packet.src[0], 0), size, about, self.name, "gateway"))

    def refuse(self, packet: Packet, at: Attachment) -> None:
        """Reply as a computer whose port is closed."""
        if packet.proto == UDP:
            self.unreachable(packet, at, "port", source=packet.dst[0])
        elif packet.proto == TCP:
            answer = reset_for(packet, self.name)
            if answer is not None:
                at.send(answer)

    # Life.

    def clear(self) -> None:
        """Forget all mappings and sessions. Subclasses forget theirs as well."""
        if self.six is not None:
            self.six.clear()

    def reboot(self, seconds: float = 0.0) -> None:
        """Switch off for `seconds`. Mappings, sessions and port forwards are lost; addresses
        stay.
        """
        self.clear()
        self.forwards.clear()
        self.forwarded.clear()
        self._power += 1
        self.up = seconds <= 0
        self.network.events.at(self.network.events.now + seconds, self._switch_on, self._power)

    def _switch_on(self, power: int) -> None:
        if power == self._power:
            self.up = True
            if self.service is not None:
                self.service.rebooted()
                self.service.announce()

    def redial(self, address: str, prefix: str | None = None) -> None:
        """Take a new outer address, and another prefix if the gateway has one.

        Old addresses become unreachable, and flows through them end.
        """
        before = list(self.wan.addresses)
        self._dial(address)
        for old in before:
            self.outside.release(self.wan, old)
        if prefix is not None and self.prefix is not None:
            self._renumber(prefix)
        self.clear()
        if self.service is not None:
            self.service.announce()

    def _renumber(self, prefix: str) -> None:
        """Give hosts with an address of the old prefix one of the new (RFC 8978: without
        notice).
        """
        self.prefix = prefix
        self._free6 = iter(IPv6Network(prefix).hosts())
        for plug in dict.fromkeys([self.lan, *self.inside.members.values()]):
            for old in [address for address in plug.addresses if ":" in address]:
                self.inside.release(plug, old)
                self.inside.assign(plug, self.free_address6())
                if plug is not self.lan:
                    self._unroute(old)
                    self.route(plug.addresses[-1])
            if isinstance(plug.owner, Host):
                plug.owner.addresses_changed()

    def _unroute(self, address: str) -> None:
        gateway: Gateway | None = self
        while gateway is not None:
            gateway.outside.members.pop(address, None)
            gateway = gateway.outer

    async def serve(self, nursery: trio.Nursery) -> None:
        """Run the gateway's own service in `nursery`; return once it replies."""
        if self.service is not None and self.box is not None:
            self.box.nursery = nursery
            await self.box.run(nursery.start, self.service.run, self.box)


def check(knob: str, value: object, known: Iterable[object]) -> None:
    """Check that `value` is one of the values known for this knob. Raises ValueError."""
    if value not in tuple(known):
        raise ValueError(f"{knob} is {value!r}; it can be {', '.join(map(repr, known))}")


def readdressed(icmp: Icmp, src: Addr, dst: Addr) -> Icmp:
    """Return the same error about the packet as it was written on this side of the translation."""
    twin = copy.copy(icmp)
    twin.src, twin.dst = src, dst
    return twin

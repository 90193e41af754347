"""Gateway between two subnets: the common base of NATs, firewalls and carrier-grade NATs."""

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

ICMP_BYTES: Final = 36  # ICMP header, and the start of the packet that the error refers to

Allowed = frozenset[tuple[int, int]]
"""Pairs (IP protocol, destination port) of the packets that may leave through a gateway."""


class Filter(Protocol):
    """Firewall that decides which untranslated packets may pass: IPv6 packets, or IPv4 packets of a
    gateway that is not a NAT.
    """

    def allows_out(self, packet: Packet) -> bool: ...

    def allows_in(self, packet: Packet) -> bool: ...

    def clear(self) -> None: ...


class RouterService(Protocol):
    """Program that a gateway runs on its inner address (see `nat/portmap/igd.py`)."""

    async def run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None: ...

    def rebooted(self) -> None: ...

    def announce(self) -> None: ...


@dataclass(frozen=True, slots=True)
class GatewayPlace:
    """Position of a gateway: its name, the subnet outside, and its address and access link in that
    subnet. `site` is its row in the latency matrix.
    """

    network: Network
    name: str
    outside: Subnet
    address: str
    link: LinkSpec | None = None
    site: int = 0


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Settings that every kind of gateway has.

    If `allow` is set, only packets that it lists may leave. `blocked` says what happens to others:
    "drop" them silently, or "reject" them with an ICMP error to the sender. `inside` is the IPv4
    network inside. `prefix` is an IPv6 /64 that is routed to the inside; packets to it pass the
    gateway's filter `six`, if it has one.
    """

    inside: str = "192.168.1.0/24"
    addresses: tuple[str, ...] = ()  # additional outer IPv4 addresses
    allow: Allowed | None = None
    blocked: str = "drop"
    prefix: str | None = None


class SubnetRouter:
    """Router between the subnets `inside` and `outside`. Subclasses translate and filter packets.

    `wan` is the gateway's attachment outside, behind its access link. `lan` is its attachment
    inside, which is the default route of the hosts there.
    """

    routed = True  # whether inner IPv4 addresses are reachable from outside, without translation

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
        self.box: Host | None = None  # host that runs the gateway's service, if it has one
        self.service: RouterService | None = None
        self.forwards: dict[tuple[int, int], Addr] = {}  # (protocol, outer port): inner address
        self.forwarded: dict[tuple[int, Addr], int] = {}  # (protocol, inner address): outer port
        prefix = self.prefix = settings.prefix
        self._free6 = iter(IPv6Network(prefix).hosts()) if prefix is not None else None
        if self._free6 is not None:
            self.inside.assign(self.lan, str(next(self._free6)))
        self._allow = settings.allow
        self._reject = settings.blocked == "reject"
        self._power = 0  # number of reboots, so that only the latest one switches the gateway on

    # Addresses.

    @property
    def address(self) -> str:
        """The gateway's first outer IPv4 address."""
        return self.wan.addresses[0]

    def free_address(self) -> str:
        """Return an unused inner IPv4 address, preferring addresses that were never used.

        Raises ValueError if none is left.
        """
        for _ in range(2):
            for text in map(str, self._free):
                if text not in self.inside.members:
                    return text
            self._free = iter(self._lan.hosts())
        raise ValueError(f"the inside of gateway `{self.name}` has no address left")

    def free_address6(self) -> str:
        """Return an unused IPv6 address of the routed prefix. Raises ValueError if the gateway has
        no IPv6 prefix.
        """
        if self._free6 is None:
            raise ValueError(f"gateway `{self.name}` has no IPv6 (`ipv6=True`)")
        return str(next(self._free6))

    def route(self, address: str) -> None:
        """Make an inner address reachable from outside through this gateway and the gateways around
        it. For IPv4, stop at the first gateway that translates addresses (not `routed`).
        """
        gateway: SubnetRouter | None = self
        while gateway is not None and (":" in address or gateway.routed):
            gateway.outside.members[address] = gateway.wan
            gateway = gateway.outer

    @property
    def outer(self) -> "SubnetRouter | None":
        """The gateway that this one is behind, or None."""
        owner = self.outside.gateway.owner if self.outside.gateway is not None else None
        return owner if isinstance(owner, SubnetRouter) else None

    def _dial(self, address: str) -> None:
        """Assign an outer address to this gateway."""
        self.outside.assign(self.wan, address)
        if self.outer is not None:
            self.outer.route(address)

    # Packets.

    def receive(self, packet: Packet, at: Attachment) -> None:
        """Process a packet that arrived at the attachment `at`: filter, translate and forward
        it.
        """
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
        """Return whether the setting `allow` lets a packet leave. ICMP may always leave."""
        assert self._allow is not None
        return packet.proto == ICMP or (packet.proto, packet.dst[1]) in self._allow

    def _take(self, packet: Packet) -> None:
        """Process a packet from inside that is addressed to the gateway itself or to a group."""
        if self.box is not None:
            self.box.receive(packet, self.lan)
        elif not is_group(packet.dst[0]):
            self.refuse(packet, self.lan)

    def outbound(self, packet: Packet) -> None:
        """Forward an IPv4 packet from inside. This base class does not translate it."""
        self.wan.send(packet)

    def inbound(self, packet: Packet) -> None:
        """Forward an IPv4 packet from outside. This base class does not translate it."""
        self.deliver_inside(packet)

    def deliver_inside(self, packet: Packet) -> None:
        """Send a packet to the inside. If no host there has its destination address, drop the
        packet, so that it never leaves the gateway again.
        """
        if packet.dst[0] in self.inside.members:
            self.lan.send(packet)
        else:
            self.network.drop("no-route", self.name, packet)

    # Port forwards, requested by an inner host (UPnP, PCP) or configured by the owner.

    def forward(self, proto: int, port: int, inner: Addr) -> None:
        """Forward an outer port to an inner endpoint, for every sender, until `unforward` is
        called.
        """
        self.unforward(proto, port)
        self.forwards[proto, port] = inner
        self.forwarded[proto, inner] = port

    def unforward(self, proto: int, port: int) -> None:
        """Remove the forward of an outer port, if there is one."""
        inner = self.forwards.pop((proto, port), None)
        if inner is not None and self.forwarded.get((proto, inner)) == port:
            del self.forwarded[proto, inner]

    # Errors.

    def unreachable(self, packet: Packet, at: Attachment, kind: str, source: str = "") -> None:
        """Send an ICMP error of the given kind to the sender of `packet`, unless `packet` is ICMP.

        `at` is the attachment at which `packet` arrived. The error comes from the address `source`,
        or from the gateway's own address if `source` is empty.
        """
        if packet.proto == ICMP:
            return
        six = ":" in packet.src[0]
        mine = source or next((a for a in at.addresses if (":" in a) == six), packet.dst[0])
        size = ICMP_BYTES + (IP6_HEADER if six else IP4_HEADER)
        about = Icmp(kind, packet)
        at.send(Packet(ICMP, (mine, 0), (packet.src[0], 0), size, about, self.name, "gateway"))

    def refuse(self, packet: Packet, at: Attachment) -> None:
        """Reply to a packet as a computer replies whose port is closed: with ICMP for UDP, with a
        reset for TCP.
        """
        if packet.proto == UDP:
            self.unreachable(packet, at, "port", source=packet.dst[0])
        elif packet.proto == TCP:
            answer = reset_for(packet, self.name)
            if answer is not None:
                at.send(answer)

    # Life.

    def clear(self) -> None:
        """Delete all mappings and sessions. Subclasses delete theirs as well."""
        if self.six is not None:
            self.six.clear()

    def reboot(self, seconds: float = 0.0) -> None:
        """Switch the gateway off for `seconds`. It loses its mappings, sessions and port forwards,
        and keeps its addresses.
        """
        self.clear()
        self.forwards.clear()
        self.forwarded.clear()
        self._power += 1
        self.up = seconds <= 0
        self.network.events.at(self.network.events.now + seconds, self._switch_on, self._power)

    def _switch_on(self, power: int) -> None:
        """Switch the gateway on after reboot number `power`, unless another reboot has begun
        since.
        """
        if power == self._power:
            self.up = True
            if self.service is not None:
                self.service.rebooted()
                self.service.announce()

    def redial(self, address: str, prefix: str | None = None) -> None:
        """Replace the outer address and, if the gateway has one, the IPv6 prefix.

        The old addresses become unreachable, and flows through them end.
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
        """Replace each address of the old IPv6 prefix inside by one of the new prefix. The hosts
        get no notice (RFC 8978).
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
        """Remove the route to an inner address from this gateway and all gateways that it is
        behind.
        """
        gateway: SubnetRouter | None = self
        while gateway is not None:
            gateway.outside.members.pop(address, None)
            gateway = gateway.outer

    async def serve(self, nursery: trio.Nursery) -> None:
        """Run the gateway's service, if it has one, in `nursery`. Return once the service accepts
        requests.
        """
        if self.service is not None and self.box is not None:
            self.box.nursery = nursery
            await self.box.run(nursery.start, self.service.run, self.box)


def check(knob: str, value: object, known: Iterable[object]) -> None:
    """Check that `value` is one of the known values of this setting. Raises ValueError if it is
    not.
    """
    if value not in tuple(known):
        raise ValueError(f"{knob} is {value!r}; it can be {', '.join(map(repr, known))}")


def readdressed(icmp: Icmp, src: Addr, dst: Addr) -> Icmp:
    """Return a copy of an ICMP error whose quoted packet has the addresses `src` and `dst`, which
    it had before translation.
    """
    twin = copy.copy(icmp)
    twin.src, twin.dst = src, dst
    return twin

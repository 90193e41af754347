"""Subnets, the hosts and gateways attached to them, and the route of a packet.

A host sends a packet through its attachment, whose up pipe delays or drops it. The subnet routes
the packet to another attachment, or to its gateway. The down pipe of that attachment delays or
drops the packet again, and then the owner of the attachment receives it. A gateway (NAT, firewall,
carrier-grade NAT) owns an attachment in each of two subnets. Each receipt is a separate event,
never a nested call.
"""

from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from ..clock import Events
from ..disk.file import Contents
from ..streams import RandomStreams
from ..trace.trace import Trace
from .link import REASONS, TOO_BIG, LinkSpec, Pipe, PipeSpec
from .packet import ICMP, Icmp, Packet

BROADCAST: Final = "255.255.255.255"
NAMELESS_ROUTER: Final = "192.0.0.8"
"""Source address of ICMP errors from a router that has no address of its own (RFC 7600, section
4.8).
"""


class Owner(Protocol):
    """Owner of an attachment: a host or a gateway."""

    name: str
    up: bool  # whether it is switched on

    def receive(self, packet: Packet, at: "Attachment") -> None:
        """Receive a packet at the attachment `at`. It is called from the event queue."""
        ...


Interfere = Callable[[Packet, str], float]
"""Function that injects faults into packets. It gets a packet and the name of the host that would
receive it. It returns 0.0 to let the packet pass, a negative number to drop it, and otherwise the
number of seconds to delay it.
"""


Latency = Callable[[int, int], float] | float
"""Function that returns the seconds in one direction between two sites, which are rows of a latency
matrix. A number is the latency between any two sites.
"""


class Network:
    """State that all subnets of a simulation share."""

    def __init__(self, events: Events, streams: RandomStreams, trace: Trace | None) -> None:
        self.events = events
        self.streams = streams
        self.trace = trace
        self.sent = 0  # number of packets, as are the next two
        self.delivered = 0
        self.dropped = 0
        self.interfere: Interfere | None = None  # set by `interfere_by`
        self.contents = Contents()  # large contents of disks, each stored once

    def interfere_by(self, interfere: Interfere | None) -> None:
        """Have a function inject faults into all packets from now on, instead of an earlier one.
        None ends that."""
        self.interfere = interfere

    def note(self, what: str, host: str, packet: Packet) -> None:
        """Write an event `what` of a packet to the trace, if there is a trace."""
        if self.trace is not None:
            self.trace.add(
                (self.events.now, what, host, packet.proto, packet.src, packet.dst, packet.size,
                 packet.cause)
            )  # fmt: skip

    def intercept(self, packet: Packet, host: str, take: Callable[[Packet], None]) -> bool:
        """Apply the injected faults to a packet that arrives at its host. Return False if the
        packet may pass now. Otherwise drop it, or pass it to `take` later, and return True.
        """
        held = self.interfere(packet, host) if self.interfere is not None else 0.0
        if held < 0:
            self.drop("cut", host, packet)
        elif held > 0:
            self.events.at(self.events.now + held, take, packet)
        return held != 0

    def drop(self, why: str, host: str, packet: Packet) -> None:
        """Count a lost packet, and write it to the trace with the reason `why`."""
        self.dropped += 1
        self.note(why, host, packet)


class Attachment:
    """Interface of a host or gateway in a subnet, with its addresses and its two pipes."""

    __slots__ = ("addresses", "down", "name", "owner", "site", "subnet", "up")

    def __init__(
        self, subnet: "Subnet", owner: Owner, name: str, link: LinkSpec, site: int
    ) -> None:
        self.subnet = subnet
        self.owner = owner
        self.name = name  # name of the interface, such as "eth0" or "wan"
        self.site = site  # row of the latency matrix
        self.addresses: list[str] = []
        self.up = Pipe(link.up, self._luck(link.up, "up"))
        self.down = Pipe(link.down, self._luck(link.down, "down"))

    def _luck(self, spec: PipeSpec, way: str) -> Random | None:
        """Return the random generator of a pipe, or None if the pipe needs no random numbers,
        because a generator takes 2.5 KB.
        """
        streams = self.subnet.network.streams
        return streams.get(f"{self.owner.name}/{self.name}", way) if spec.by_chance else None

    def change(self, link: LinkSpec) -> None:
        """Replace the parameters of the link. Packets in flight are unaffected."""
        self.up.change(link.up, self._luck(link.up, "up"))
        self.down.change(link.down, self._luck(link.down, "down"))

    def send(self, packet: Packet) -> None:
        """Send a packet into the subnet, through the up pipe."""
        subnet = self.subnet
        network = subnet.network
        network.sent += 1
        now = network.events.now
        if network.trace is not None:
            network.note("sent", self.owner.name, packet)
        up = self.up
        when = up.offer(now, packet.size)
        if when < 0:
            network.drop(REASONS[when], self.owner.name, packet)
            if when == TOO_BIG:
                self._complain(packet, up.spec.mtu, self)
            return
        to = subnet.find(packet.dst[0], self)
        if to is None:
            network.drop("no-route", self.owner.name, packet)
            return
        when += subnet.latency(self, to)
        network.events.at(when, to.arrive, packet)
        if up.duplicates and up.again():
            network.events.at(when, to.arrive, packet.copy())

    def spread(self, packet: Packet) -> None:
        """Send a multicast or broadcast packet into the subnet: a copy to each attachment that
        listens.
        """
        subnet = self.subnet
        network = subnet.network
        network.sent += 1
        network.note("sent", self.owner.name, packet)
        when = self.up.offer(network.events.now, packet.size)
        if when < 0:
            network.drop(REASONS[when], self.owner.name, packet)
            return
        for to in subnet.listeners(packet.dst[0], self):
            network.events.at(when + subnet.latency(self, to), to.arrive, packet.copy())

    def arrive(self, packet: Packet) -> None:
        """Process a packet that has crossed the subnet, before the down pipe of this attachment."""
        network = self.subnet.network
        events, down = network.events, self.down
        when = down.offer(events.now, packet.size)
        if when < 0:
            network.drop(REASONS[when], self.owner.name, packet)
            if when == TOO_BIG:
                self._complain(packet, down.spec.mtu, self.subnet.find(packet.src[0], self))
            return
        # Copy the packet before a gateway changes its addresses.
        if down.duplicates and down.again():
            events.at(when, self.deliver, packet.copy())
        if when <= events.now or events.reach(when):
            self.deliver(packet)
        else:
            events.at(when, self.deliver, packet)

    def _complain(self, packet: Packet, mtu: int, to: "Attachment | None") -> None:
        """Send an ICMP error to the sender of a packet that exceeds the MTU of a link (RFC 1191),
        as the router before that link would. Send none if the packet is ICMP.
        """
        if to is None or packet.proto == ICMP:
            return
        source = packet.dst[0] if ":" in packet.dst[0] else NAMELESS_ROUTER
        told = Packet(
            ICMP, (source, 0), (packet.src[0], 0), 56, Icmp("too-big", packet, mtu), "", ""
        )
        network = self.subnet.network
        delay = 0.0 if to is self else self.subnet.latency(self, to)
        network.events.at(network.events.now + delay, to.deliver, told)

    def deliver(self, packet: Packet) -> None:
        """Pass a packet to the owner of this attachment, or drop it if the owner is off."""
        if self.owner.up:
            self.owner.receive(packet, self)
        else:
            self.subnet.network.drop("down", self.owner.name, packet)


class Subnet:
    """Part of the network whose addresses reach each other directly: the internet, or a LAN."""

    def __init__(self, network: Network, name: str, latency: Latency) -> None:
        self.network = network
        self.name = name
        self.members: dict[str, Attachment] = {}  # by IP address
        self.gateway: Attachment | None = None  # receives packets for all other addresses
        self.prefix = 24  # prefix length of IPv4, in bits
        self.prefix6 = 64  # prefix length of IPv6, in bits
        # Whether multicast and broadcast work here; they do not on the public internet.
        self.carries_groups = True
        self._groups: dict[str, dict[Attachment, None]] = {}
        self._latency = float(latency) if isinstance(latency, int) else latency

    def attach(
        self, owner: Owner, *, name: str = "eth0", link: LinkSpec | None = None, site: int = 0
    ) -> Attachment:
        """Create an attachment of `owner` to this subnet, and return it."""
        return Attachment(self, owner, name, link or LinkSpec(), site)

    def assign(self, attachment: Attachment, address: str) -> None:
        """Assign an address to an attachment. Raises ValueError if another attachment has the
        address.
        """
        if address in self.members:
            raise ValueError(f"{address} is taken on {self.name}")
        self.members[address] = attachment
        attachment.addresses.append(address)

    def release(self, attachment: Attachment, address: str) -> None:
        """Remove an address from an attachment, for example when its gateway dials in again."""
        del self.members[address]
        attachment.addresses.remove(address)

    def join(self, group: str, attachment: Attachment) -> None:
        """Deliver packets for a multicast group to `attachment` from now on."""
        self._groups.setdefault(group, {})[attachment] = None

    def leave(self, group: str, attachment: Attachment) -> None:
        """Stop delivering packets for a multicast group to `attachment`."""
        self._groups.get(group, {}).pop(attachment, None)

    def leave_all(self, attachment: Attachment) -> None:
        """Remove an attachment from all multicast groups, because its host has lost power."""
        for joined in self._groups.values():
            joined.pop(attachment, None)

    def listeners(self, group: str, sender: Attachment) -> list[Attachment]:
        """Return the attachments that receive what `sender` sends to a group. A broadcast reaches
        all attachments except the router's. The sender is never included.
        """
        if not self.carries_groups:
            return []
        if group == BROADCAST:
            found = [item for item in self.members.values() if item is not self.gateway]
        else:
            found = list(self._groups.get(group, ()))
        return [item for item in dict.fromkeys(found) if item is not sender]

    def find(self, address: str, sender: Attachment) -> Attachment | None:
        """Return the attachment that has `address`. If none has it, return the attachment of the
        gateway, or None if there is no gateway or the gateway is the sender.
        """
        found = self.members.get(address)
        return found if found is not None else self.gateway if self.gateway is not sender else None

    def latency(self, a: Attachment, b: Attachment) -> float:
        """Return the latency in seconds from one attachment to another, without the delay of their
        pipes.
        """
        latency = self._latency
        return latency if isinstance(latency, float) else latency(a.site, b.site)

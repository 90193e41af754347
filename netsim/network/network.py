"""Segments, the hosts and gateways attached to them, and the route of a packet.

A host sends through its attachment, whose up pipe delays or drops the packet. The subnet routes it
to another attachment, or to its gateway. After that one's down pipe its owner receives it. Gateways
(NATs, firewalls, carrier NATs) are owners attached to two subnets. Every receipt is an event of
its own, never a nested call.
"""

from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from ..clock import Events
from ..streams import Streams
from ..trace.trace import Trace
from .link import REASONS, TOO_BIG, LinkSpec, Pipe, PipeSpec
from .packet import ICMP, Icmp, Packet

BROADCAST: Final = "255.255.255.255"
NAMELESS_ROUTER: Final = "192.0.0.8"
"""The source of ICMP from a router without an address of its own (RFC 7600, section 4.8)."""


class Owner(Protocol):
    """The owner of an attachment: a host's stack, or a gateway."""

    name: str
    up: bool  # switched on

    def receive(self, packet: Packet, at: "Attachment") -> None:
        """Receive a packet. Called from the event heap."""
        ...


Interfere = Callable[[Packet, str], float]
"""Faults: (packet, host that would receive it) -> 0.0 to let it pass, a negative number to drop it,
otherwise seconds to hold it back.
"""


Latency = Callable[[int, int], float] | float
"""Seconds in one direction between two sites (rows of a matrix), or between any two."""


class Network:
    """State that all subnets of one simulation share."""

    def __init__(self, events: Events, streams: Streams, trace: Trace | None) -> None:
        self.events = events
        self.streams = streams
        self.trace = trace
        self.sent = 0
        self.delivered = 0
        self.dropped = 0
        self.interfere: Interfere | None = None
        self.contents: dict[bytes, bytes] = {}  # large contents of disks, each stored once

    def note(self, what: str, host: str, packet: Packet) -> None:
        """Write a record of this packet."""
        if self.trace is not None:
            self.trace.add(
                (self.events.now, what, host, packet.proto, packet.src, packet.dst, packet.size,
                 packet.cause)
            )  # fmt: skip

    def intercept(self, packet: Packet, host: str, take: Callable[[Packet], None]) -> bool:
        """Let the faults act on a packet that reaches its host. Return False if none does."""
        held = self.interfere(packet, host) if self.interfere is not None else 0.0
        if held < 0:
            self.drop("cut", host, packet)
        elif held > 0:
            self.events.at(self.events.now + held, take, packet)
        return held != 0

    def drop(self, why: str, host: str, packet: Packet) -> None:
        """Count and record a packet that is lost."""
        self.dropped += 1
        self.note(why, host, packet)


class Attachment:
    """Connection of an owner to a subnet: its addresses and its two pipes."""

    __slots__ = ("addresses", "down", "name", "owner", "site", "subnet", "up")

    def __init__(
        self, subnet: "Subnet", owner: Owner, name: str, link: LinkSpec, site: int
    ) -> None:
        self.subnet = subnet
        self.owner = owner
        self.name = name  # of the interface: "eth0", "wan"
        self.site = site  # row of the latency matrix
        self.addresses: list[str] = []
        self.up = Pipe(link.up, self._luck(link.up, "up"))
        self.down = Pipe(link.down, self._luck(link.down, "down"))

    def _luck(self, spec: PipeSpec, way: str) -> Random | None:
        """Return the stream of a pipe; only pipes that draw have one, because it takes 2.5 KB."""
        streams = self.subnet.network.streams
        return streams.get(f"{self.owner.name}/{self.name}", way) if spec.by_chance else None

    def change(self, link: LinkSpec) -> None:
        """Replace the link from now on; packets in flight are unaffected."""
        self.up.change(link.up, self._luck(link.up, "up"))
        self.down.change(link.down, self._luck(link.down, "down"))

    def send(self, packet: Packet) -> None:
        """Put a packet on the wire."""
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
        """Put a packet for a group or a broadcast on the wire: a copy for each listener."""
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
        """Take a packet at the far end of the wire, before the down pipe."""
        network = self.subnet.network
        events, down = network.events, self.down
        when = down.offer(events.now, packet.size)
        if when < 0:
            network.drop(REASONS[when], self.owner.name, packet)
            if when == TOO_BIG:
                self._complain(packet, down.spec.mtu, self.subnet.find(packet.src[0], self))
            return
        if down.duplicates and down.again():  # before a gateway changes its addresses
            events.at(when, self.deliver, packet.copy())
        if when <= events.now or events.reach(when):
            self.deliver(packet)
        else:
            events.at(when, self.deliver, packet)

    def _complain(self, packet: Packet, mtu: int, to: "Attachment | None") -> None:
        """Let the router at a narrow link inform the sender (RFC 1191); never about an ICMP
        packet.
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
        if self.owner.up:
            self.owner.receive(packet, self)
        else:
            self.subnet.network.drop("down", self.owner.name, packet)


class Subnet:
    """Part of the network in which addresses are reached directly: the internet, or a LAN."""

    def __init__(self, network: Network, name: str, latency: Latency) -> None:
        self.network = network
        self.name = name
        self.members: dict[str, Attachment] = {}  # by IP address
        self.gateway: Attachment | None = None  # for every other address
        self.prefix = 24  # length of the network's prefix, as its hosts see it
        self.prefix6 = 64
        self.carries_groups = True  # multicast and broadcast; the public internet does not
        self._groups: dict[str, dict[Attachment, None]] = {}
        self._latency = float(latency) if isinstance(latency, int) else latency

    def attach(
        self, owner: Owner, *, name: str = "eth0", link: LinkSpec | None = None, site: int = 0
    ) -> Attachment:
        """Attach an owner to this subnet."""
        return Attachment(self, owner, name, link or LinkSpec(), site)

    def assign(self, attachment: Attachment, address: str) -> None:
        """Give an attachment an address. Raises ValueError if another has it."""
        if address in self.members:
            raise ValueError(f"{address} is taken on {self.name}")
        self.members[address] = attachment
        attachment.addresses.append(address)

    def release(self, attachment: Attachment, address: str) -> None:
        """Take an address away (a re-dial, an unplugged cable)."""
        del self.members[address]
        attachment.addresses.remove(address)

    def join(self, group: str, attachment: Attachment) -> None:
        """Let `attachment` receive what is sent to the group here, from now on."""
        self._groups.setdefault(group, {})[attachment] = None

    def leave(self, group: str, attachment: Attachment) -> None:
        self._groups.get(group, {}).pop(attachment, None)

    def leave_all(self, attachment: Attachment) -> None:
        """Leave all groups, because the computer has no power."""
        for joined in self._groups.values():
            joined.pop(attachment, None)

    def listeners(self, group: str, sender: Attachment) -> list[Attachment]:
        """Return the other receivers of what `sender` sends to a group; for a broadcast, all but
        the router.
        """
        if not self.carries_groups:
            return []
        if group == BROADCAST:
            found = [item for item in self.members.values() if item is not self.gateway]
        else:
            found = list(self._groups.get(group, ()))
        return [item for item in dict.fromkeys(found) if item is not sender]

    def find(self, address: str, sender: Attachment) -> Attachment | None:
        """Return the attachment that gets packets for `address`."""
        found = self.members.get(address)
        return found if found is not None else self.gateway if self.gateway is not sender else None

    def latency(self, a: Attachment, b: Attachment) -> float:
        """Return the seconds from one attachment to another, pipes excluded."""
        latency = self._latency
        return latency if isinstance(latency, float) else latency(a.site, b.site)

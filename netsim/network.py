"""Segments, who is attached to them, and the way of a packet.

A host sends through its attachment; the attachment's up pipe delays or drops; the segment routes
to another attachment, or to its gateway; that one's down pipe; its owner receives. Gateways
(NATs, firewalls, carrier NATs) are owners attached to two segments. Every receipt is an event
of its own, never inside somebody else's call.
"""

from collections.abc import Callable
from typing import Protocol

from .clock import Events
from .link import REASONS, LinkSpec, Pipe
from .packet import Packet
from .streams import Streams
from .trace import Trace


class Owner(Protocol):
    """Who has an attachment: a host's stack, or a gateway."""

    name: str
    up: bool  # switched on

    def receive(self, packet: Packet, at: "Attachment") -> None:
        """A packet has arrived. Called from the event heap."""
        ...


Interfere = Callable[[Packet, str], float]
"""Faults: (packet, host that would receive it) -> 0.0 to let it pass, a negative number to drop
it, else seconds to hold it back."""


class Network:
    """What all segments of one simulation share."""

    def __init__(self, events: Events, streams: Streams, trace: Trace | None) -> None:
        self.events = events
        self.streams = streams
        self.trace = trace
        self.sent = 0
        self.delivered = 0
        self.dropped = 0
        self.interfere: Interfere | None = None

    def note(self, what: str, host: str, packet: Packet) -> None:
        """Write a record of this packet."""
        if self.trace is not None:
            self.trace.add(
                self.events.now,
                what,
                host,
                packet.proto,
                packet.src,
                packet.dst,
                packet.size,
                packet.cause,
            )

    def drop(self, why: str, host: str, packet: Packet) -> None:
        """Count and record a packet that goes nowhere."""
        self.dropped += 1
        self.note(why, host, packet)


class Attachment:
    """A plug in a segment: its owner, its addresses, its two pipes."""

    __slots__ = ("addresses", "down", "name", "owner", "segment", "site", "up")

    def __init__(
        self, segment: "Segment", owner: Owner, name: str, link: LinkSpec, site: int
    ) -> None:
        streams = segment.network.streams
        self.segment = segment
        self.owner = owner
        self.name = name  # of the interface: "eth0", "wan"
        self.site = site  # row of the latency matrix
        self.addresses: list[str] = []
        self.up = Pipe(link.up, streams.get(f"{owner.name}/{name}", "up"))
        self.down = Pipe(link.down, streams.get(f"{owner.name}/{name}", "down"))

    def send(self, packet: Packet) -> None:
        """Put a packet on the wire."""
        segment = self.segment
        network = segment.network
        network.sent += 1
        now = network.events.now
        if network.trace is not None:
            network.note("sent", self.owner.name, packet)
        when = self.up.offer(now, packet.size)
        if when < 0:
            network.drop(REASONS[when], self.owner.name, packet)
            return
        to = segment.find(packet.dst[0], self)
        if to is None:
            network.drop("no-route", self.owner.name, packet)
            return
        when += segment.latency(self, to)
        network.events.at(when, to.arrive, packet)

    def arrive(self, packet: Packet) -> None:
        """At the far end of the wire: the down pipe is still to pass."""
        network = self.segment.network
        when = self.down.offer(network.events.now, packet.size)
        if when < 0:
            network.drop(REASONS[when], self.owner.name, packet)
        elif when <= network.events.now:
            self.deliver(packet)
        else:
            network.events.at(when, self.deliver, packet)

    def deliver(self, packet: Packet) -> None:
        if self.owner.up:
            self.owner.receive(packet, self)
        else:
            self.segment.network.drop("down", self.owner.name, packet)


class Segment:
    """A piece of network in which addresses are reached directly: the internet, or a LAN."""

    def __init__(
        self, network: Network, name: str, latency: Callable[[int, int], float] | float
    ) -> None:
        self.network = network
        self.name = name
        self.members: dict[str, Attachment] = {}  # by IP address
        self.gateway: Attachment | None = None  # for every other address
        self._latency = latency

    def attach(
        self, owner: Owner, *, name: str = "eth0", link: LinkSpec | None = None, site: int = 0
    ) -> Attachment:
        """Plug an owner in."""
        return Attachment(self, owner, name, link or LinkSpec(), site)

    def assign(self, attachment: Attachment, address: str) -> None:
        """Give an attachment an address; another's is an error."""
        if address in self.members:
            raise ValueError(f"{address} is taken on {self.name}")
        self.members[address] = attachment
        attachment.addresses.append(address)

    def release(self, attachment: Attachment, address: str) -> None:
        """Take an address away (a re-dial, an unplugged cable)."""
        del self.members[address]
        attachment.addresses.remove(address)

    def find(self, address: str, sender: Attachment) -> Attachment | None:
        """Who gets packets for `address`."""
        found = self.members.get(address)
        return found if found is not None else self.gateway if self.gateway is not sender else None

    def latency(self, a: Attachment, b: Attachment) -> float:
        """Seconds from one plug to the other, pipes excluded."""
        latency = self._latency
        return latency if isinstance(latency, float) else latency(a.site, b.site)

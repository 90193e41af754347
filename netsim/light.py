"""Light hosts: a core without tasks, sockets or TLS on the same network, by the thousand.

A core is sans-I/O: datagrams and the time go in, datagrams come out. It runs behind the same
NATs and links as a whole host, at a hundredth of the cost.
"""

from collections.abc import Iterable
from math import inf
from typing import Any, Protocol

from .errors import SimError
from .network import Attachment, Network
from .packet import IP4_HEADER, IP6_HEADER, UDP, UDP_HEADER, Addr, Packet

Sends = Iterable[tuple[bytes, Addr]]
"""Datagrams, and where to."""


class Core(Protocol):
    """What runs on a light host. Times are seconds of the simulation."""

    wake_at: float
    """When `on_time` is wanted, infinity for never; read after each call."""

    def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
        """A datagram has come; what to send."""
        ...

    def on_time(self, now: float) -> Sends:
        """`wake_at` has come; what to send. It must have moved `wake_at` on."""
        ...


class LightHost:
    """A host with one UDP port and a core."""

    __slots__ = (
        "_armed",
        "_local",
        "_network",
        "_overhead",
        "attachment",
        "core",
        "name",
        "up",
    )

    def __init__(self, network: Network, name: str, core: Core) -> None:
        self._network = network
        self.name = name
        self.core = core
        self.up = True
        self._armed = inf  # when the earliest timer fires

    def plug(self, attachment: Attachment, port: int) -> None:
        """Its only interface, which has its address."""
        self.attachment = attachment
        self._local = attachment.addresses[0], port
        six = ":" in self._local[0]
        self._overhead = UDP_HEADER + (IP6_HEADER if six else IP4_HEADER)
        self.arm()

    @property
    def address(self) -> Addr:
        """Its own address and port, as it knows them itself."""
        return self._local

    def receive(self, packet: Packet, at: Attachment) -> None:
        """A packet has come in on an interface."""
        network = self._network
        if network.interfere is not None and network.intercept(packet, self.name, self.take):
            return
        self.take(packet)

    def take(self, packet: Packet) -> None:
        """Hand a datagram to the core, and send what it says."""
        network = self._network
        if not self.up:
            network.drop("down", self.name, packet)
            return
        network.delivered += 1
        if network.trace is not None:
            network.note("received", self.name, packet)
        if packet.proto == UDP and packet.dst[1] == self._local[1]:
            core = self.core
            for data, to in core.on_datagram(network.events.now, packet.data, packet.src):
                self.send(data, to)
            if core.wake_at < self._armed:
                self.arm()

    def send(self, data: bytes, to: Addr) -> None:
        """Send a datagram."""
        size = len(data) + self._overhead
        self.attachment.send(Packet(UDP, self._local, to, size, data, self.name, self.name))

    def arm(self) -> None:
        """Set a timer for `wake_at` where none fires by then. For who changes a core."""
        due = self.core.wake_at
        if due < self._armed:
            self._armed = due
            self._network.events.at(due, self._fire)

    def _fire(self, _: Any) -> None:
        now = self._network.events.now
        if now < self._armed or not self.up:
            return  # an earlier one was set meanwhile, and has done this one's work
        self._armed = inf
        core = self.core
        if core.wake_at <= now:
            for data, to in core.on_time(now):
                self.send(data, to)
            if core.wake_at <= now:
                raise SimError(f"{self.name}: its core wants to be woken at {core.wake_at}: past")
        self.arm()

    # Faults.

    def crash(self) -> None:
        """Power off: nothing is sent or received any more."""
        self.up = False

    def restart(self, core: Core | None = None) -> None:
        """Power on, with another core where what it knew is lost."""
        self.up = True
        self.core = core or self.core
        self._armed = inf
        self.arm()

    def __repr__(self) -> str:
        return f"<light host {self.name} {self._local[0]}:{self._local[1]}>"

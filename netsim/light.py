"""Light hosts: hosts without tasks, sockets or TLS, of which thousands fit into one world.

A light host runs a core, protocol logic without I/O: its methods get datagrams and the time, and
return datagrams. A light host is behind the same NATs and links as a whole host, at a hundredth of
the cost.
"""

from collections.abc import Iterable
from math import inf
from typing import Protocol

from .errors import SimError
from .network.network import Attachment, Network
from .network.packet import IP4_HEADER, IP6_HEADER, UDP, UDP_HEADER, Addr, Packet

Sends = Iterable[tuple[bytes, Addr]]
"""Datagrams to send, each with its destination."""


class LightCore(Protocol):
    """Protocol logic of a light host, without I/O. Times are seconds of the simulation."""

    wake_at: float
    """Time at which to call `on_time`; infinity means never. It is read after each call of a
    method.
    """

    def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
        """Process a received datagram. Return the datagrams to send."""
        ...

    def on_time(self, now: float) -> Sends:
        """Process the expiry of `wake_at`, and set `wake_at` to a later time. Return the datagrams
        to send.
        """
        ...


class LightHost:
    """Host with one UDP port, which runs a core."""

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

    def __init__(self, network: Network, name: str, core: LightCore) -> None:
        self._network = network
        self.name = name
        self.core = core
        self.up = True
        self._armed = inf  # time at which the earliest timer fires

    def plug(self, attachment: Attachment, port: int) -> None:
        """Set the only interface of the host, which has an address already, and its UDP port."""
        self.attachment = attachment
        self._local = attachment.addresses[0], port
        six = ":" in self._local[0]
        self._overhead = UDP_HEADER + (IP6_HEADER if six else IP4_HEADER)
        self.arm()

    @property
    def address(self) -> Addr:
        """The host's own address and port, as the host sees them."""
        return self._local

    def receive(self, packet: Packet, at: Attachment) -> None:
        """Receive a packet from the interface, unless an injected fault drops or delays it."""
        network = self._network
        if network.interfere is not None and network.intercept(packet, self.name, self.take):
            return
        self.take(packet)

    def take(self, packet: Packet) -> None:
        """Pass a datagram to the core, and send the datagrams that the core returns."""
        network = self._network
        if not self.up:
            network.drop("down", self.name, packet)
            return
        network.delivered += 1
        if network.trace is not None:
            network.note("received", self.name, packet)
        if packet.proto == UDP and packet.dst[1] == self._local[1]:
            core = self.core
            assert isinstance(packet.data, bytes)
            for data, to in core.on_datagram(network.events.now, packet.data, packet.src):
                self.send(data, to)
            if core.wake_at < self._armed:
                self.arm()

    def send(self, data: bytes, to: Addr) -> None:
        """Send a datagram."""
        size = len(data) + self._overhead
        self.attachment.send(Packet(UDP, self._local, to, size, data, self.name, self.name))

    def arm(self) -> None:
        """Set a timer for the core's `wake_at`, unless an earlier timer is already set. Call this
        after any change to the state of the core.
        """
        due = self.core.wake_at
        if due < self._armed:
            self._armed = due
            self._network.events.at(due, self._fire)

    def _fire(self, _: None) -> None:
        """Handle a timer: let the core act if its `wake_at` has come, and set the next timer.
        Raises SimError if the core does not set a later time.
        """
        now = self._network.events.now
        if now < self._armed or not self.up:
            return  # an earlier timer has already done the work of this one
        self._armed = inf
        core = self.core
        if core.wake_at <= now:
            for data, to in core.on_time(now):
                self.send(data, to)
            if core.wake_at <= now:
                raise SimError(f"{self.name}: its core set wake_at to {core.wake_at}, in the past")
        self.arm()

    # Faults.

    def crash(self) -> None:
        """Cut the power, so that nothing is sent or received any more."""
        self.up = False

    def restart(self, core: LightCore | None = None) -> None:
        """Switch the power on. If `core` is given, it replaces the old core, whose state is
        lost.
        """
        self.up = True
        self.core = core or self.core
        self._armed = inf
        self.arm()

    def __repr__(self) -> str:
        return f"<light host {self.name} {self._local[0]}:{self._local[1]}>"

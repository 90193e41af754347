"""NAT that behaves like the Linux kernel's: a table of connections (conntrack), and translation
(nf_nat) that uses the table.

Linux maps each connection separately, not each inner endpoint. A flow keeps its source port unless
another entry of the table expects replies with the same addresses and ports; then it gets another
port. A packet from outside that the INPUT rules accept has an entry too. A Linux NAT therefore
looks endpoint-independent until two entries clash. Recordings of a real kernel (`probes/golden/`)
show the same.
"""

import zlib
from dataclasses import dataclass
from typing import Final

from ..network.gateway import GatewayPlace, GatewaySettings, SubnetRouter, check, readdressed
from ..network.packet import ICMP, TCP, UDP, Addr, Packet
from .segments import RST, flags
from .tcpstates import FROM_ORIGINAL, FROM_REPLY, SECONDS, TcpState

STREAM_AFTER_S: Final = 2.0
OVERLAY_S: Final = 300.0
UNKNOWN_S: Final = 600.0  # protocols that are not tracked in detail

Tuple = tuple[int, Addr, Addr]
"""(protocol, source, destination) of one direction of a flow."""


class TrackedConnection:
    """One tracked connection. `original` is the tuple of its first packet, and `reply` the tuple
    with which replies arrive at the gateway.
    """

    __slots__ = ("expires", "local", "original", "reply", "seen_reply", "state", "stream_at")

    def __init__(self, original: Tuple, reply: Tuple, now: float) -> None:
        self.original = original
        self.reply = reply
        self.local = False  # whether the connection ends at the gateway itself
        self.expires = now
        self.seen_reply = False
        self.stream_at = now + STREAM_AFTER_S
        self.state = TcpState.NONE


class ConnectionTable:
    """Table of connections. Each connection is indexed by the tuples of both directions."""

    def __init__(
        self, udp_new: float, udp_stream: float, tcp_established: float, limit: int
    ) -> None:
        self._udp_new = udp_new
        self._udp_stream = udp_stream
        self._tcp_seconds = SECONDS | {TcpState.ESTABLISHED: tcp_established}
        self._limit = limit
        self._tuples: dict[Tuple, TrackedConnection] = {}
        self._sources: dict[
            tuple[int, Addr], dict[Tuple, TrackedConnection]
        ] = {}  # nf_nat's "bysource"
        self._sweep_size = 64
        self._swept = -1.0

    def __len__(self) -> int:
        """Return the number of connections in memory, including expired ones not yet removed."""
        return len(self._tuples) // 2

    def clear(self) -> None:
        self._tuples.clear()
        self._sources.clear()

    def find(self, key: Tuple, now: float) -> TrackedConnection | None:
        """Return the connection to which a packet with this tuple belongs, or None."""
        entry = self._tuples.get(key)
        if entry is not None and entry.expires <= now:
            self.remove(entry)
            return None
        return entry

    def confirm(self, entry: TrackedConnection, now: float) -> bool:
        """Add a connection whose first packet passed. Return False if the table is full."""
        if len(self._tuples) >= self._sweep_size:
            self._sweep(now)
            self._sweep_size = max(64, 2 * len(self._tuples))
        if len(self) >= self._limit and now >= self._swept + 1.0:
            self._sweep(now)  # at most once a second
        if len(self) >= self._limit:
            return False
        self._tuples[entry.original] = self._tuples[entry.reply] = entry
        proto, source, _ = entry.original
        self._sources.setdefault((proto, source), {})[entry.original] = entry
        return True

    def remove(self, entry: TrackedConnection) -> None:
        for key in entry.original, entry.reply:
            if self._tuples.get(key) is entry:
                del self._tuples[key]
        source = entry.original[:2]
        same = self._sources.get(source)
        if same is not None:
            same.pop(entry.original, None)
            if not same:
                del self._sources[source]

    def _sweep(self, now: float) -> None:
        self._swept = now
        for entry in [e for e in self._tuples.values() if e.expires <= now]:
            self.remove(entry)

    def outer_of(self, proto: int, source: Addr, ip: str, now: float) -> Addr | None:
        """Return the outer endpoint of the latest flow from `source` that uses the outer address
        `ip`, or None if there is no such flow (Linux: find_appropriate_src).
        """
        for entry in reversed(self._sources.get((proto, source), {}).values()):
            if entry.expires > now and entry.reply[2][0] == ip:
                return entry.reply[2]
        return None

    def renew(self, entry: TrackedConnection, packet: Packet, reply: bool, now: float) -> bool:
        """Update the state and the timer of a connection for a packet. Return False if the packet
        does not belong to the connection.
        """
        if packet.proto == UDP:
            # The first reply itself still counts as unreplied: the kernel notes it afterwards.
            stream = entry.seen_reply and now > entry.stream_at
            entry.expires = now + (self._udp_stream if stream else self._udp_new)
        elif packet.proto == TCP:
            if not self._tcp(entry, flags(packet), reply, now):
                return False
        else:
            entry.expires = now + UNKNOWN_S
        if reply:
            entry.seen_reply = True
        return True

    def _tcp(self, entry: TrackedConnection, bits: int, reply: bool, now: float) -> bool:
        state = (FROM_REPLY if reply else FROM_ORIGINAL)[bits][entry.state]
        if state is TcpState.INVALID:
            return False
        if state is TcpState.IGNORE:
            return True
        if bits & RST and not entry.seen_reply:
            entry.expires = now  # refused or aborted: nothing was ever established
            return True
        entry.state = state
        entry.expires = now + self._tcp_seconds[state]
        return True

    def reopens(self, entry: TrackedConnection, packet: Packet, reply: bool) -> bool:
        """Return whether a packet is the SYN of a new connection between the endpoints of one that
        has ended.
        """
        if packet.proto != TCP or entry.state not in (TcpState.TIME_WAIT, TcpState.CLOSE):
            return False
        table = FROM_REPLY if reply else FROM_ORIGINAL
        return table[flags(packet)][entry.state] is TcpState.SYN_SENT


@dataclass(frozen=True, slots=True)
class LinuxSettings(GatewaySettings):
    """Settings of a NAT that behaves like Linux's.

    `input`: treatment of packets to the gateway itself: "drop", "reject" or "accept" (its stack
    answers, and the connection is tracked).
    `source`: choice of the outer port: "masquerade", "random", "fully-random", or "persistent"
    (nftables: `snat to … persistent`).
    `overlay`: which remotes may reach an inside endpoint at the outer port of its last UDP flow:
    "full-cone", "address-restricted" or "port-restricted". An entry lasts `overlay_s` seconds from
    the first packet of a flow. None switches the overlay off.
    `hairpin`: with "external", inside hosts may also use the overlay and the port forwards, which
    "off" forbids.
    `udp_new`, `udp_stream`, `tcp_established`: nf_conntrack_udp_timeout, …_udp_timeout_stream and
    …_tcp_timeout_established, in seconds (OpenWrt sets the last to 7440).
    `max_mappings`: nf_conntrack_max.
    """

    input: str = "drop"
    source: str = "masquerade"
    overlay: str | None = None
    overlay_s: float = OVERLAY_S
    hairpin: str = "off"
    udp_new: float = 30.0
    udp_stream: float = 120.0
    tcp_established: float = SECONDS[TcpState.ESTABLISHED]
    max_mappings: int = 65536


class LinuxNat(SubnetRouter):
    """NAT that behaves as Linux's."""

    routed = False

    def __init__(self, place: GatewayPlace, settings: LinuxSettings) -> None:
        super().__init__(place, settings)
        overlays = (None, "full-cone", "address-restricted", "port-restricted")
        check("input", settings.input, ("drop", "reject", "accept"))
        check("hairpin", settings.hairpin, ("external", "off"))
        check("source", settings.source, ("masquerade", "random", "fully-random", "persistent"))
        check("overlay", settings.overlay, overlays)
        self.tracker = ConnectionTable(
            settings.udp_new, settings.udp_stream, settings.tcp_established, settings.max_mappings
        )
        self._input = settings.input
        self._random_ports = settings.source in ("random", "fully-random")
        self._persistent = settings.source == "persistent"
        self._overlay = settings.overlay
        self._overlay_s = settings.overlay_s
        self._hairpin = settings.hairpin == "external"
        self._inner: dict[
            int, tuple[Addr, float]
        ] = {}  # by UDP port: (inner endpoint, end in seconds)
        self._spoken: dict[tuple[str, int], float] = {}  # by (remote address, inner port): end in s
        self._sweep_size = 256

    def clear(self) -> None:
        super().clear()
        self.tracker.clear()
        self._inner.clear()
        self._spoken.clear()

    # Every packet is looked up in the table first. The rules see only what is not found there.

    def outbound(self, packet: Packet) -> None:
        if packet.proto == ICMP:
            self._icmp(packet)
        elif not self._follow(packet):
            if packet.dst[0] in self.wan.addresses:
                self._to_own_address(packet)
            else:
                self._masquerade(packet)

    def inbound(self, packet: Packet) -> None:
        if packet.proto == ICMP:
            self._icmp(packet)
        elif not self._follow(packet):
            self._new_inbound(packet)

    def _follow(self, packet: Packet) -> bool:
        """Handle a packet of a known connection. Return False if the packet belongs to none, so
        that it may begin a new connection.
        """
        now = self.network.events.now
        key = packet.proto, packet.src, packet.dst
        tracker = self.tracker
        entry = tracker.find(key, now)
        if entry is None:
            return False
        reply = entry.reply == key
        if tracker.reopens(entry, packet, reply):
            tracker.remove(entry)
            return False
        if not tracker.renew(entry, packet, reply, now):
            self.network.drop("nat", self.name, packet)  # ct state invalid
        elif entry.local:
            self._answer(packet, entry, now)
        else:
            _, packet.dst, packet.src = entry.original if reply else entry.reply
            self._send(packet)
        return True

    def _send(self, packet: Packet) -> None:
        if packet.dst[0] in self.inside.members:
            self.lan.send(packet)
        else:
            self.wan.send(packet)

    def _first(
        self, packet: Packet, original: Tuple, reply: Tuple, *, local: bool = False
    ) -> TrackedConnection | None:
        """Track a new connection, given its first packet. Drop the packet and return None if a
        connection cannot begin with it, or if the table is full.
        """
        now = self.network.events.now
        entry = TrackedConnection(original, reply, now)
        entry.local = local
        if not self.tracker.renew(entry, packet, False, now):
            self.network.drop("nat", self.name, packet)
            return None
        if entry.expires > now and not self.tracker.confirm(entry, now):
            self.network.drop("nat-full", self.name, packet)
            return None
        return entry

    # New connections from inside.

    def _masquerade(self, packet: Packet) -> None:
        proto, inner, to = packet.proto, packet.src, packet.dst
        outer = self._choose(proto, inner, self._outer_address(inner[0], to[0]), to)
        if self._first(packet, (proto, inner, to), (proto, to, outer)) is None:
            return
        if self._overlay is not None and proto == UDP:
            self._write_overlay(inner, to)
        packet.src = outer
        self.wan.send(packet)

    def _outer_address(self, inner: str, to: str) -> str:
        """Return one of the outer addresses, chosen by a hash of the source and the destination, or
        of the source alone if `source` is "persistent".
        """
        pool = self.wan.addresses
        if len(pool) == 1:
            return pool[0]
        text = inner if self._persistent else f"{inner} {to}"
        return pool[zlib.crc32(text.encode()) % len(pool)]

    def _choose(self, proto: int, inner: Addr, ip: str, to: Addr) -> Addr:
        """Return the outer endpoint of a flow: that of the source's latest flow, the inner port, or
        a random port (Linux: get_unique_tuple).
        """
        now = self.network.events.now
        if not self._random_ports:
            before = self.tracker.outer_of(proto, inner, ip, now)
            for choice in (before, (ip, inner[1])):
                if choice is not None and self.tracker.find((proto, to, choice), now) is None:
                    return choice
        return self._another(proto, ip, inner[1], to)

    def _another(self, proto: int, ip: str, port: int, to: Addr) -> Addr:
        """Return a free port of the same class as `port`: below 512, below 1024, or above."""
        low, high = (1, 511) if port < 512 else (600, 1023) if port < 1024 else (1024, 65535)
        count = high - low + 1
        now = self.network.events.now
        attempts = min(count, 128)
        random = self.network.streams.get(self.name, "nat")
        while True:
            start = random.randrange(count)
            for step in range(attempts):
                choice = ip, low + (start + step) % count
                if self.tracker.find((proto, to, choice), now) is None:
                    return choice
            if attempts < 16:
                return choice  # Linux uses this port too, although it is not free
            attempts //= 2

    # New connections to the gateway's outer address.

    def _new_inbound(self, packet: Packet) -> None:
        inner = self._led_in(packet)
        if inner is not None:
            self._lead_in(packet, inner)
        elif self._input == "accept":
            self._to_gateway(packet)
        else:
            self.network.drop("nat", self.name, packet)
            if self._input == "reject":
                self.refuse(packet, self.wan)

    def _led_in(self, packet: Packet) -> Addr | None:
        """Return the inner endpoint to which a port forward or the overlay sends a new connection
        from outside, or None if neither admits the connection.
        """
        forward = self.forwards.get((packet.proto, packet.dst[1]))
        if forward is not None:
            return forward
        if self._overlay is None or self._overlay == "port-restricted" or packet.proto != UDP:
            return None
        now = self.network.events.now
        port = packet.dst[1]
        restricted = self._overlay == "address-restricted"
        if restricted and self._spoken.get((packet.src[0], port), 0.0) <= now:
            return None
        found = self._inner.get(port)
        return found[0] if found is not None and found[1] > now else None

    def _lead_in(self, packet: Packet, inner: Addr) -> None:
        """Send the first packet of a connection from outside to `inner` (DNAT). Change the sender's
        port if another connection already uses it towards `inner`.
        """
        proto, source, outer = packet.proto, packet.src, packet.dst
        seen = source
        if self.tracker.find((proto, inner, seen), self.network.events.now) is not None:
            seen = self._another(proto, source[0], source[1], inner)
        if self._first(packet, (proto, source, outer), (proto, inner, seen)) is not None:
            packet.src, packet.dst = seen, inner
            self.deliver_inside(packet)

    def _to_own_address(self, packet: Packet) -> None:
        """Handle a packet from inside to the gateway's outer address. If hairpinning is on and the
        overlay or a port forward matches, send the packet back inside. Otherwise pass it to the
        gateway's own stack.
        """
        inner = self._led_in(packet) if self._hairpin else None
        if inner is None:
            self._to_gateway(packet)
            return
        proto, caller, outer = packet.proto, packet.src, packet.dst
        seen = self._choose(proto, caller, outer[0], inner)
        if self._first(packet, (proto, caller, outer), (proto, inner, seen)) is not None:
            packet.src, packet.dst = seen, inner
            self.deliver_inside(packet)

    def _to_gateway(self, packet: Packet) -> None:
        """Pass a packet to the gateway's own stack, where no program listens."""
        original = packet.proto, packet.src, packet.dst
        reply = packet.proto, packet.dst, packet.src
        now = self.network.events.now
        entry = self._first(packet, original, reply, local=True)
        if entry is not None:
            self._answer(packet, entry, now)

    def _answer(self, packet: Packet, entry: TrackedConnection, now: float) -> None:
        self.network.drop("closed", self.name, packet)
        inside = packet.src[0] in self.inside.members
        self.refuse(packet, self.lan if inside else self.wan)
        if packet.proto == TCP and not entry.seen_reply:
            self.tracker.remove(entry)  # the reset is the only reply

    def _write_overlay(self, inner: Addr, to: Addr) -> None:
        """Record the first packet of a UDP flow from `inner` to `to` in the overlay. If the outer
        port has an entry that has not expired, the entry keeps its inner endpoint.
        """
        now = self.network.events.now
        until = now + self._overlay_s
        port = inner[1]
        found = self._inner.get(port)
        owner = found[0] if found is not None and found[1] > now else inner
        self._inner[port] = owner, until
        self._spoken[to[0], port] = until
        if len(self._spoken) >= self._sweep_size:
            self._spoken = {key: end for key, end in self._spoken.items() if end > now}
            self._sweep_size = max(256, 2 * len(self._spoken))

    # ICMP errors belong to the connection that they refer to, and end none.

    def _icmp(self, packet: Packet) -> None:
        about = packet.icmp
        # The packet in question took the reverse direction of its replies.
        entry = self.tracker.find((about.proto, about.dst, about.src), self.network.events.now)
        if entry is None or entry.local:
            self.network.drop("nat", self.name, packet)
            return
        answers = (about.proto, about.dst, about.src) == entry.reply
        _, src, dst = entry.original if answers else entry.reply
        if packet.src[0] == about.dst[0]:  # from the endpoint itself, not from a router in between
            packet.src = dst[0], 0
        packet.data = readdressed(about, src, dst)
        packet.dst = src[0], 0
        self._send(packet)

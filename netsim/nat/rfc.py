"""NAT that behaves as RFC 4787 (UDP), RFC 5382 (TCP) and RFC 5508 (ICMP) describe.

A mapping assigns an outer endpoint to an inner endpoint. An inner endpoint has one mapping for all
remotes ("ei", endpoint-independent), one for each remote address ("ad"), or one for each remote
address and port ("apd"). The filtering says in the same terms which remotes may send to a mapping
from outside. Linux works differently (`conntrack.py`).
"""

from dataclasses import dataclass
from random import Random
from typing import Final

from ..network.gateway import GatewayPlace, GatewaySettings, SubnetRouter, check, readdressed
from ..network.packet import ICMP, TCP, Addr, Icmp, Packet
from .ports import PortAllocator
from .segments import HeldSyns, reset_for
from .sessions import BEHAVIOURS, FlowState, Timers

SESSIONS: Final = 4096  # per mapping

_TableKey = tuple[int, Addr] | tuple[int, Addr, str] | tuple[int, Addr, Addr]
_Outer = tuple[int, str, int]  # protocol, address, port


class NatMapping:
    """Outer endpoint of an inner endpoint, with the sessions to remotes that use it."""

    __slots__ = ("expires", "inner", "key", "outer", "proto", "remotes", "sessions")

    def __init__(self, proto: int, key: _TableKey, inner: Addr, outer: Addr) -> None:
        self.proto = proto
        self.key = key
        self.inner = inner
        self.outer = outer
        self.expires = 0.0
        self.sessions: dict[Addr, FlowState] = {}
        self.remotes: dict[str, float] = {}  # when the last session with an address ends

    def purge(self, now: float) -> None:
        """Delete expired sessions."""
        self.sessions = {a: s for a, s in self.sessions.items() if s.expires > now}
        self.remotes = {ip: end for ip, end in self.remotes.items() if end > now}


@dataclass(frozen=True, slots=True)
class RfcSettings(GatewaySettings):
    """Behaviour of a NAT, with requirements (REQ) of RFC 4787.

    `refresh_in`: whether inbound packets keep a mapping alive, as outbound ones always do (REQ-6).
    `hairpin`: "external" (REQ-9), "internal" (the called host sees the caller's inner address) or
    "off". `pooling`: with several outer addresses, a host always gets the same one ("paired",
    REQ-2) or any ("arbitrary"). `max_mappings` limits all mappings and `per_host` those of one
    inner address; packets beyond a limit are dropped. `tcp_unsolicited`: reaction to an unexpected
    SYN: "drop", "rst", or "icmp" (an error after 6 seconds).
    """

    mapping: str = "ei"
    filtering: str = "apd"
    timers: Timers | None = None
    refresh_in: bool = True
    hairpin: str = "external"
    ports: str = "preserve"
    block_size: int = 512
    pooling: str = "paired"
    max_mappings: int = 65536
    per_host: int | None = None  # None: 65536, or `block_size` in a carrier-grade NAT
    tcp_unsolicited: str = "icmp"


class RfcNat(SubnetRouter):
    """NAT that behaves as the RFCs describe."""

    routed = False

    def __init__(self, place: GatewayPlace, settings: RfcSettings) -> None:
        super().__init__(place, settings)
        check("mapping", settings.mapping, BEHAVIOURS)
        check("filtering", settings.filtering, BEHAVIOURS)
        check("hairpin", settings.hairpin, ("external", "internal", "off"))
        check("pooling", settings.pooling, ("paired", "arbitrary"))
        check("tcp_unsolicited", settings.tcp_unsolicited, ("drop", "rst", "icmp"))
        self.timers = settings.timers or Timers()
        self.refused = 0  # packets that got no mapping
        self._mapping = settings.mapping
        self._filtering = settings.filtering
        self._refresh_in = settings.refresh_in
        self._hairpin = settings.hairpin
        self._paired = settings.pooling == "paired"
        self._max = settings.max_mappings
        self._per_host = 65536 if settings.per_host is None else settings.per_host
        self._tcp_unsolicited = settings.tcp_unsolicited
        self._ports = PortAllocator(settings.ports, settings.block_size, self._luck)
        self._mappings: dict[_TableKey, NatMapping] = {}
        self._outer: dict[_Outer, NatMapping] = {}
        self._count: dict[str, int] = {}  # mappings by inside address
        self._pairs: dict[str, str] = {}  # outer address by inside address
        self._syns = HeldSyns(self.network.events, self._refuse_syn)
        self._sweep_size = 64
        self._swept = -1.0

    def __len__(self) -> int:
        """Return the number of mappings in memory, including expired ones not yet removed."""
        return len(self._mappings)

    def _luck(self) -> Random:
        """Return the NAT's random stream. It is created at its first use, because many gateways
        never need it.
        """
        return self.network.streams.get(self.name, "nat")

    def clear(self) -> None:
        super().clear()
        for table in self._mappings, self._outer, self._count, self._pairs:
            table.clear()
        self._ports.clear()
        self._syns.clear()

    # From inside.

    def outbound(self, packet: Packet) -> None:
        if packet.proto == ICMP:
            self._icmp_out(packet)
            return
        to = packet.dst
        hairpin = to[0] in self.wan.addresses
        if hairpin and self._hairpin == "off":
            self.network.drop("nat", self.name, packet)
            return
        inner = packet.src
        outer = self._leave(packet, inner, to)
        if outer is None:
            self.refused += 1
            self.network.drop("nat-full", self.name, packet)
            return
        self._syns.forget(to, outer)
        packet.src = outer
        if not hairpin:
            self.wan.send(packet)
        else:
            self._turn_back(packet, inner)

    def _leave(self, packet: Packet, inner: Addr, to: Addr) -> Addr | None:
        """Return the outer endpoint of a packet from inside, or None if there is no space for a
        mapping or session.
        """
        port = self.forwarded.get((packet.proto, inner))
        if port is not None:
            return self.address, port
        now = self.network.events.now
        mapping = self._map(packet.proto, inner, to, now)
        if mapping is None or not self._pass(mapping, packet, to, True, now):
            return None
        return mapping.outer

    def _turn_back(self, packet: Packet, inner: Addr) -> None:
        """Hairpin: send a packet from inside back to the inside, as if it came from outside. Its
        source is the outer address, unless `hairpin` is "internal" (RFC 4787, REQ-9).
        """
        target = self._enter(packet)
        if target is None:
            self.network.drop("nat", self.name, packet)
            return
        if self._hairpin == "internal":
            packet.src = inner
        packet.dst = target
        self.deliver_inside(packet)

    def _map(self, proto: int, inner: Addr, to: Addr, now: float) -> NatMapping | None:
        """Return the mapping for a packet from inside. Create it if there is none. Return None if
        there is no space.
        """
        key: _TableKey = (proto, inner)
        if self._mapping == "ad":
            key = proto, inner, to[0]
        elif self._mapping == "apd":
            key = proto, inner, to
        mapping = self._mappings.get(key)
        if mapping is not None:
            if mapping.expires > now:
                return mapping
            self._remove(mapping)
        return self._make(proto, key, inner, now)

    def _make(self, proto: int, key: _TableKey, inner: Addr, now: float) -> NatMapping | None:
        if not self._has_room(inner[0], now):
            return None
        ip = self._outer_address(inner[0])
        for port in self._ports.candidates(inner, ip):
            if self._is_free(proto, ip, port, inner, now):
                mapping = NatMapping(proto, key, inner, (ip, port))
                self._mappings[key] = self._outer[proto, ip, port] = mapping
                self._count[inner[0]] = self._count.get(inner[0], 0) + 1
                return mapping
        return None

    def _has_room(self, ip: str, now: float) -> bool:
        if len(self._mappings) >= self._sweep_size:
            self._sweep(now)
            self._sweep_size = max(64, 2 * len(self._mappings))
        if self._has_space(ip):
            return True
        if now < self._swept + 1.0:  # scan the whole table at most once a second
            return False
        self._sweep(now)
        return self._has_space(ip)

    def _has_space(self, ip: str) -> bool:
        return len(self._mappings) < self._max and self._count.get(ip, 0) < self._per_host

    def _sweep(self, now: float) -> None:
        self._swept = now
        for mapping in [m for m in self._mappings.values() if m.expires <= now]:
            self._remove(mapping)

    def _remove(self, mapping: NatMapping) -> None:
        del self._mappings[mapping.key]
        del self._outer[mapping.proto, *mapping.outer]
        ip = mapping.inner[0]
        self._count[ip] -= 1
        if not self._count[ip]:
            del self._count[ip]

    def _outer_address(self, inner: str) -> str:
        pool = self.wan.addresses
        if len(pool) == 1:
            return pool[0]
        if not self._paired:
            return self._luck().choice(pool)
        found = self._pairs.get(inner)
        if found is None:
            found = self._pairs[inner] = pool[len(self._pairs) % len(pool)]
        return found

    def _is_free(self, proto: int, ip: str, port: int, inner: Addr, now: float) -> bool:
        if self.forwards.get((proto, port), inner) != inner:
            return False
        mapping = self._outer.get((proto, ip, port))
        if mapping is None:
            return True
        if mapping.expires > now:
            return False
        self._remove(mapping)
        return True

    def _pass(
        self, mapping: NatMapping, packet: Packet, remote: Addr, outbound: bool, now: float
    ) -> bool:
        """Renew the timers of a mapping for a packet that passes. Return False if the packet needs
        a new session and the mapping has too many.
        """
        session = mapping.sessions.get(remote)
        if session is None or session.expires <= now:
            if len(mapping.sessions) >= SESSIONS:
                mapping.purge(now)
                if len(mapping.sessions) >= SESSIONS:
                    return False
            session = mapping.sessions[remote] = FlowState(now)
        if outbound or self._refresh_in or packet.proto == TCP:
            before = session.expires
            session.renew(packet, outbound, now, self.timers)
            self._extend(mapping, remote[0], session, before)
        return True

    def _extend(self, mapping: NatMapping, ip: str, session: FlowState, before: float) -> None:
        end = session.expires
        if end >= before:
            mapping.expires = max(mapping.expires, end)
            mapping.remotes[ip] = max(mapping.remotes.get(ip, 0.0), end)
        else:  # a connection is closing: the remaining sessions decide
            mapping.expires = max(each.expires for each in mapping.sessions.values())
            mapping.remotes[ip] = max(s.expires for a, s in mapping.sessions.items() if a[0] == ip)

    # From outside.

    def inbound(self, packet: Packet) -> None:
        if packet.proto == ICMP:
            self._icmp_in(packet)
            return
        target = self._enter(packet)
        if target is None:
            self._unsolicited(packet)
            return
        packet.dst = target
        self.deliver_inside(packet)

    def _enter(self, packet: Packet) -> Addr | None:
        """Return the inner endpoint to which a packet from outside must be sent, or None if it may
        not enter.
        """
        now = self.network.events.now
        remote = packet.src
        proto = packet.proto
        mapping = self._outer.get((proto, *packet.dst))
        forward = self.forwards.get((proto, packet.dst[1]))
        if forward is not None and (mapping is None or remote not in mapping.sessions):
            return forward
        if mapping is None or mapping.expires <= now or not self._admits(mapping, remote, now):
            return None
        return mapping.inner if self._pass(mapping, packet, remote, False, now) else None

    def _admits(self, mapping: NatMapping, remote: Addr, now: float) -> bool:
        if self._filtering == "ei":
            return True
        if self._filtering == "ad":
            return mapping.remotes.get(remote[0], 0.0) > now
        session = mapping.sessions.get(remote)
        return session is not None and session.expires > now

    def _unsolicited(self, packet: Packet) -> None:
        self.network.drop("nat", self.name, packet)
        if packet.proto != TCP:
            return
        if self._tcp_unsolicited == "rst":
            answer = reset_for(packet, self.name)
            if answer is not None:
                self.wan.send(answer)
        elif self._tcp_unsolicited == "icmp":
            self._syns.hold(packet)

    def _refuse_syn(self, packet: Packet) -> None:
        if self.up:
            self.unreachable(packet, self.wan, "port", source=packet.dst[0])

    # ICMP errors are translated both ways, and end no mapping (RFC 4787 REQ-12).

    def _icmp_in(self, packet: Packet) -> None:
        about = packet.icmp
        inner = self._sender_of(about)
        if inner is None:
            self.network.drop("nat", self.name, packet)
            return
        packet.data = readdressed(about, inner, about.dst)
        packet.dst = inner[0], 0
        self.deliver_inside(packet)

    def _sender_of(self, about: Icmp) -> Addr | None:
        """Return the inner endpoint that sent the packet quoted in this ICMP error, or None."""
        mapping = self._outer.get((about.proto, *about.src))
        if mapping is not None and about.dst in mapping.sessions:
            return mapping.inner
        return self.forwards.get((about.proto, about.src[1]))

    def _icmp_out(self, packet: Packet) -> None:
        about = packet.icmp
        outer = self._receiver_of(about)
        if outer is None or packet.dst[0] in self.wan.addresses:
            self.network.drop("nat", self.name, packet)
            return
        packet.data = readdressed(about, about.src, outer)
        packet.src = outer[0], 0
        self.wan.send(packet)

    def _receiver_of(self, about: Icmp) -> Addr | None:
        """Return the outer endpoint to which the packet quoted in this ICMP error was sent, or
        None.
        """
        proto, inner, remote = about.proto, about.dst, about.src
        port = self.forwarded.get((proto, inner))
        if port is not None:
            return self.address, port
        keys: tuple[_TableKey, ...] = ((proto, inner), (proto, inner, remote[0]))
        for key in (*keys, (proto, inner, remote)):
            if key in self._mappings:
                return self._mappings[key].outer
        return None

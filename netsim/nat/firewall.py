"""Stateful firewalls without translation, for public IPv4 addresses and for IPv6 (RFC 6092)."""

from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from typing import Final

from ..network.gateway import GatewayPlace, GatewaySettings, SubnetRouter, check
from ..network.packet import ICMP, TCP, Addr, Icmp, Packet
from .segments import HeldSyns
from .sessions import BEHAVIOURS, FlowState, Timers

SIX: Final = Timers(udp_new=120.0, udp_stream=120.0)
"""Timers for IPv6: at least two minutes for UDP (RFC 6092, section 3.2.3), and for TCP 2 h 4 min
and 4 min (section 3.3.1).
"""

Flow = tuple[int, Addr, Addr]
"""(protocol, inner endpoint, outer endpoint)."""


class OpenFlows:
    """Table of the flows that were opened from inside. It decides which packets may enter.
    Depending on `filtering`, packets may enter from the flow's outer endpoint ("apd"), from any
    port of its address ("ad"), or from every sender ("ei").
    """

    def __init__(self, filtering: str, timers: Timers, limit: int) -> None:
        check("filtering", filtering, BEHAVIOURS)
        self._filtering = filtering
        self._timers = timers
        self._limit = limit
        self._flows: dict[Flow, FlowState] = {}
        self._open: dict[tuple[int, Addr, str], float] = {}  # by `_key`: end in seconds
        self._sweep_size = 64
        self._swept = -1.0

    def __len__(self) -> int:
        return len(self._flows)

    def clear(self) -> None:
        self._flows.clear()
        self._open.clear()

    def leave(self, packet: Packet, now: float) -> bool:
        """Record a packet that leaves. Return False if the table of sessions is full."""
        return self._renew(packet.proto, packet.src, packet.dst, packet, True, now)

    def enter(self, packet: Packet, now: float) -> bool:
        """Return whether a packet may enter, and renew its session if so."""
        flow = packet.proto, packet.dst, packet.src
        session = self._flows.get(flow)
        known = session is not None and session.expires > now
        if not known and not self._lets_strangers_in(flow, now):
            return False
        return self._renew(*flow, packet, False, now)

    def _lets_strangers_in(self, flow: Flow, now: float) -> bool:
        return self._filtering != "apd" and self._open.get(self._key(flow), 0.0) > now

    def knows(self, proto: int, inside: Addr, outside: Addr) -> bool:
        return (proto, inside, outside) in self._flows

    def _key(self, flow: Flow) -> tuple[int, Addr, str]:
        proto, inside, outside = flow
        return proto, inside, outside[0] if self._filtering == "ad" else ""

    def _renew(
        self, proto: int, inside: Addr, outside: Addr, packet: Packet, outbound: bool, now: float
    ) -> bool:
        flow = proto, inside, outside
        session = self._flows.get(flow)
        if session is None or session.expires <= now:
            if not self._has_room(now):
                return False
            session = self._flows[flow] = FlowState(now)
        session.renew(packet, outbound, now, self._timers)
        if self._filtering != "apd":
            key = self._key(flow)
            self._open[key] = max(self._open.get(key, 0.0), session.expires)
        return True

    def _has_room(self, now: float) -> bool:
        size = len(self._flows)
        full = size >= self._limit
        if size >= self._sweep_size or (full and now >= self._swept + 1.0):
            self._swept = now
            self._flows = {f: s for f, s in self._flows.items() if s.expires > now}
            self._open = {key: end for key, end in self._open.items() if end > now}
            self._sweep_size = max(64, 2 * len(self._flows))
        return len(self._flows) < self._limit


class Firewall:
    """Stateful filter: every packet may leave, and packets that belong to a session may enter.

    A gateway has one for IPv6 (`SubnetRouter.six`), or for IPv4 if it does not translate addresses.

    If `unsolicited` is "drop", other packets are dropped silently; if it is "admin", they are
    answered with an ICMP error. A SYN is answered only after 6 seconds without a SYN in the other
    direction.
    """

    def __init__(
        self,
        gateway: SubnetRouter,
        *,
        filtering: str = "apd",
        timers: Timers = SIX,
        unsolicited: str = "drop",
        max_sessions: int = 65536,
    ) -> None:
        check("unsolicited", unsolicited, ("drop", "admin"))
        self._gateway = gateway
        self.sessions = OpenFlows(filtering, timers, max_sessions)
        self._tells = unsolicited == "admin"
        self._syns = HeldSyns(gateway.network.events, self._prohibit)

    def clear(self) -> None:
        self.sessions.clear()
        self._syns.clear()

    def allows_out(self, packet: Packet) -> bool:
        """Record a packet from inside, and return whether it may leave. Drop it if there are too
        many sessions.
        """
        network = self._gateway.network
        if packet.proto == ICMP:
            return True
        self._syns.forget(packet.dst, packet.src)
        if self.sessions.leave(packet, network.events.now):
            return True
        network.drop("nat-full", self._gateway.name, packet)
        return False

    def allows_in(self, packet: Packet) -> bool:
        """Return whether a packet from outside may enter. Drop it if it may not."""
        network = self._gateway.network
        if packet.proto == ICMP:
            about = packet.data
            if isinstance(about, Icmp) and self.sessions.knows(about.proto, about.src, about.dst):
                return True
        elif self.sessions.enter(packet, network.events.now):
            return True
        network.drop("firewall", self._gateway.name, packet)
        if self._tells and packet.proto == TCP:
            self._syns.hold(packet)
        elif self._tells:
            self._prohibit(packet)
        return False

    def _prohibit(self, packet: Packet) -> None:
        """Send an ICMP error to the sender of a packet that may not enter."""
        if self._gateway.up:
            self._gateway.unreachable(packet, self._gateway.wan, "admin", source=packet.dst[0])


@dataclass(frozen=True, slots=True)
class FirewallSettings(GatewaySettings):
    """Settings of a gateway that filters IPv4. They have the same meaning as in `Firewall`."""

    inside: str = ""  # empty: the /24 of its own address
    filtering: str = "apd"
    timers: Timers | None = None
    unsolicited: str = "drop"
    max_sessions: int = 65536


class PublicFirewall(SubnetRouter):
    """Gateway whose inside has public IPv4 addresses, behind a stateful firewall without
    translation.

    The inside uses the /24 of the gateway's own address.
    """

    def __init__(self, place: GatewayPlace, settings: FirewallSettings) -> None:
        if not settings.inside:
            block = str(IPv4Network(f"{place.address}/24", strict=False))
            settings = replace(settings, inside=block)
        super().__init__(place, settings)
        self.four = Firewall(
            self,
            filtering=settings.filtering,
            timers=settings.timers or Timers(udp_new=30.0, udp_stream=120.0, stream_after=2.0),
            unsolicited=settings.unsolicited,
            max_sessions=settings.max_sessions,
        )
        """The firewall for IPv4."""

    def clear(self) -> None:
        super().clear()
        self.four.clear()

    def outbound(self, packet: Packet) -> None:
        if self.four.allows_out(packet):
            self.wan.send(packet)

    def inbound(self, packet: Packet) -> None:
        if self.four.allows_in(packet):
            self.deliver_inside(packet)

"""A gateway on a test bench: packets in at either side, packets out at the other."""

from typing import Any

from shoal.netsim.clock import Events
from shoal.netsim.nat.kinds import build
from shoal.netsim.network.gateway import GatewayPlace, SubnetRouter
from shoal.netsim.network.link import LinkSpec
from shoal.netsim.network.network import Attachment, Network, Subnet
from shoal.netsim.network.packet import ICMP, TCP, UDP, Addr, Icmp, Packet
from shoal.netsim.sockets.tcp.segment import ControlSegment, TcpSegment
from shoal.netsim.streams import RandomStreams
from shoal.netsim.trace.trace import Trace

GATE = "198.51.100.1"
A: Addr = ("203.0.113.1", 3478)
A2: Addr = ("203.0.113.1", 3479)
B: Addr = ("203.0.113.2", 3478)
INSIDE: Addr = ("192.168.1.2", 4001)
OTHER: Addr = ("192.168.1.3", 4001)


class Plug:
    """Receiver that stores packets."""

    up = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.got: list[Packet] = []

    def receive(self, packet: Packet, at: Attachment) -> None:
        self.got.append(packet)


class Wire:
    """One gateway, two computers inside (or `hosts`), all others outside."""

    def __init__(
        self, kind: str, hosts: tuple[str, ...] = (), *, seed: int = 0,
        link: LinkSpec | None = None, **knobs: object,
    ) -> None:  # fmt: skip
        self.events = Events()
        self.trace = Trace(keep=True)
        self.network = Network(self.events, RandomStreams(seed), self.trace)
        self.internet = Subnet(self.network, "internet", 0.0)
        self.gate: SubnetRouter = build(
            kind, GatewayPlace(self.network, "gate", self.internet, GATE, link), knobs
        )
        self.inner = Plug("inner")
        self.lan = self.gate.inside.attach(self.inner)
        for host in hosts or (INSIDE[0], OTHER[0]):
            self.gate.inside.assign(self.lan, host)
            self.gate.route(host)
        self.outer = Plug("outer")
        self.wan = self.internet.attach(self.outer)
        for address in (A[0], B[0], "2600::a", "2600::b"):
            self.internet.assign(self.wan, address)

    def at(self, when: float) -> "Wire":
        """Let time pass."""
        self.events.run_until(when)
        return self

    def put(self, packet: Packet, at: Attachment) -> None:
        at.send(packet)
        self.events.run_until(self.events.now)

    def _take(self, plug: Plug) -> Packet | None:
        got, plug.got = plug.got, []
        assert len(got) <= 1, got
        return got[0] if got else None

    def out(self, source: Addr, to: Addr, data: Any = b"x", proto: int = UDP) -> Addr | None:
        """Send a packet out; return the source that the outside sees, None if none comes out."""
        self.put(Packet(proto, source, to, 100, data, "inner", ""), self.lan)
        packet = self._take(self.outer)
        return packet.src if packet is not None else None

    def back(self, source: Addr, to: Addr, data: Any = b"x", proto: int = UDP) -> Addr | None:
        """Send a packet in; return the inside endpoint that it reaches, None if none."""
        self.put(Packet(proto, source, to, 100, data, "outer", ""), self.wan)
        packet = self._take(self.inner)
        return packet.dst if packet is not None else None

    def inward(self, source: Addr, to: Addr, data: Any = b"x", proto: int = UDP) -> Packet | None:
        """Return what reaches the inside from the inside (hairpin), or the gateway's reply."""
        self.put(Packet(proto, source, to, 100, data, "inner", ""), self.lan)
        return self._take(self.inner)

    def told(self) -> Packet | None:
        """Return what has come out on the outside since the last call."""
        return self._take(self.outer)

    def drops(self) -> list[str]:
        """Return the reasons of dropped packets, in order."""
        _ = self.trace.digest
        return [record[1] for record in self.trace.records if record[1] not in ("sent", "received")]


def flag(name: str) -> TcpSegment:
    """Return a segment: syn, synack, ack, fin, rst."""
    if name == "ack":
        return TcpSegment(1, 1, 1000, b"", (), -1.0, -1.0)
    ack = name in ("synack", "fin")
    return ControlSegment(
        1, 1, 1000, syn=name.startswith("syn"), ack=ack, fin=name == "fin", rst=name == "rst"
    )


def error(kind: str, source: Addr, to: Addr, about: tuple[int, Addr, Addr]) -> Packet:
    """Return an ICMP error from `source` about a packet (protocol, source, destination)."""
    subject = Packet(about[0], about[1], about[2], 100, b"", "", "")
    return Packet(ICMP, (source[0], 0), (to[0], 0), 56, Icmp(kind, subject), "", "")


__all__ = ["A2", "GATE", "INSIDE", "OTHER", "TCP", "UDP", "A", "B", "Wire", "error", "flag"]

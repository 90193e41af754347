"""One IP packet on the simulated network, without its bytes if no code reads them."""

from dataclasses import dataclass
from typing import Final

from ..sockets.tcp.segment import Segment

Addr = tuple[str, int]
"""IP address (text, as `ipaddress` writes it) and port; for ICMP the port is 0."""

UDP: Final = 17
TCP: Final = 6
ICMP: Final = 1
NAMES: Final = {UDP: "udp", TCP: "tcp", ICMP: "icmp"}

IP4_HEADER: Final = 20
IP6_HEADER: Final = 40
UDP_HEADER: Final = 8
TCP_HEADER: Final = 32  # with timestamps, as Linux sends them


@dataclass(slots=True, eq=False, repr=False)
class Packet:
    """One packet in flight. Gateways change `src` and `dst` in place.

    `size` is bytes on the wire, IP header included. `data` is what the receiver's stack reads:
    `bytes` of a datagram, a segment of TCP, an `Icmp` message.
    """

    proto: int
    src: Addr
    dst: Addr
    size: int
    data: "bytes | Segment | Icmp"
    origin: str  # the name of the host that made it
    cause: str  # the task, or the timer of the stack, that sent it
    ttl: int = 64

    def __repr__(self) -> str:
        a, b = (f"{ip}:{port}" for ip, port in (self.src, self.dst))
        return f"<{NAMES.get(self.proto, self.proto)} {a} -> {b} {self.size} B>"

    @property
    def icmp(self) -> "Icmp":
        """The error that a packet of ICMP carries."""
        assert isinstance(self.data, Icmp)
        return self.data

    @property
    def segment(self) -> Segment:
        """The segment that a packet of TCP carries."""
        assert isinstance(self.data, Segment)
        return self.data

    def copy(self) -> "Packet":
        """Return another packet with the same content, for duplication and multicast."""
        return Packet(
            self.proto, self.src, self.dst, self.size, self.data, self.origin, self.cause, self.ttl
        )  # fmt: skip


class Icmp:
    """An ICMP error: what happened to which packet. Once every gateway on the way back has
    translated it, `about` has the addresses as the packet's sender wrote them.
    """

    __slots__ = ("dst", "kind", "mtu", "proto", "src")

    def __init__(self, kind: str, packet: Packet, mtu: int = 0) -> None:
        self.kind = kind  # "port", "host", "admin", "too-big", "ttl"
        self.proto = packet.proto
        self.src = packet.src
        self.dst = packet.dst
        self.mtu = mtu

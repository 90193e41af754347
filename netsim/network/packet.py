"""One IP packet on the simulated network. It is encoded as bytes only where code reads them."""

from dataclasses import dataclass
from typing import Final

from ..sockets.tcp.segment import TcpSegment

Addr = tuple[str, int]
"""IP address (text in the canonical form of `ipaddress`) and port. The port of an ICMP packet is
0.
"""

UDP: Final = 17
TCP: Final = 6
ICMP: Final = 1
NAMES: Final = {UDP: "udp", TCP: "tcp", ICMP: "icmp"}

IP4_HEADER: Final = 20
IP6_HEADER: Final = 40
UDP_HEADER: Final = 8
TCP_HEADER: Final = 32  # with the timestamps option, which Linux sends by default


@dataclass(slots=True, eq=False, repr=False)
class Packet:
    """One packet in flight. Gateways change `src` and `dst` in place.

    `size` is the number of bytes on the wire, including the IP header. `data` is the payload: the
    bytes of a datagram, a TCP segment, or an ICMP error.
    """

    proto: int
    src: Addr
    dst: Addr
    size: int
    data: "bytes | TcpSegment | Icmp"
    origin: str  # name of the host that created it
    cause: str  # name of the task that sent it; empty for a timer of the protocol stack
    ttl: int = 64

    def __repr__(self) -> str:
        a, b = (f"{ip}:{port}" for ip, port in (self.src, self.dst))
        return f"<{NAMES.get(self.proto, self.proto)} {a} -> {b} {self.size} B>"

    @property
    def icmp(self) -> "Icmp":
        """The ICMP error in an ICMP packet."""
        assert isinstance(self.data, Icmp)
        return self.data

    @property
    def segment(self) -> TcpSegment:
        """The TCP segment in a TCP packet."""
        assert isinstance(self.data, TcpSegment)
        return self.data

    def copy(self) -> "Packet":
        """Return a packet with the same content, for duplication and multicast."""
        return Packet(
            self.proto, self.src, self.dst, self.size, self.data, self.origin, self.cause, self.ttl
        )  # fmt: skip


class Icmp:
    """ICMP error, with its kind and the addresses of the packet that caused it.

    `src` and `dst` are the source and the destination of that packet. Gateways on the way back
    translate them, so that the packet's sender sees the addresses that it used. `mtu` is the
    largest size in bytes that passes, for the kind "too-big".
    """

    __slots__ = ("dst", "kind", "mtu", "proto", "src")

    def __init__(self, kind: str, packet: Packet, mtu: int = 0) -> None:
        self.kind = kind  # "port", "host", "admin", "too-big", "ttl"
        self.proto = packet.proto
        self.src = packet.src
        self.dst = packet.dst
        self.mtu = mtu

"""One IP packet on the simulated network, without its bytes if no code reads them."""

from typing import Any, Final

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


class Packet:
    """One packet in flight. Gateways change `src` and `dst` in place.

    `size` is bytes on the wire, IP header included. `data` is what the receiver's stack reads:
    `bytes` of a datagram, a `Segment` of TCP, an `Icmp` message.
    """

    __slots__ = ("cause", "data", "dst", "origin", "proto", "size", "src", "ttl")

    def __init__(
        self, proto: int, src: Addr, dst: Addr, size: int, data: Any, origin: str, cause: str
    ) -> None:
        self.proto = proto
        self.src = src
        self.dst = dst
        self.size = size
        self.data = data
        self.origin = origin  # the name of the host that made it
        self.cause = cause  # the task, or the timer of the stack, that sent it
        self.ttl = 64

    def __repr__(self) -> str:
        a, b = (f"{ip}:{port}" for ip, port in (self.src, self.dst))
        return f"<{NAMES.get(self.proto, self.proto)} {a} -> {b} {self.size} B>"

    def copy(self) -> "Packet":
        """Return another packet with the same content, for duplication and multicast."""
        twin = Packet(self.proto, self.src, self.dst, self.size, self.data, self.origin, self.cause)
        twin.ttl = self.ttl
        return twin


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

"""The parts of a TCP segment that gateways read, and the reset that they send in reply."""

from typing import Final

from ..network.packet import IP4_HEADER, IP6_HEADER, TCP, TCP_HEADER, Packet
from ..sockets.tcp.segment import Segment, refusal

FIN: Final = 1
SYN: Final = 2
RST: Final = 4
ACK: Final = 16


def flags(packet: Packet) -> int:
    """Return the flags of a TCP packet, as bits of the header."""
    segment = packet.data
    if type(segment) is Segment:
        return ACK
    assert isinstance(segment, Segment)
    return FIN * segment.fin | SYN * segment.syn | RST * segment.rst | ACK * segment.ack


def reset_for(packet: Packet, origin: str) -> Packet | None:
    """Return the reset that answers an unexpected segment; None for a reset (RFC 9293 3.10.7.1)."""
    answer = refusal(packet.segment)
    if answer is None:
        return None
    size = TCP_HEADER + (IP6_HEADER if ":" in packet.src[0] else IP4_HEADER)
    return Packet(TCP, packet.dst, packet.src, size, answer, origin, "gateway")

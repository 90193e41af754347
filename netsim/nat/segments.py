"""TCP at a gateway: the flags of a segment, resets, and SYNs that the gateway holds back.

An unsolicited SYN is not refused at once, because a SYN in the other direction may follow: in a
simultaneous open, the peer's SYN may arrive first (RFC 5382, REQ-4; RFC 6092, section 3.3.1).
"""

from collections.abc import Callable
from typing import Final

from ..clock import Events
from ..network.packet import IP4_HEADER, IP6_HEADER, TCP, TCP_HEADER, Addr, Packet
from ..sockets.tcp.segment import TcpSegment, refusal

FIN: Final = 1
SYN: Final = 2
RST: Final = 4
ACK: Final = 16

HOLD_S: Final = 6.0
HELD: Final = 1024  # maximum number of held SYNs; further ones get no reply


def flags(packet: Packet) -> int:
    """Return the flags of a TCP packet, as the bits of the header."""
    segment = packet.data
    if type(segment) is TcpSegment:
        return ACK
    assert isinstance(segment, TcpSegment)
    return FIN * segment.fin | SYN * segment.syn | RST * segment.rst | ACK * segment.ack


def reset_for(packet: Packet, origin: str) -> Packet | None:
    """Return the packet with the reset that answers an unexpected segment. Return None if the
    segment is itself a reset (RFC 9293, section 3.10.7.1).
    """
    answer = refusal(packet.segment)
    if answer is None:
        return None
    size = TCP_HEADER + (IP6_HEADER if ":" in packet.src[0] else IP4_HEADER)
    return Packet(TCP, packet.dst, packet.src, size, answer, origin, "gateway")


class HeldSyns:
    """Queue of unsolicited SYNs. After `HOLD_S` seconds, a SYN is passed to `refuse`."""

    def __init__(self, events: Events, refuse: Callable[[Packet], None]) -> None:
        self._events = events
        self._refuse = refuse
        self._due: dict[tuple[Addr, Addr], float] = {}  # by sender and receiver

    def clear(self) -> None:
        """Delete all held SYNs."""
        self._due.clear()

    def hold(self, packet: Packet) -> None:
        """Hold back the first SYN of a connection. Ignore all other packets, which get no reply."""
        key = packet.src, packet.dst
        if flags(packet) & (SYN | ACK | RST) != SYN or key in self._due or len(self._due) >= HELD:
            return
        self._due[key] = self._events.now + HOLD_S
        self._events.at(self._due[key], self._release, packet)

    def forget(self, sender: Addr, receiver: Addr) -> None:
        """Delete a held SYN, because a packet has passed in the other direction."""
        if self._due:
            self._due.pop((sender, receiver), None)

    def _release(self, packet: Packet) -> None:
        """Refuse a SYN whose time has come."""
        key = packet.src, packet.dst
        due = self._due.get(key)
        # If `due` is later than now, another SYN between the same endpoints is held by now.
        if due is not None and due <= self._events.now:
            del self._due[key]
            self._refuse(packet)

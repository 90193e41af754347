"""Lifetime of a flow through a gateway: its timers, and the state of a TCP connection."""

from dataclasses import dataclass
from typing import Final

from ..network.packet import TCP, Packet
from .segments import FIN, RST, SYN, flags

BEHAVIOURS: Final = ("ei", "ad", "apd")
"""Endpoint-independent, address-dependent, address- and port-dependent (RFC 4787, sections 4.1 and
5).
"""


@dataclass(frozen=True, slots=True)
class Timers:
    """Time in seconds without packets after which a flow is deleted (RFC 4787, section 4.3; RFC
    5382, section 5).
    """

    udp_new: float = 120.0
    udp_stream: float = 300.0  # once both sides have sent a packet and `stream_after` has passed
    stream_after: float = 0.0  # seconds since the flow's first packet
    tcp_syn: float = 240.0
    tcp_established: float = 7440.0
    tcp_transitory: float = 240.0  # one side has sent FIN, or a SYN of either side is missing
    tcp_close: float = 10.0  # both sides have closed, or one has reset

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; seconds cannot be negative")


_INSIDE: Final = 1
_OUTSIDE: Final = 2
_BOTH: Final = 3


class FlowState:
    """State of one flow between an inner and an outer endpoint. The flow ends at the time
    `expires`.
    """

    __slots__ = ("_began", "_ended", "_heard", "_reset", "_syn", "expires")

    def __init__(self, now: float) -> None:
        self.expires = now
        self._began = now
        self._heard = 0  # sides that have sent a packet, as bits
        self._syn = 0  # sides that have sent a SYN
        self._ended = 0  # sides that have sent a FIN
        self._reset = False

    def renew(self, packet: Packet, outbound: bool, now: float, timers: Timers) -> None:
        """Update the flow's end after a packet has passed."""
        side = _INSIDE if outbound else _OUTSIDE
        self._heard |= side
        if packet.proto == TCP:
            self.expires = now + self._tcp(flags(packet), side, timers)
        elif self._heard == _BOTH and now - self._began >= timers.stream_after:
            self.expires = now + timers.udp_stream
        else:
            self.expires = now + timers.udp_new

    def _tcp(self, bits: int, side: int, timers: Timers) -> float:
        """Update the TCP state with the flags of a segment. Return the seconds until the flow
        ends.
        """
        if bits & SYN:
            self._syn |= side
            if self._reset or self._ended == _BOTH:  # a new connection with the same ports
                self._reset, self._ended, self._syn, self._heard = False, 0, side, side
        if bits & RST:
            self._reset = True
        if bits & FIN:
            self._ended |= side
        if self._reset or self._ended == _BOTH:
            return timers.tcp_close
        if self._heard != _BOTH:
            return timers.tcp_syn
        if self._ended:
            return timers.tcp_transitory
        return timers.tcp_established if self._syn == _BOTH else timers.tcp_transitory

"""States of Linux's connection tracking for TCP, and the state change that each segment causes.

They are those of Linux 6.x (nf_conntrack_proto_tcp), without its checks of sequence numbers. Those
checks only detect forged segments, which do not occur here.
"""

from enum import IntEnum
from typing import Final

from .segments import ACK, FIN, RST, SYN


class TcpState(IntEnum):
    """State of a TCP connection in Linux's connection tracking, or the result of a transition."""

    NONE = 0
    SYN_SENT = 1
    SYN_RECV = 2
    ESTABLISHED = 3
    FIN_WAIT = 4
    CLOSE_WAIT = 5
    LAST_ACK = 6
    TIME_WAIT = 7
    CLOSE = 8
    SYN_SENT2 = 9  # both have sent a SYN: simultaneous open
    IGNORE = 10  # the segment passes and changes nothing
    INVALID = 11  # the segment does not belong to this connection


SECONDS: Final = {
    TcpState.SYN_SENT: 120.0,
    TcpState.SYN_RECV: 60.0,
    TcpState.ESTABLISHED: 432000.0,
    TcpState.FIN_WAIT: 120.0,
    TcpState.CLOSE_WAIT: 60.0,
    TcpState.LAST_ACK: 30.0,
    TcpState.TIME_WAIT: 120.0,
    TcpState.CLOSE: 10.0,
    TcpState.SYN_SENT2: 120.0,
}

_LETTERS: Final = {
    "-": TcpState.INVALID,
    "i": TcpState.IGNORE,
    "s": TcpState.SYN_SENT,
    "r": TcpState.SYN_RECV,
    "e": TcpState.ESTABLISHED,
    "f": TcpState.FIN_WAIT,
    "c": TcpState.CLOSE_WAIT,
    "l": TcpState.LAST_ACK,
    "t": TcpState.TIME_WAIT,
    "x": TcpState.CLOSE,
    "2": TcpState.SYN_SENT2,
}
# The state after each kind of segment, for the states NONE to SYN_SENT2 in that order.
_ORIGINAL: Final = {
    "syn": "ssiiiiiss2",
    "synack": "--r------r",
    "fin": "--ffllltx-",
    "ack": "e-eeccttx-",
    "rst": "-xxxxxxxxx",
}
_REPLY: Final = {
    "syn": "-2-----s-2",
    "synack": "-riiiiiiir",
    "fin": "--ffllltx-",
    "ack": "-ireccttxi",
    "rst": "-xxxxxxxxx",
}


def _kind(bits: int) -> str:
    """Return the row of the tables for the flags of a segment."""
    if bits & RST:
        return "rst"
    if bits & SYN:
        return "synack" if bits & ACK else "syn"
    if bits & FIN:
        return "fin"
    return "ack" if bits & ACK else ""


def _table(rows: dict[str, str]) -> tuple[tuple[TcpState, ...], ...]:
    """Return the new state, indexed by the flags of the segment and then by the old state."""
    nothing = "-" * 10
    return tuple(
        tuple(_LETTERS[letter] for letter in rows.get(_kind(bits), nothing)) for bits in range(32)
    )


FROM_ORIGINAL: Final = _table(_ORIGINAL)
FROM_REPLY: Final = _table(_REPLY)

"""Constants of the gate for browsers, with their units, and the limits that a node can set."""

from dataclasses import dataclass
from typing import Final

from ..defaults import KIB

# Part of the protocol (docs/spec/browser.md): both sides must agree.
VERSION: Final = 1
NONCE_BYTES: Final = 32
CHANNEL: Final = 0
"""Id of the only SCTP stream in use. Both ends know it in advance, so no message is needed to open
the channel."""
MESSAGE_BYTES: Final = 16 * KIB
"""Largest message on a data channel, in bytes. Every browser accepts this size (RFC 8831, section
6.6)."""

# HTTP.
REQUEST_HEAD_BYTES: Final = 8 * KIB
BODY_BYTES: Final = 16 * KIB
IGNORED_BYTES: Final = 2048 * KIB
"""Most bytes of a refused request that are read after the response was sent. They are read so that
the sender can read the response before the connection is closed."""
OFFER_BYTES: Final = 8 * KIB
"""Largest offer, in bytes. A browser's offer for one data channel has 400 to 1,500 bytes."""
PAGE_BYTES: Final = 256 * KIB
"""Largest file that the gate serves, in bytes."""

# A data channel.
TSN_WINDOW: Final = 384
"""Number of chunks that are accepted beyond the first missing one. aiortc lists the gaps between
received chunks in one datagram, which must have room for 4 bytes for every second chunk."""
WINDOW_BYTES: Final = TSN_WINDOW * 1168
"""Number of unread bytes that a browser may send. It is the size of `TSN_WINDOW` full chunks."""
CHUNKS: Final = 96
"""Largest number of chunks in one SCTP packet."""
SACK_SPAN: Final = 8192
"""Largest number of chunks that one selective acknowledgement may cover."""
PACKET_BYTES: Final = 2048
"""Largest datagram that is accepted, in bytes."""
SEND_AHEAD_BYTES: Final = 64 * KIB
"""Number of unsent bytes that are passed to aiortc. It is small because later, more urgent messages
cannot overtake these bytes."""
OUTGOING_BYTES: Final = 256 * KIB
"""Number of further bytes that a byte stream buffers before it passes them to aiortc."""
QUEUED_DATAGRAMS: Final = 512
"""Number of received datagrams that are queued for aiortc. Further ones are dropped."""
HANDSHAKE_DATAGRAMS: Final = 64
"""Number of datagrams that are accepted in one DTLS handshake, including retransmissions."""
STRANGERS_RATE: Final = 500
"""Datagrams per second that are processed from sources without a session, from all of them
together."""


@dataclass(frozen=True, slots=True)
class BrowserLimits:
    """Bounds on the memory, time and work that browsers can cost a node."""

    connections: int = 32
    """Largest number of concurrent HTTP connections."""
    connections_per_subnet: int = 8
    """Largest number of HTTP connections from one /24 (IPv4) or /64 (IPv6), and also from this
    machine. The bound of a larger network is a multiple of it (`limits.Sources`)."""
    request_s: float = 5.0
    """Timeout for reading a request, in seconds. The same timeout applies to sending the
    response."""
    joins_per_minute: float = 12.0
    """Offers that are answered per minute from one /24 or /64 (`limits.SourceRates`). A burst may
    have half as many."""
    joining: int = 16
    """Largest number of browsers that have received an answer but have not proven their peer ids
    yet."""
    browsers: int = 64
    """Largest number of browsers in total."""
    join_s: float = 15.0
    """Time that a browser has, after the answer to its offer, to prove its peer id, in seconds."""
    packets_per_second: float = 4000.0
    """Datagrams that are accepted from one browser per second, which is about 4.5 MB. Further ones
    are dropped, which makes the browser slow down."""

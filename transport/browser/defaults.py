"""Constants of the gate for browsers, with their units, and the limits that a node may set."""

from dataclasses import dataclass
from typing import Final

from ..defaults import KIB

# Part of the protocol (docs/spec/browser.md): both sides must agree.
VERSION: Final = 1
NONCE_BYTES: Final = 32
CHANNEL: Final = 0
"""The only SCTP stream in use; both ends know it in advance, so no message opens a channel."""
MESSAGE_BYTES: Final = 16 * KIB
"""Largest message of a data channel, in bytes: every browser accepts it (RFC 8831, 6.6)."""

# HTTP.
REQUEST_HEAD_BYTES: Final = 8 * KIB
BODY_BYTES: Final = 16 * KIB
IGNORED_BYTES: Final = 2048 * KIB
"""Number of bytes of a refused request to read after the response, so that the sender can read the
response before the connection is closed."""
OFFER_BYTES: Final = 8 * KIB
"""Largest offer, in bytes; a browser's offer for one data channel has 400 to 1,500 bytes."""
PAGE_BYTES: Final = 256 * KIB
"""Largest file of the page to serve, in bytes."""

# A data channel.
TSN_WINDOW: Final = 384
"""Number of chunks to accept beyond the first missing one. aiortc lists the gaps between them in
one datagram, which must have room for 4 bytes for every second chunk."""
WINDOW_BYTES: Final = TSN_WINDOW * 1168
"""Number of bytes that a browser may send ahead of the reader: `TSN_WINDOW` full chunks."""
CHUNKS: Final = 96
"""Largest number of chunks in one SCTP packet."""
SACK_SPAN: Final = 8192
"""Largest number of chunks that one selective acknowledgement may cover."""
PACKET_BYTES: Final = 2048
"""Largest datagram to accept, in bytes."""
SEND_AHEAD_BYTES: Final = 64 * KIB
"""Number of unsent bytes to pass to aiortc: later messages cannot overtake these bytes."""
OUTGOING_BYTES: Final = 256 * KIB
"""Number of bytes that a pipe buffers before that."""
QUEUED_DATAGRAMS: Final = 512
"""Number of received datagrams to queue for aiortc; further ones are dropped."""
HANDSHAKE_DATAGRAMS: Final = 64
"""Largest number of datagrams of a DTLS handshake, retransmissions included."""
STRANGERS_RATE: Final = 500
"""Datagrams per second to process from all sources without a session together."""


@dataclass(frozen=True, slots=True)
class BrowserLimits:
    """Bounds on the memory, time and work that browsers can cost a node."""

    connections: int = 32
    """Largest number of HTTP connections at once."""
    connections_per_subnet: int = 8
    """Largest number of HTTP connections from this machine, and from one /24 (IPv4) or /64 (IPv6);
    a larger network may have a multiple of it (`limits.Sources`)."""
    request_s: float = 5.0
    """Timeout for reading a request, and the same again for sending the response, in seconds."""
    joins_per_minute: float = 12.0
    """Offers answered per minute per /24 or /64 (`rates.SourceRates`); half as many at once."""
    joining: int = 16
    """Largest number of browsers that got an answer but have not proven their peer ids yet."""
    browsers: int = 64
    """Largest number of browsers in total."""
    join_s: float = 15.0
    """Time that a browser has after the answer to prove its peer id, in seconds."""
    packets_per_second: float = 4000.0
    """Datagrams to accept from one browser per second, some 4.5 MB; further ones are dropped, which
    slows their sender down."""

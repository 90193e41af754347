"""Every constant of the way in for browsers, with its unit, and the limits a node may set."""

from dataclasses import dataclass
from typing import Final

from ..defaults import KIB

# Part of the protocol (docs/spec/browser.md): both sides must agree.
VERSION: Final = 1
NONCE_BYTES: Final = 32
CHANNEL: Final = 0
"""The one SCTP stream in use; agreed beforehand, so no message ever opens a channel."""
MESSAGE_BYTES: Final = 16 * KIB
"""The largest message of a data channel (RFC 8831, 6.6: what every browser takes)."""

# HTTP.
REQUEST_HEAD_BYTES: Final = 8 * KIB
BODY_BYTES: Final = 16 * KIB
IGNORED_BYTES: Final = 2048 * KIB
"""What is still read of a refused request, so that its sender gets to read the refusal."""
OFFER_BYTES: Final = 8 * KIB
"""A browser's offer for one data channel has 400 to 1,500 bytes."""
PAGE_BYTES: Final = 256 * KIB
"""The largest file of our own that is served."""

# A data channel.
TSN_WINDOW: Final = 384
"""Chunks beyond the first one missing that are taken in, a count. aiortc lists the gaps between
them in one datagram, where 4 bytes for every second chunk must fit."""
WINDOW_BYTES: Final = TSN_WINDOW * 1168
"""What a browser may send ahead of the reader: as many chunks as its packets hold."""
CHUNKS: Final = 96
"""Chunks in one SCTP packet."""
SACK_SPAN: Final = 8192
"""Chunks that one selective acknowledgement may list."""
PACKET_BYTES: Final = 2048
"""The largest datagram taken in."""
SEND_AHEAD_BYTES: Final = 64 * KIB
"""What is handed to aiortc ahead of the wire: it cannot be overtaken any more."""
OUTGOING_BYTES: Final = 256 * KIB
"""What a pipe takes from its writer ahead of that."""
QUEUED_DATAGRAMS: Final = 512
"""Datagrams kept for aiortc until it comes round to reading them; more are lost."""
HANDSHAKE_DATAGRAMS: Final = 64
"""Datagrams that a DTLS handshake may take, those sent again included."""
STRANGERS_RATE: Final = 500
"""Datagrams per second that are looked at from all sources without a session together."""


@dataclass(frozen=True, slots=True)
class BrowserLimits:
    """Bounds on what browsers can make a node keep, wait for or work on."""

    connections: int = 32
    """HTTP connections at once, a count."""
    connections_per_subnet: int = 8
    """HTTP connections from this machine, and from one /24 (IPv4) or /64 (IPv6), a count; a larger
    network has a multiple of it (`limits.Sources`)."""
    request_s: float = 5.0
    """Seconds from accept until the request has been read, and again until it is answered."""
    joins_per_minute: float = 12.0
    """Offers answered for one /24 or /64 a minute (`limits.SourceRates`); half as many at once."""
    joining: int = 16
    """Browsers that have been answered and are not proven yet, a count."""
    browsers: int = 64
    """Browsers in all, a count."""
    join_s: float = 15.0
    """Seconds from the answer until the browser has proven who it is."""
    packets_per_second: float = 4000.0
    """Datagrams taken from one browser per second, some 4.5 MB; what comes beyond is lost, which
    slows its sender down."""

"""Every constant of the UDP port, with its unit."""

from dataclasses import dataclass
from typing import Final

from ..defaults import HANDSHAKE_S, KIB, MIB

# Part of the protocol (docs/spec/udp.md): both sides must agree.
ALPN: Final = "shoal-udp/1"
CONNECTION_ID_BYTES: Final = 8
INITIAL_BYTES: Final = 1200
"""A datagram with a first packet has at least so many bytes (RFC 9000 section 14.1)."""
STREAM_ID: Final = 0
"""The client's first bidirectional stream: the only one."""

# What limits bound (bytes, counts, seconds); `UdpLimits` says of what.
WINDOW_BYTES: Final = 2 * MIB
STRANGER_WINDOW_BYTES: Final = 64 * KIB
LARGEST_WINDOW_BYTES: Final = 8 * MIB
TOTAL_BYTES: Final = 256 * MIB
EXTRA_BYTES: Final = 64 * MIB
WINDOW_ROUNDS: Final = 4
"""A window that is read within so many round trips is too small for the path."""
CONNECTIONS: Final = 512
IDLE_S: Final = 30.0
RETRY_ABOVE: Final = 8
UNPROVEN_PER_S: Final = 20.0
BEGINNINGS_PER_S: Final = 24.0
BEGINNINGS_BURST: Final = 512
LOOKS_PER_S: Final = 500.0
LOOKS_BURST: Final = 256
"""First packets at once, a count, before `LOOKS_PER_S` holds."""
BURST: Final = 32
"""First packets at once, a count, before `UNPROVEN_PER_S` holds."""

GAPS: Final = 512
"""Pieces of the stream that may lie beyond a gap, a count."""
GAP_BYTES: Final = 2 * KIB
"""One more for each so many bytes by which the window has grown: a queue that overflows drops
every other packet for a while."""
CRYPTO_BYTES: Final = 16 * KIB
"""Bytes of TLS messages in each direction of a connection's whole life."""
DATA_LIMIT: Final = 1 << 60
"""Flow control of the connection, in bytes: none, as there is one stream and it has its own."""
KEY_PACKETS: Final = 1 << 22
"""Packets under one key: half of what AES-GCM may protect (RFC 9001 section 6.6)."""

# The pipe.
UNSENT_S: Final = 0.02
UNSENT_BYTES: Final = (8 * KIB, 128 * KIB)
"""So many seconds of the path's rate, in these bounds, are taken ahead of the wire."""
ACK_S: Final = (0.001, 0.005)
ACK_SHARE: Final = 1 / 8
"""Acknowledgements are so many round trips apart, in these bounds in seconds."""

# Packets larger than the smallest (RFC 8899): what Ethernet, tunnels and mobile networks carry.
DATAGRAM_SIZES: Final = (1452, 1372, 1252)
SIZE_TRIES: Final = 2
SIZE_PROBE_BYTES: Final = 64 * KIB
"""A connection that has sent less does not need larger packets."""
BLACK_HOLE_TIMEOUTS: Final = 3
"""Probe timeouts in a row after which packets are small again."""

# Congestion control (congestion.py says where the numbers come from).
INITIAL_PACKETS: Final = 10
MINIMUM_PACKETS: Final = 4
WINDOW_LIMIT_BYTES: Final = 8 * MIB
STARTUP_GAIN: Final = 2.77
UP_GAIN: Final = 1.25
DOWN_GAIN: Final = 0.75
GROWTH: Final = 1.25
"""A rate that grows less in `FULL_ROUNDS` round trips has found the link's."""
FULL_ROUNDS: Final = 3
RATE_ROUNDS: Final = 10
"""The highest rate of so many round trips counts."""
CRUISE_ROUNDS: Final = 6
CRUISE_S: Final = 0.06
QUEUE_S: Final = 0.025
"""What we may keep in a queue at the most."""
SLACK_S: Final = 0.01
SLACK_BYTES: Final = 128 * KIB
"""In flight beyond the path's own bytes, for acknowledgements that come in lumps."""
STANDING_ROUNDS: Final = 8
"""Round trips whose shortest is what others seem to leave when it gets shorter at once."""
BASE_AGE_S: Final = 10.0
BASE_PROBE_S: Final = 0.2
BASE_NOISE_S: Final = 0.001
JOIN_S: Final = 0.005
LOSS_SHARE: Final = 0.04
LOSS_PACKETS: Final = 3
LOSS_FACTOR: Final = 0.8

# Pacing.
BURST_S: Final = 0.005
BURST_BYTES: Final = 96 * KIB
BURST_PACKETS: Final = 3
WAKE_S: Final = 0.001
"""A sender that has used up its turn waits for at least so much of the rate."""


@dataclass(frozen=True, slots=True)
class UdpLimits:
    """Bounds on what QUIC peers can make us keep. Defaults: above."""

    window_bytes: int = WINDOW_BYTES
    """Bytes of a connection that its reader has not taken, in order or not."""
    stranger_window_bytes: int = STRANGER_WINDOW_BYTES
    """The same until the other end has proven itself: a byte at the end of a window costs all of
    it, and a handshake needs little."""
    largest_window_bytes: int = LARGEST_WINDOW_BYTES
    """The same where the path is long and fast, and the reader keeps up."""
    extra_bytes: int = EXTRA_BYTES
    """What windows may have grown by, of all connections together."""
    total_bytes: int = TOTAL_BYTES
    """What all connections together keep unread; beyond it the one that keeps most ends."""
    connections: int = CONNECTIONS
    """Connections at once, a count."""
    handshake_s: float = HANDSHAKE_S
    """Seconds from an accepted connection's first packet until its other end has proven itself."""
    idle_s: float = IDLE_S
    """Seconds without a packet after which a connection is lost."""
    retry_above: int = RETRY_ABOVE
    """With so many half-open connections, a further one first proves its address."""
    unproven_per_s: float = UNPROVEN_PER_S
    """First packets a second after which the next ones prove their addresses: one that turns out
    to be no true one costs 0.2 ms and is not half open afterwards."""
    beginnings_per_s: float = BEGINNINGS_PER_S
    """First packets a second in all; more are dropped: each costs a handshake's cryptography."""
    beginnings_burst: float = BEGINNINGS_BURST
    """The same at once, a count: all peers of a relay come back at once."""
    looks_per_s: float = LOOKS_PER_S
    """First packets a second that are looked at, of those without a token; as many with one."""
    gaps: int = GAPS
    """Pieces of a stream beyond a gap, a count."""
    crypto_bytes: int = CRYPTO_BYTES
    """Bytes of TLS messages of a connection."""

"""All constants of the UDP port, with their units."""

from dataclasses import dataclass
from typing import Final

from ..defaults import HANDSHAKE_S, KIB, MIB

# Part of the protocol (docs/spec/udp.md): both sides must agree.
ALPN: Final = "shoal-udp/1"
CONNECTION_ID_BYTES: Final = 8
INITIAL_BYTES: Final = 1200
"""Least bytes of a datagram with a first packet (RFC 9000 section 14.1)."""
STREAM_ID: Final = 0
"""The client's first bidirectional stream, which is the only one."""

# Defaults of `UdpLimits`, which says what they limit (bytes, counts, seconds).
WINDOW_BYTES: Final = 2 * MIB
STRANGER_WINDOW_BYTES: Final = 64 * KIB
LARGEST_WINDOW_BYTES: Final = 8 * MIB
TOTAL_BYTES: Final = 256 * MIB
EXTRA_BYTES: Final = 64 * MIB
WINDOW_ROUNDS: Final = 4
"""A window that is read within this many round trips is too small for the path."""
CONNECTIONS: Final = 512
IDLE_S: Final = 30.0
RETRY_ABOVE: Final = 8
UNPROVEN_PER_S: Final = 20.0
BEGINNINGS_PER_S: Final = 24.0
BEGINNINGS_BURST: Final = 512
LOOKS_PER_S: Final = 500.0
LOOKS_BURST: Final = 256
"""First packets at once, a count, before `LOOKS_PER_S` applies."""
BURST: Final = 32
"""First packets at once, a count, before `UNPROVEN_PER_S` applies."""

GAPS: Final = 512
"""Pieces of the stream beyond a gap, a count."""
GAP_BYTES: Final = 2 * KIB
"""Growth of the window, in bytes, that allows one more piece: an overflowing queue drops every
other packet for a while."""
CRYPTO_BYTES: Final = 16 * KIB
"""Bytes of TLS messages in each direction over a connection's life."""
DATA_LIMIT: Final = 1 << 60
"""Flow control of the connection, in bytes: unlimited, as its only stream has its own."""
KEY_PACKETS: Final = 1 << 22
"""Packets per key: half of what AES-GCM may protect (RFC 9001 section 6.6)."""

# The pipe.
UNSENT_S: Final = 0.02
UNSENT_BYTES: Final = (8 * KIB, 128 * KIB)
"""Bytes accepted ahead of the wire: `UNSENT_S` seconds of the path's rate, within these limits."""
ACK_S: Final = (0.001, 0.005)
ACK_SHARE: Final = 1 / 8
"""Share of a round trip between acknowledgements, within the limits `ACK_S` in seconds."""

# Packets larger than the smallest (RFC 8899): what Ethernet, tunnels and mobile networks carry.
DATAGRAM_SIZES: Final = (1452, 1372, 1252)
SIZE_TRIES: Final = 2
SIZE_PROBE_BYTES: Final = 64 * KIB
"""Bytes sent before larger packets are worth probing."""
BLACK_HOLE_TIMEOUTS: Final = 3
"""Consecutive probe timeouts after which packets become small again."""

# Congestion control (congestion.py gives the sources).
INITIAL_PACKETS: Final = 10
MINIMUM_PACKETS: Final = 4
WINDOW_LIMIT_BYTES: Final = 8 * MIB
STARTUP_GAIN: Final = 2.77
UP_GAIN: Final = 1.25
DOWN_GAIN: Final = 0.75
GROWTH: Final = 1.25
"""If the rate grows by less over `FULL_ROUNDS` round trips, it has reached the link's."""
FULL_ROUNDS: Final = 3
RATE_ROUNDS: Final = 10
"""Round trips whose highest rate counts."""
CRUISE_ROUNDS: Final = 6
CRUISE_S: Final = 0.06
QUEUE_S: Final = 0.025
"""Most seconds of queue that a probe may build."""
SLACK_S: Final = 0.01
SLACK_BYTES: Final = 128 * KIB
"""Most bytes in flight beyond the path's own, to bridge acknowledgements that come in batches."""
STANDING_ROUNDS: Final = 8
"""Round trips after whose shortest a sudden drop means that another flow is draining the queue."""
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
"""Least wait of a sender that has used up its burst, in seconds."""


@dataclass(frozen=True, slots=True)
class UdpLimits:
    """Limits on what QUIC peers can make this node store. Defaults: above."""

    window_bytes: int = WINDOW_BYTES
    """Unread bytes of a connection, in order or not."""
    stranger_window_bytes: int = STRANGER_WINDOW_BYTES
    """Unread bytes until the other end is authenticated. It is small because a single byte at the
    end of a window takes the memory of all of it, and a handshake needs little."""
    largest_window_bytes: int = LARGEST_WINDOW_BYTES
    """Unread bytes if the path is long and fast, and the reader keeps up."""
    extra_bytes: int = EXTRA_BYTES
    """Growth of windows of all connections together, in bytes."""
    total_bytes: int = TOTAL_BYTES
    """Unread bytes of all connections together; beyond it the one with the most is closed."""
    connections: int = CONNECTIONS
    """Concurrent connections, a count."""
    handshake_s: float = HANDSHAKE_S
    """Seconds from an accepted connection's first packet to the other end's authentication."""
    idle_s: float = IDLE_S
    """Seconds without a packet after which a connection is lost."""
    retry_above: int = RETRY_ABOVE
    """Half-open connections, a count, from which a further one has to prove its address."""
    unproven_per_s: float = UNPROVEN_PER_S
    """First packets per second beyond which further ones have to prove their addresses: a fake one
    costs 0.2 ms and is not counted as half open afterwards."""
    beginnings_per_s: float = BEGINNINGS_PER_S
    """First packets accepted per second; more are dropped, as each costs handshake cryptography."""
    beginnings_burst: float = BEGINNINGS_BURST
    """First packets accepted at once, a count: all peers of a relay may return at once."""
    looks_per_s: float = LOOKS_PER_S
    """First packets without a token examined per second, and as many with one."""
    gaps: int = GAPS
    """Pieces of a stream beyond a gap, a count."""
    crypto_bytes: int = CRYPTO_BYTES
    """Bytes of TLS messages of a connection."""

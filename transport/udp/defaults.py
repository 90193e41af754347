"""All constants of the UDP port, with their units."""

from dataclasses import dataclass
from typing import Final

from ..defaults import HANDSHAKE_S, KIB, MIB

# Part of the protocol (docs/spec/udp.md): both sides must agree.
ALPN: Final = "shoal-udp/1"
CONNECTION_ID_BYTES: Final = 8
INITIAL_BYTES: Final = 1200
"""Smallest datagram that may hold a client's first packet, in bytes (RFC 9000, section 14.1)."""
STREAM_ID: Final = 0
"""Id of the only stream: the client's first bidirectional one."""

# Default values of `UdpLimits`, which documents each of them (bytes, counts, seconds).
WINDOW_BYTES: Final = 2 * MIB
STRANGER_WINDOW_BYTES: Final = 64 * KIB
LARGEST_WINDOW_BYTES: Final = 8 * MIB
TOTAL_BYTES: Final = 256 * MIB
EXTRA_BYTES: Final = 64 * MIB
WINDOW_ROUNDS: Final = 4
"""If the reader consumes a whole window within this many round trips, the window is too small for
the path."""
CONNECTIONS: Final = 512
IDLE_S: Final = 30.0
RETRY_ABOVE: Final = 8
UNPROVEN_PER_S: Final = 20.0
BEGINNINGS_PER_S: Final = 24.0
BEGINNINGS_BURST: Final = 512
LOOKS_PER_S: Final = 500.0
LOOKS_BURST: Final = 256
"""Number of first packets in a burst that are examined before `LOOKS_PER_S` applies."""
BURST: Final = 32
"""Number of first packets in a burst that are accepted before `UNPROVEN_PER_S` applies."""

GAPS: Final = 512
"""Number of pieces that the received data of a stream may have, separated by gaps."""
GAP_BYTES: Final = 2 * KIB
"""Growth of the window, in bytes, that allows one more piece. There can be many pieces because an
overflowing queue drops every other packet for a while."""
CRYPTO_BYTES: Final = 16 * KIB
"""Bytes of TLS messages that a peer may send on one connection, in all."""
DATA_LIMIT: Final = 1 << 60
"""Flow control window of the whole connection, in bytes. It is unlimited in effect, because its
only stream has a window of its own."""
KEY_PACKETS: Final = 1 << 22
"""Packets after which the key is changed: half of what AES-GCM may protect (RFC 9001, section
6.6)."""

# The byte stream.
UNSENT_S: Final = 0.02
UNSENT_BYTES: Final = (8 * KIB, 128 * KIB)
"""Bytes that are accepted before they can be sent: as many as the path delivers in `UNSENT_S`
seconds, but at least the first and at most the second value of `UNSENT_BYTES`."""
ACK_S: Final = (0.001, 0.005)
ACK_SHARE: Final = 1 / 8
"""Longest delay of an acknowledgement: this part of a round trip, but at least the first and at
most the second value of `ACK_S`, in seconds."""

# Packet sizes to probe (RFC 8899), in bytes: what Ethernet, tunnels and mobile networks carry.
DATAGRAM_SIZES: Final = (1452, 1372, 1252)
SIZE_TRIES: Final = 2
SIZE_PROBE_BYTES: Final = 64 * KIB
"""Bytes that must have been sent on a path before larger packets are worth probing."""
BLACK_HOLE_TIMEOUTS: Final = 3
"""Consecutive probe timeouts (RFC 9002, section 6.2) after which packets become small again."""

# Congestion control (congestion.py gives the sources).
INITIAL_PACKETS: Final = 10
MINIMUM_PACKETS: Final = 4
WINDOW_LIMIT_BYTES: Final = 8 * MIB
STARTUP_GAIN: Final = 2.77
UP_GAIN: Final = 1.25
DOWN_GAIN: Final = 0.75
GROWTH: Final = 1.25
"""If the rate grows by less than this factor over `FULL_ROUNDS` round trips, it has reached the
rate of the path, and the startup phase ends."""
FULL_ROUNDS: Final = 3
RATE_ROUNDS: Final = 10
"""Number of latest round trips whose highest delivery rate counts as the rate of the path."""
CRUISE_ROUNDS: Final = 6
CRUISE_S: Final = 0.06
"""A probe for more bandwidth begins after at least `CRUISE_ROUNDS` round trips and `CRUISE_S`
seconds."""
QUEUE_S: Final = 0.025
"""Longest queue that a probe for more bandwidth may build, in seconds of delay."""
SLACK_S: Final = 0.01
SLACK_BYTES: Final = 128 * KIB
"""Bytes in flight beyond those that the path holds: what it delivers in `SLACK_S` seconds, but at
most `SLACK_BYTES`. They keep the path busy while acknowledgements arrive in batches."""
STANDING_ROUNDS: Final = 8
"""Number of round trips that are remembered. If a new one is much shorter than all of them, another
flow is draining the queue."""
BASE_AGE_S: Final = 10.0
"""Age of the shortest round trip, in seconds, at which it is measured again."""
BASE_PROBE_S: Final = 0.2
"""Shortest duration of a measurement of the shortest round trip, in seconds."""
BASE_NOISE_S: Final = 0.001
"""A round trip that is at most this much longer than the shortest one, in seconds, confirms it."""
JOIN_S: Final = 0.005
"""How much shorter than the remembered round trips a new one must be, in seconds, to show that
another flow is measuring."""
LOSS_WEIGHT: Final = 0.125
"""Weight of the last round trip in the share of bytes that are lost."""
LOSS_SHARE: Final = 0.04
LOSS_PACKETS: Final = 3
LOSS_FACTOR: Final = 0.8
"""If more than the part `LOSS_SHARE` of a round trip's bytes and at least `LOSS_PACKETS` packets
are lost, the rate is reduced, at most by the factor `LOSS_FACTOR`."""

# Pacing.
BURST_S: Final = 0.005
BURST_BYTES: Final = 96 * KIB
BURST_PACKETS: Final = 3
"""Largest burst: what the rate allows in `BURST_S` seconds, but at most `BURST_BYTES` bytes and at
least `BURST_PACKETS` packets."""
WAKE_S: Final = 0.001
"""Shortest time that a sender waits after it has used up its burst, in seconds."""


@dataclass(frozen=True, slots=True)
class UdpLimits:
    """Limits on what QUIC peers can make this node store. The default values are the constants
    above."""

    window_bytes: int = WINDOW_BYTES
    """Window of an authenticated connection, in bytes. It bounds the unread bytes, including those
    that arrived out of order."""
    stranger_window_bytes: int = STRANGER_WINDOW_BYTES
    """Window until the other end is authenticated, in bytes. It is small because a single received
    byte at the end of a window costs the memory of the whole window, and a handshake needs
    little."""
    largest_window_bytes: int = LARGEST_WINDOW_BYTES
    """Largest window, in bytes. It is reached if the path is long and fast and the reader keeps
    up."""
    extra_bytes: int = EXTRA_BYTES
    """Bytes by which the windows of all connections together may grow beyond `window_bytes`."""
    total_bytes: int = TOTAL_BYTES
    """Unread bytes of all connections together. Above it, the connection with the most is
    closed."""
    connections: int = CONNECTIONS
    """Concurrent connections, a count."""
    handshake_s: float = HANDSHAKE_S
    """Seconds from an accepted connection's first packet to the other end's authentication."""
    idle_s: float = IDLE_S
    """Seconds without a packet after which a connection is lost."""
    retry_above: int = RETRY_ABOVE
    """If there are at least this many half-open connections, a new client must prove its
    address."""
    unproven_per_s: float = UNPROVEN_PER_S
    """First packets per second above which further clients must prove their addresses. The bound on
    half-open connections does not suffice: a forged first packet costs 0.2 ms, but leaves no
    half-open connection."""
    beginnings_per_s: float = BEGINNINGS_PER_S
    """First packets accepted per second. Further ones are dropped, because each costs the
    cryptography of a handshake."""
    beginnings_burst: float = BEGINNINGS_BURST
    """First packets accepted in a burst, a count. It is high because all peers of a relay may
    reconnect at once."""
    looks_per_s: float = LOOKS_PER_S
    """First packets without a token that are examined per second. As many with a token are examined
    in addition."""
    gaps: int = GAPS
    """Number of pieces that the received data of a stream may have, separated by gaps."""
    crypto_bytes: int = CRYPTO_BYTES
    """Bytes of TLS messages that a peer may send on one connection."""

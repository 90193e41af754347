"""Constants of TCP, with their units; Linux's defaults unless stated otherwise."""

from typing import Final

INFINITY: Final = float("inf")

# Handshake.
SYN_TIMEOUT_S: Final = 1.0
"""First retransmission of a SYN; doubled each time (RFC 6298, 5.7)."""
SYN_RETRIES: Final = 6
"""net.ipv4.tcp_syn_retries: ETIMEDOUT after 127 s."""
SYN_ACK_RETRIES: Final = 5
"""net.ipv4.tcp_synack_retries."""
SYN_WINDOW_BYTES: Final = 65535
"""Maximum window of a SYN, which is never scaled."""

# Retransmission.
RTO_MIN_S: Final = 0.2
RTO_MAX_S: Final = 120.0
RTO_RETRIES: Final = 15
"""net.ipv4.tcp_retries2."""
GIVE_UP_S: Final = 924.6
"""Sum of RTO_RETRIES doublings of RTO_MIN_S, each at most RTO_MAX_S: then ETIMEDOUT."""
ORPHAN_RETRIES: Final = 8
"""Consecutive timeouts after which a connection that the program has closed is dropped."""
PROBE_LEAST_S: Final = 0.002
"""Added to two round trips before a tail loss probe (RFC 8985, 7.2)."""
REORDERED_SEGMENTS: Final = 3
"""Segments beyond a hole that count it as lost at once (RFC 5681: DupThresh)."""

# Acknowledgements.
DELAYED_ACK_S: Final = 0.04
QUICK_ACKS: Final = 16
"""Segments that are acknowledged at once, at the start or after a pause."""
SACK_BLOCKS: Final = 3
"""Blocks that fit beside timestamps (RFC 2018)."""

# Congestion.
INITIAL_WINDOW: Final = 10
"""Segments (RFC 6928)."""

# Buffers, in bytes.
RECEIVE_BUFFER_BYTES: Final = 131072
"""net.ipv4.tcp_rmem[1]; half of it is offered as window."""
RECEIVE_BUFFER_MAX_BYTES: Final = 6291456
"""net.ipv4.tcp_rmem[2]: the limit of automatic growth."""
SEND_BUFFER_BYTES: Final = 87040
"""Bytes that a new connection takes before a writer must wait; grows with the congestion window."""
SEND_BUFFER_MAX_BYTES: Final = 4194304
"""net.ipv4.tcp_wmem[2]."""
WRITE_PIECE_BYTES: Final = 65536
"""Size of the pieces of a long write if TCP_NOTSENT_LOWAT is set."""

# The end.
TIME_WAIT_S: Final = 60.0
FIN_WAIT_S: Final = 60.0
"""Seconds that a closed socket waits for the peer's FIN."""
KEEPALIVE_IDLE_S: Final = 7200
KEEPALIVE_INTERVAL_S: Final = 75
KEEPALIVE_PROBES: Final = 9

# Sizes.
LEAST_MSS: Final = 536
"""MSS of a peer that announces none (RFC 9293, 3.7.1), and the minimum for any route."""
LOOPBACK_MTU: Final = 65536
ISN_TICK_S: Final = 64e-9
"""Time in which initial sequence numbers rise by one (RFC 6528)."""

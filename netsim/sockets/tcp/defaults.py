"""Constants of TCP, with their units; Linux's defaults unless said otherwise."""

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
"""The most a SYN can say: its window is never scaled."""

# Retransmission.
RTO_MIN_S: Final = 0.2
RTO_MAX_S: Final = 120.0
RTO_RETRIES: Final = 15
"""net.ipv4.tcp_retries2."""
GIVE_UP_S: Final = 924.6
"""What RTO_RETRIES doublings of RTO_MIN_S, held at RTO_MAX_S, add up to: then ETIMEDOUT."""
ORPHAN_RETRIES: Final = 8
"""Timeouts in a row after which a connection that nobody holds any more is dropped."""
PROBE_LEAST_S: Final = 0.002
"""Added to two round trips before a tail loss probe (RFC 8985, 7.2)."""
REORDERED_SEGMENTS: Final = 3
"""Segments beyond a hole that make it a loss at once (RFC 5681: DupThresh)."""

# Acknowledgements.
DELAYED_ACK_S: Final = 0.04
QUICK_ACKS: Final = 16
"""Segments at the start, or after a pause, that are acknowledged at once."""
SACK_BLOCKS: Final = 3
"""That fit beside timestamps (RFC 2018)."""

# Congestion.
INITIAL_WINDOW: Final = 10
"""Segments (RFC 6928)."""

# Buffers, in bytes.
RECEIVE_BUFFER_BYTES: Final = 131072
"""net.ipv4.tcp_rmem[1]; half of it is offered as window."""
RECEIVE_BUFFER_MAX_BYTES: Final = 6291456
"""net.ipv4.tcp_rmem[2]: how far it grows by itself."""
SEND_BUFFER_BYTES: Final = 87040
"""What a new connection takes before a writer must wait; grows with the congestion window."""
SEND_BUFFER_MAX_BYTES: Final = 4194304
"""net.ipv4.tcp_wmem[2]."""
WRITE_PIECE_BYTES: Final = 65536
"""A long write is taken in such pieces where TCP_NOTSENT_LOWAT is set."""

# The end.
TIME_WAIT_S: Final = 60.0
FIN_WAIT_S: Final = 60.0
"""How long a closed socket waits for the peer's FIN."""
KEEPALIVE_IDLE_S: Final = 7200
KEEPALIVE_INTERVAL_S: Final = 75
KEEPALIVE_PROBES: Final = 9

# Sizes.
LEAST_MSS: Final = 536
"""Of a peer that says nothing (RFC 9293, 3.7.1), and the least that a path is taken down to."""
LOOPBACK_MTU: Final = 65536
ISN_TICK_S: Final = 64e-9
"""Initial sequence numbers rise by one each (RFC 6528)."""

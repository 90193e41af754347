"""Constants of TCP, with their units. They are Linux's defaults unless stated otherwise."""

from typing import Final

INFINITY: Final = float("inf")

# Handshake.
SYN_TIMEOUT_S: Final = 1.0
"""Time in seconds until a SYN is retransmitted. It doubles with each retransmission (RFC 6298,
section 5.7).
"""
SYN_RETRIES: Final = 6
"""Retransmissions of a SYN (net.ipv4.tcp_syn_retries). ETIMEDOUT follows after 127 s."""
SYN_ACK_RETRIES: Final = 5
"""Retransmissions of a SYN with ACK (net.ipv4.tcp_synack_retries)."""
SYN_WINDOW_BYTES: Final = 65535
"""Maximum window of a SYN, whose window is never scaled."""

# Retransmission.
RTO_MIN_S: Final = 0.2
RTO_MAX_S: Final = 120.0
RTO_RETRIES: Final = 15
"""Maximum of unanswered retransmissions (net.ipv4.tcp_retries2)."""
GIVE_UP_S: Final = 924.6
"""Time in seconds without an acknowledgement after which a connection fails with ETIMEDOUT: the sum
of RTO_RETRIES timeouts that double from RTO_MIN_S up to RTO_MAX_S.
"""
ORPHAN_RETRIES: Final = 8
"""Number of consecutive timeouts after which a connection that the program has closed is
dropped.
"""
PROBE_LEAST_S: Final = 0.002
"""Time in seconds that is added to two round trips before a tail loss probe (RFC 8985, section
7.2).
"""
REORDERED_SEGMENTS: Final = 3
"""Number of segments received beyond a gap after which the gap counts as lost at once (RFC 5681:
DupThresh).
"""

# Acknowledgements.
DELAYED_ACK_S: Final = 0.04
DELAYED_ACK_MOST_S: Final = 0.2
"""Time in seconds for which the ACK of a SYN waits for data that carries it, if the program has
turned TCP_QUICKACK off (TCP_DELACK_MAX).
"""
QUICK_ACKS: Final = 16
"""Number of segments that are acknowledged without delay, at the start or after a pause."""
SACK_BLOCKS: Final = 3
"""Number of SACK blocks that fit beside the timestamps option (RFC 2018)."""

# Congestion.
INITIAL_WINDOW: Final = 10
"""Initial congestion window in segments (RFC 6928)."""

# Buffers, in bytes.
RECEIVE_BUFFER_BYTES: Final = 131072
"""Initial receive buffer (net.ipv4.tcp_rmem[1]). Half of it is announced as the window."""
RECEIVE_BUFFER_MAX_BYTES: Final = 6291456
"""Limit of the receive buffer's automatic growth (net.ipv4.tcp_rmem[2])."""
SEND_BUFFER_BYTES: Final = 87040
"""Bytes that a program can write on a new connection before it must wait. This limit grows with the
congestion window.
"""
SEND_BUFFER_MAX_BYTES: Final = 4194304
"""Limit of the send buffer's automatic growth (net.ipv4.tcp_wmem[2])."""
WRITE_PIECE_BYTES: Final = 65536
"""Maximum size of one write if TCP_NOTSENT_LOWAT is set."""

# The end.
TIME_WAIT_S: Final = 60.0
FIN_WAIT_S: Final = 60.0
"""Time in seconds that a closed socket waits for the peer's FIN."""
KEEPALIVE_IDLE_S: Final = 7200
KEEPALIVE_INTERVAL_S: Final = 75
KEEPALIVE_PROBES: Final = 9

# Sizes.
LEAST_MSS: Final = 536
"""MSS in bytes of a peer that announces none (RFC 9293, section 3.7.1), and the minimum for any
route.
"""
LOOPBACK_MTU: Final = 65536
ISN_TICK_S: Final = 64e-9
"""Time in seconds in which the initial sequence number increases by one (RFC 6528)."""

"""Every constant of the transport, with its unit."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Frames (docs/spec/lane.md). Part of the protocol: both sides must agree.
ALPN: Final = b"shoal/1"
TIE: Final = b"shoal-tie/"
"""A second name that clients offer and nobody chooses: 16 hex digits behind it say which of two
that began as clients stays one."""
TIE_DIGITS: Final = 16
PROTOCOL_VERSIONS: Final = (1, 1)
"""The lowest and the highest version of the lane that this code speaks."""
FRAME_PAYLOAD_BYTES: Final = 64 * KIB
FRAME_HEAD_BYTES: Final = 32 * KIB
METHOD_BYTES: Final = 64
CODE_BYTES: Final = 32
HELLO_BYTES: Final = 4 * KIB
INCARNATION_BYTES: Final = 16

# Limits (bytes, counts, seconds); `Limits` says what each one bounds.
MESSAGE_BYTES: Final = 16 * MIB
STREAM_WINDOW_BYTES: Final = 1 * MIB
LINK_WINDOW_BYTES: Final = 16 * MIB
STREAMS: Final = 64
CALLS: Final = 256
BACKLOG_BYTES: Final = 32 * MIB
TOTAL_BYTES: Final = 512 * MIB
LINKS: Final = 512
HALF_OPEN: Final = 128
HALF_OPEN_PER_SUBNET: Final = 8
HALF_OPEN_LOOPBACK: Final = 128
HANDSHAKE_S: Final = 10.0
IDLE_S: Final = 2.0
SILENT_S: Final = 3.5
QUIET_S: Final = 4.5
GRACE_S: Final = 20.0
HOLD_S: Final = 120.0

# The core's own pace.
REORDERED_IDS: Final = 16 * KIB
"""Ids a receiver remembers above the lowest it has not seen, a count."""
ACK_FRAMES: Final = 64
ACK_BYTES: Final = 1 * MIB
"""An acknowledgement goes out by itself after so many frames or bytes."""
PATIENCE: Final = 1.25
"""So many times longer than `IDLE_S` the side that was dialled waits before it pings."""
PING_S: Final = 30.0
"""A busy link measures its round trip at least this often."""
DOUBT_S: Final = 0.5
DOUBT_RTTS: Final = 3
"""A connection is pinged after so many seconds and round trips with frames under way and nothing
heard, and left for another one as long after that."""
SUSPECT_S: Final = 1.5
"""So long, in seconds, after the last byte a way beside a doubtful relayed one is looked for."""
UNKNOWN_RTT_S: Final = 0.3
"""What the round trip counts as before the first pong, in seconds."""
LEGS: Final = 3
"""Connections that carry one link, a count."""
REDUNDANT_S: Final = 15.0
"""After so many seconds a second connection of the same way and medium is given up."""
STANDBY_S: Final = 10.0
"""Seconds without a byte before a connection that carries nothing is pinged."""
FRAME_OVERHEAD_BYTES: Final = 64
"""What a frame costs beside its bytes, so that empty ones are bounded too."""

# The shell's own pace.
BATCH_BYTES: Final = 256 * KIB
SMALL_BATCH_BYTES: Final = 16 * KIB
"""Bytes encrypted ahead of the kernel, which a token may have to wait behind."""
BATCH_S: Final = (0.005, 0.02)
"""A full batch that left faster, in seconds, doubles the next; one that left slower halves it."""
READ_BYTES: Final = 256 * KIB
SMALL_READ_BYTES: Final = 16 * KIB
TURN_S: Final = 0.01
"""A batch of frames that took longer, in seconds, makes the next read a small one."""
SEND_AHEAD_BYTES: Final = 128 * KIB
"""Bytes a stream's sender may run ahead of the wire."""
SMALL_PAYLOAD_BYTES: Final = 16 * KIB
"""Payloads up to this are copied, so that they do not pin the buffer they came in."""
TICK_S: Final = 0.25
"""Between two looks, in seconds, at which links are quiet; well under `STALL_S`."""
HURRY_S: Final = 0.05
"""The same while one of them has gone quiet with frames under way."""
COALESCE_S: Final = 100e-6
"""Frames queued this soon after a direct write wait for the writer and leave together."""
REDIAL_S: Final = 0.25
"""Between two attempts to resume a link."""
RESTORE_S: Final = 1.0
"""The least time, in seconds, a lost link gets to find a connection again."""
ROUND_S: Final = (3.0, 10.0)
"""A round of looking for a path holds up the next for so many seconds, in the first `GRACE_S` and
later."""
PROBE_S: Final = 1.0
"""Between two looks, in seconds, whether the peer that dialled still listens."""
DUPLICATE_S: Final = 2.0
"""How long a dial that met the peer's own waits, in seconds, for that link."""
STALL_S: Final = 0.5
"""A timer this late means our own loop stood still: the peer is not to blame."""
ACCEPT_PAUSE_S: Final = 0.01
ACCEPT_BURST: Final = 16
"""With more half-open connections than this, accepts are this many seconds apart."""
LINGER_S: Final = 0.25
"""How long a connection stays, in seconds, for the peer to read our last words."""
REFUSAL_S: Final = 1.0
"""How long a refusal may take to leave before its connection is closed."""

# Peers: what is looked at before anything is known of them.
ADDRESS_LETTERS: Final = 400
CERTIFICATE_BYTES: Final = 4 * KIB
TLS_HANDSHAKE_BYTES: Final = 64 * KIB

# Connections of libp2p programs (libp2p.py), which may only identify and ping.
LIBP2P_CONNECTIONS: Final = 16
LIBP2P_CONNECTION_BYTES: Final = 512 * KIB
"""What one may send us in its whole life: the muxer below keeps to no window."""
LIBP2P_OPEN_STREAMS: Final = 8
LIBP2P_STREAMS: Final = 256
"""Streams in a connection's whole life, a count."""
LIBP2P_READ_BYTES: Final = 4 * KIB
LIBP2P_RATE: Final = 16 * KIB
LIBP2P_BURST_BYTES: Final = 128 * KIB
"""Bytes per second, and at once, from all of them together: 4 bytes can cost us 80 µs."""
LIBP2P_IDLE_S: Final = 60.0
"""Without an answered request, after which the connection is closed."""

# The ladder (ladder.py, climb.py).
STAGGER_S: Final = 0.25
"""Between two addresses of a peer that are tried, in seconds (RFC 8305, section 8)."""
CLIMB_S: Final = 10.0
"""How long one address may take, in seconds."""
CLIMB_ADDRESSES: Final = 8
CLIMB_CIRCUITS: Final = 4
FIND_S: Final = 0.5
"""Between two rounds of looking for a path of a link that has none, in seconds."""
PUNCH_PAUSES_S: Final = (4.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)
"""After which a relayed link is punched for again, in seconds; a change of the network comes
between."""
NETWORK_S: Final = 2.0
"""Between two looks at the own addresses, in seconds."""
SLEPT_S: Final = 5.0
"""The wall clock this far ahead of where it was means that this machine slept."""
DIALBACK_BYTES: Final = 17
"""A byte that says so, and the nonce (docs/spec/reach.md)."""

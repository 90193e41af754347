"""Constants of the libp2p implementation, with their units."""

from typing import Final

from ..defaults import KIB, MIB

# Wire formats (docs/spec/libp2p.md).
PEER_ID_BYTES: Final = 64
LINE_BYTES: Final = 256
"""Largest size of a multistream-select line with its newline, in bytes."""
LINES: Final = 16
"""Largest number of proposals that are answered in a negotiation."""
NOISE_MESSAGE_BYTES: Final = 65535
NOISE_HANDSHAKE_BYTES: Final = 4 * KIB
"""Largest handshake message in bytes. An RSA key of 8,192 bits and its signature take 2.2 KiB."""
YAMUX_WINDOW_BYTES: Final = 256 * KIB
"""Bytes that a side may send on a new stream, as the protocol prescribes."""
YAMUX_CREDIT: Final = (1 << 32) - 1
"""Largest credit on a stream that a peer may give to this side, in bytes."""
IDENTIFY_BYTES: Final = 8 * KIB
CIRCUIT_MESSAGE_BYTES: Final = 4 * KIB

# Limits for libp2p peers, which are never members.
CONNECTIONS: Final = 64
CONNECTIONS_PER_SUBNET: Final = 8
CONNECTIONS_LOOPBACK: Final = 64
STREAMS: Final = 64
HELD_BYTES: Final = 32 * MIB
TOTAL_BYTES: Final = 128 * MIB
RATE: Final = 1 * MIB
BURST_BYTES: Final = 4 * MIB
PEER_RATE: Final = 256 * KIB
PEER_BURST_BYTES: Final = 2 * MIB
READ_COST: Final = 128
FRAME_COST: Final = 64
STREAM_COST: Final = 4 * KIB
CALL_COST: Final = 4 * KIB
PING_COST: Final = 2 * KIB
HANDSHAKE_COST: Final = 16 * KIB
"""Costs of processing a read, a frame, and so on, as bytes that are charged to the rate limiters in
addition to the received bytes."""
IDLE_S: Final = 60.0
REQUEST_S: Final = 15.0
CALLS: Final = 8
CALLS_TOTAL: Final = 64
CALL_BYTES: Final = 1 * MIB
CALL_S: Final = 60.0

# Connections and streams.
READ_BYTES: Final = 32 * KIB
UNSENT_BYTES: Final = 256 * KIB
"""Unsent bytes of a connection above which its streams wait. With twice as many, the connection
stops reading."""
UNSENT_S: Final = 30.0
"""Seconds after which a connection is closed if bytes wait to be sent and the peer accepts none."""
PING_S: Final = 15.0
SILENT_S: Final = 40.0
"""A connection that stays open for a reservation is pinged after `PING_S` seconds of silence, and
closed after `SILENT_S` seconds."""
DIAL_S: Final = 15.0
CIRCUIT_BYTES: Final = 128 * KIB
CIRCUITS: Final = 8
"""Largest number of concurrent circuits through one libp2p relay."""
RENEW: Final = 0.5
"""Fraction of a reservation's life after which it is renewed."""
RESERVED_S: Final = (60.0, 7200.0)
"""Shortest and longest life of a reservation that is accepted, in seconds."""

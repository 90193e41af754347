"""Every constant of the libp2p side, with its unit."""

from typing import Final

from ..defaults import KIB, MIB

# Wire formats (docs/spec/libp2p.md).
PEER_ID_BYTES: Final = 64
LINE_BYTES: Final = 256
"""The longest line of multistream-select that is read, newline included."""
LINES: Final = 16
"""Proposals of one negotiation that are answered, a count."""
NOISE_MESSAGE_BYTES: Final = 65535
NOISE_HANDSHAKE_BYTES: Final = 4 * KIB
"""The longest handshake message: an RSA key of 8,192 bits and its signature take 2.2 KiB."""
YAMUX_WINDOW_BYTES: Final = 256 * KIB
"""What a side may send on a new stream; part of the protocol."""
YAMUX_CREDIT: Final = (1 << 32) - 1
"""The most a peer may ever let us send ahead on a stream, in bytes."""
IDENTIFY_BYTES: Final = 8 * KIB
CIRCUIT_MESSAGE_BYTES: Final = 4 * KIB
PROTOBUF_FIELDS: Final = 64
"""Fields of one protobuf message that are read, a count."""

# What libp2p peers, none of them members, may cost.
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
"""What handling costs us beside the bytes, in bytes of the rates."""
IDLE_S: Final = 60.0
REQUEST_S: Final = 15.0
CALLS: Final = 8
CALLS_TOTAL: Final = 64
CALL_BYTES: Final = 1 * MIB
CALL_S: Final = 60.0

# The shell's own pace.
READ_BYTES: Final = 32 * KIB
UNSENT_BYTES: Final = 256 * KIB
"""Unsent bytes of a connection beyond which streams wait; at twice that we stop reading."""
UNSENT_S: Final = 30.0
"""How long a peer may take nothing of what waits for it, in seconds."""
PING_S: Final = 15.0
SILENT_S: Final = 40.0
"""A connection that is kept for a reservation is asked after so many silent seconds, and closed
after so many."""
DIAL_S: Final = 15.0
CIRCUITS: Final = 8
"""Circuits at once that one foreign relay may bring, a count."""
RENEW: Final = 0.5
"""The part of a reservation's life after which it is renewed."""
RESERVED_S: Final = (60.0, 7200.0)
"""The shortest and the longest life of a reservation that is believed, in seconds."""

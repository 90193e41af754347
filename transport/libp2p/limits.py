"""Limits for libp2p peers, which are never members."""

from dataclasses import dataclass

from ..defaults import HANDSHAKE_S
from . import defaults


@dataclass(frozen=True, slots=True)
class Libp2pLimits:
    """Limits on everything that a libp2p peer can make this node store, do or wait for."""

    connections: int = defaults.CONNECTIONS
    """Concurrent connections, a count; a further one is closed."""
    connections_per_subnet: int = defaults.CONNECTIONS_PER_SUBNET
    """Connections from one /24 (IPv4) or /64 (IPv6), a count (`limits.Sources`)."""
    connections_loopback: int = defaults.CONNECTIONS_LOOPBACK
    """Connections from this machine, a count."""
    streams: int = defaults.STREAMS
    """Open streams of a peer per connection, a count; a further one is reset."""
    held_bytes: int = defaults.HELD_BYTES
    """Unread bytes of one connection; beyond it the connection is closed."""
    total_bytes: int = defaults.TOTAL_BYTES
    """Unread bytes of all connections; beyond it the one with the most is closed."""
    rate: int = defaults.RATE
    """Bytes per second accepted from all connections together; handling (a frame, a stream, a
    call) is charged as bytes too."""
    burst_bytes: int = defaults.BURST_BYTES
    """Bytes accepted at once after a silence, from all connections together."""
    peer_rate: int = defaults.PEER_RATE
    """Bytes per second accepted from one connection."""
    peer_burst_bytes: int = defaults.PEER_BURST_BYTES
    """Bytes accepted at once after a silence, from one connection."""
    handshake_s: float = HANDSHAKE_S
    """Seconds from the first byte to a secured and multiplexed connection."""
    idle_s: float = defaults.IDLE_S
    """Seconds without an answered request after which a connection is closed."""
    request_s: float = defaults.REQUEST_S
    """Seconds for a peer to negotiate and send its request on a stream, and to close it."""
    calls: int = defaults.CALLS
    """Concurrent calls of one connection, a count; a further one is refused as `busy`."""
    calls_total: int = defaults.CALLS_TOTAL
    """Concurrent calls of all connections together, a count."""
    call_bytes: int = defaults.CALL_BYTES
    """Largest request and reply of a call, in bytes."""
    call_s: float = defaults.CALL_S
    """Seconds that a handler may take for a call."""
    circuits: int = defaults.CIRCUITS
    """Concurrent circuits that one foreign relay may bring, a count."""

"""What libp2p peers, none of them members, may cost us."""

from dataclasses import dataclass

from ..defaults import HANDSHAKE_S
from . import defaults


@dataclass(frozen=True, slots=True)
class Libp2pLimits:
    """Bounds on everything a libp2p peer can make us keep, do or wait for."""

    connections: int = defaults.CONNECTIONS
    """Connections at once, a count; a further one is closed."""
    connections_per_subnet: int = defaults.CONNECTIONS_PER_SUBNET
    """Connections from one /24 (IPv4) or /64 (IPv6), a count (`limits.Sources`)."""
    connections_loopback: int = defaults.CONNECTIONS_LOOPBACK
    """The same from this machine, a count."""
    streams: int = defaults.STREAMS
    """Streams a peer holds open on a connection, a count; a further one is reset."""
    held_bytes: int = defaults.HELD_BYTES
    """Bytes of one connection that nobody has read yet; beyond it the connection ends."""
    total_bytes: int = defaults.TOTAL_BYTES
    """The same of all connections together; beyond it the one that holds most ends."""
    rate: int = defaults.RATE
    """Bytes per second taken from all connections together; what handling costs beside the
    bytes (a frame, a stream, a call) counts as bytes too."""
    burst_bytes: int = defaults.BURST_BYTES
    """Bytes taken at once, after a silence, from all connections together."""
    peer_rate: int = defaults.PEER_RATE
    """Bytes per second taken from one connection."""
    peer_burst_bytes: int = defaults.PEER_BURST_BYTES
    """Bytes taken at once, after a silence, from one connection."""
    handshake_s: float = HANDSHAKE_S
    """Seconds from the first byte to a secured, multiplexed connection."""
    idle_s: float = defaults.IDLE_S
    """Seconds without an answered request after which a connection is closed."""
    request_s: float = defaults.REQUEST_S
    """Seconds for a peer to say its protocol and its request on a stream, and to take the end."""
    calls: int = defaults.CALLS
    """Calls of one connection that are answered at once, a count; a further one is `busy`."""
    calls_total: int = defaults.CALLS_TOTAL
    """The same of all connections together, a count."""
    call_bytes: int = defaults.CALL_BYTES
    """Largest request and reply of a call, in bytes."""
    call_s: float = defaults.CALL_S
    """Seconds a handler may take for a call."""
    circuits: int = defaults.CIRCUITS
    """Circuits at once that one foreign relay may bring us, a count."""

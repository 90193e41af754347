"""Limits for libp2p peers, which are always strangers."""

from dataclasses import dataclass

from ..defaults import HANDSHAKE_S
from . import defaults


@dataclass(frozen=True, slots=True)
class Libp2pLimits:
    """Limits of everything that a libp2p peer can make this node store, do or wait for."""

    connections: int = defaults.CONNECTIONS
    """Largest number of concurrent connections. A further one is closed."""
    connections_per_subnet: int = defaults.CONNECTIONS_PER_SUBNET
    """Largest number of connections from one /24 (IPv4) or /64 (IPv6) (see `limits.Sources`)."""
    connections_loopback: int = defaults.CONNECTIONS_LOOPBACK
    """Largest number of connections from this machine."""
    streams: int = defaults.STREAMS
    """Largest number of open streams of a peer per connection. A further one is reset."""
    held_bytes: int = defaults.HELD_BYTES
    """Largest number of unread bytes of one connection. If there are more, it is closed."""
    total_bytes: int = defaults.TOTAL_BYTES
    """Largest number of unread bytes of all connections. If there are more, the connection with the
    most is closed."""
    rate: int = defaults.RATE
    """Bytes per second accepted from all connections together. The processing of a frame, a stream
    or a call is also charged, as a number of bytes."""
    burst_bytes: int = defaults.BURST_BYTES
    """Largest burst after a silence from all connections together, in bytes."""
    peer_rate: int = defaults.PEER_RATE
    """Bytes per second accepted from one connection."""
    peer_burst_bytes: int = defaults.PEER_BURST_BYTES
    """Largest burst after a silence from one connection, in bytes."""
    handshake_s: float = HANDSHAKE_S
    """Time limit from the first byte to a secured and multiplexed connection, in seconds."""
    idle_s: float = defaults.IDLE_S
    """Seconds without a served request after which a connection is closed."""
    request_s: float = defaults.REQUEST_S
    """Time limit for a peer to negotiate and send its request on a stream, and again to close the
    stream, in seconds."""
    calls: int = defaults.CALLS
    """Largest number of concurrent calls of one connection. A further one is refused (`busy`)."""
    calls_total: int = defaults.CALLS_TOTAL
    """Largest number of concurrent calls of all connections together."""
    call_bytes: int = defaults.CALL_BYTES
    """Largest size of a call's request, and of its reply, in bytes."""
    call_s: float = defaults.CALL_S
    """Time limit of a call in seconds. The handler may use half of it."""
    circuit_bytes: int = defaults.CIRCUIT_BYTES
    """Bytes that a circuit between two libp2p peers may carry in both directions together."""
    circuits: int = defaults.CIRCUITS
    """Largest number of concurrent circuits through one libp2p relay."""

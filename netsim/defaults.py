"""Constants of the simulator, with their units."""

from typing import Final

EPOCH: Final = 1_900_000_000.0
"""Unix time, in seconds, at the start of every simulation."""

EVENTS_PER_TURN: Final = 10_000
"""Maximum number of events that run while no task can run, before trio checks for signals."""
QUIET_S: Final = 7 * 86_400.0
"""Maximum simulated time in seconds without a runnable task or a deadline. After it, the run ends
even if timers of light hosts still fire.
"""

LOOPBACK_S: Final = 20e-6
"""Latency in seconds of a packet from a host to itself."""
DNS_ROUND_TRIP_S: Final = 0.02
"""Time in seconds from a query to the system's resolver until its reply."""

# Sockets.
EPHEMERAL: Final = (32768, 60999)
"""First and last port chosen for a socket that requests no port, as in Linux."""
LOOPBACK_MTU: Final = 65536
DATAGRAM_BYTES: Final = 65507
RECEIVE_BUFFER_BYTES: Final = 212992
"""Receive buffer of a UDP socket in bytes (Linux's net.core.rmem_default). Each datagram uses its
own size plus `DATAGRAM_OVERHEAD_BYTES`.
"""
DATAGRAM_OVERHEAD_BYTES: Final = 512
TURN: Final = 16
"""Number of socket calls that succeed at once before one of them lets other tasks run."""

# Light hosts.
LIGHT_PORT: Final = 4001
"""UDP port of a light host unless another one is given."""
ADVANCE_TURNS: Final = 64
"""Number of equal intervals into which `World.advance` divides its time. Python's garbage may be
collected after each interval.
"""

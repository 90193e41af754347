"""Constants of the simulator, with their units."""

from typing import Final

EPOCH: Final = 1_900_000_000.0
"""Wall-clock seconds since 1970 at the start of every simulation."""

EVENTS_PER_TURN: Final = 10_000
"""Events run in a row while no task can run, before trio checks for signals."""
QUIET_S: Final = 7 * 86_400.0
"""Seconds that timers without tasks may run while every task waits without a deadline."""

LOOPBACK_S: Final = 20e-6
"""Seconds from a host to itself."""
DNS_ROUND_TRIP_S: Final = 0.02
"""Seconds from a query to the system's resolver to its reply."""

# Sockets.
EPHEMERAL: Final = (32768, 60999)
"""Ports chosen for a socket that asks for none: Linux's range."""
LOOPBACK_MTU: Final = 65536
DATAGRAM_BYTES: Final = 65507
RECEIVE_BUFFER_BYTES: Final = 212992
"""Receive buffer of a UDP socket (Linux's net.core.rmem_default); a datagram counts with its
overhead.
"""
DATAGRAM_OVERHEAD_BYTES: Final = 512
TURN: Final = 16
"""Socket calls that succeed at once before one lets other tasks run."""

# Light hosts.
LIGHT_PORT: Final = 4001
"""Their UDP port unless another one is given."""
ADVANCE_TURNS: Final = 64
"""Sections of a run without tasks, between which garbage may be collected."""

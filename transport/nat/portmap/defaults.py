"""Constants of port mapping, with their units."""

from dataclasses import dataclass
from typing import Final

LEASE_S: Final = 3600
"""Lease to request, in seconds. After that time the router drops the mapping of a crashed
node."""
RENEW_LEAST_S: Final = 20.0
"""Shortest time between two renewals of a lease, in seconds, even if the lease is shorter."""
CHECK_S: Final = 60.0
"""Time between two checks that the gateway still has the mapping, in seconds."""
SILENT_S: Final = 15.0
"""Time until the next check if the gateway has not replied to a check, in seconds."""
SILENT_LOOKS: Final = 3
"""Number of successive checks without a reply after which the mapper probes all protocols again."""
LOOK_S: Final = 10.0
"""Time between two checks whether the gateway or our own address has changed, in seconds."""
RETRY_S: Final = (60.0, 1800.0)
"""The shortest and the longest pause after a round of probing in which no protocol worked, in
seconds. The pause doubles after every such round."""
SPREAD_S: Final = 5.0
"""Longest random delay before the node reacts to an announcement of the gateway, in seconds.
Without a delay, all hosts behind the gateway would send requests at once (RFC 6886, section 3.6;
RFC 6887, section 14.1)."""
HUSH_S: Final = 10.0
"""Shortest time between two renewals because of announcements or `PortMapper.refresh`, in
seconds."""
HEADSTART_S: Final = 0.05
"""Time for which a protocol waits for each better one that may reply at the same time, in
seconds."""
END_S: Final = 1.0
"""Time limit for the removal of mappings during shutdown, in seconds."""
ALIGN_TRIES: Final = 4
"""Largest number of attempts to move the TCP or the UDP mapping to the outer port of the other."""
RANDOM_PORTS: Final = (20000, 60000)
"""Range of outer ports to try if another computer has the requested one: (first, last plus 1)."""
PORT_TRIES: Final = 8
"""Number of random outer ports to try with UPnP."""

FIRST_WAIT_S: Final = 0.25
TRIES: Final = 4
"""NAT-PMP and PCP: the first timeout in seconds, which doubles with every attempt, and the number
of attempts. RFC 6886, section 3.1, recommends 9 attempts. 4 are enough, because a LAN that loses 4
packets in succession is not usable anyway."""
DATAGRAM_BYTES: Final = 1100
"""Size of the longest datagram that is parsed, in bytes (RFC 6887, section 7)."""

SEARCH_S: Final = 2
"""Time over which devices may spread their replies to a search, in seconds (the field MX of
SSDP)."""
SEARCH_TRIES: Final = 2
"""Number of searches before UPnP is given up."""
LOCATIONS: Final = 4
"""Largest number of device descriptions to read, and of services in one of them to try."""
SSDP_BYTES: Final = 2048
"""Size of the longest reply to a search that is parsed, in bytes."""
URL_LETTERS: Final = 512
"""Length of the longest URL that is parsed, in characters."""
HTTP_S: Final = 5.0
"""Time limit for an HTTP request and its whole response, in seconds."""
HEAD_BYTES: Final = 8 * 1024
"""Size of the largest head of a response, in bytes."""
BODY_BYTES: Final = 128 * 1024
"""Size of the largest body of a response, in bytes. Descriptions of home routers have 2 to 30
kB."""
XML_DEPTH: Final = 32
"""Largest depth of nested elements in a document."""
XML_ELEMENTS: Final = 4096
"""Largest number of elements in a document."""


@dataclass(frozen=True, slots=True)
class PortmapLimits:
    """Times of a `PortMapper` that its caller may set."""

    lease_s: int = LEASE_S
    """Lease to request, in seconds."""
    check_s: float = CHECK_S
    """Time between two checks that the gateway still has the mapping, in seconds."""
    look_s: float = LOOK_S
    """Time between two checks whether the gateway or our own address has changed, in seconds."""
    end_s: float = END_S
    """Time limit for the removal of mappings during shutdown, in seconds."""

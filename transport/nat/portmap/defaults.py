"""Constants of port mapping, with their units."""

from dataclasses import dataclass
from typing import Final

LEASE_S: Final = 3600
"""Lease to request, in seconds: the router drops the mapping of a crashed node after an hour."""
RENEW_LEAST_S: Final = 20.0
"""Shortest time between two renewals of a lease, in seconds, however short the lease is."""
CHECK_S: Final = 60.0
"""Time between two checks that the gateway still has the mapping, in seconds."""
SILENT_S: Final = 15.0
"""Time until the next check after one without a reply, in seconds."""
SILENT_LOOKS: Final = 3
"""Number of checks in a row without a reply after which the mapper starts again with probing."""
LOOK_S: Final = 10.0
"""Time between two checks whether the gateway or our own address changed, in seconds."""
RETRY_S: Final = (60.0, 1800.0)
"""Pause after a round in which no protocol worked, in seconds: the first pause and the longest
pause. The pause doubles after every such round."""
SPREAD_S: Final = 5.0
"""Longest random delay before the node reacts to an announcement, in seconds, so that not all hosts
behind a gateway send requests at once (RFC 6886, section 3.6; RFC 6887, section 14.1)."""
HUSH_S: Final = 10.0
"""Shortest time between two renewals that announcements or `refresh` cause, in seconds."""
HEADSTART_S: Final = 0.05
"""Time, in seconds, that a protocol waits for a better one that replies at the same time."""
END_S: Final = 1.0
"""Longest time that shutting down waits for the removal of mappings, in seconds."""
ALIGN_TRIES: Final = 4
"""Number of attempts to move TCP or UDP so that both have the same outer port."""
RANDOM_PORTS: Final = (20000, 60000)
"""Range of outer ports to try if another computer has the requested one: first, and last plus 1."""
PORT_TRIES: Final = 8
"""Number of outer ports to try with UPnP."""

FIRST_WAIT_S: Final = 0.25
TRIES: Final = 4
"""NAT-PMP and PCP: the first timeout in seconds, which doubles with every attempt, and the number
of attempts. RFC 6886 (section 3.1) sends 9 times; we send 4 times, because a LAN that loses
4 packets in a row is not usable anyway."""
DATAGRAM_BYTES: Final = 1100
"""Longest datagram that is parsed, in bytes (RFC 6887, section 7)."""

SEARCH_S: Final = 2
"""Time over which devices may spread their replies, in seconds (MX of SSDP)."""
SEARCH_TRIES: Final = 2
LOCATIONS: Final = 4
"""Largest number of descriptions to read, and of services to try."""
SSDP_BYTES: Final = 2048
URL_LETTERS: Final = 512
HTTP_S: Final = 5.0
"""Timeout of a request with its whole response, in seconds."""
HEAD_BYTES: Final = 8 * 1024
BODY_BYTES: Final = 128 * 1024
"""Largest body of a response, in bytes; descriptions of home routers have 2 to 30 kB."""
XML_DEPTH: Final = 32
XML_ELEMENTS: Final = 4096


@dataclass(frozen=True, slots=True)
class PortmapLimits:
    """Times of a `PortMapper` that the caller may set; the other constants follow the protocols."""

    lease_s: int = LEASE_S
    """Lease to request, in seconds."""
    check_s: float = CHECK_S
    """Time between two checks that the gateway still has the mapping, in seconds."""
    look_s: float = LOOK_S
    """Time between two checks whether the gateway or our own address changed, in seconds."""
    end_s: float = END_S
    """Longest time that shutting down waits for the removal of mappings, in seconds."""

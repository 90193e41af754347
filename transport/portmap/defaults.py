"""Every constant of port mapping, with its unit."""

from dataclasses import dataclass
from typing import Final

LEASE_S: Final = 3600
"""Asked for, in seconds: a mapping left behind by a crash is gone after an hour."""
RENEW_LEAST_S: Final = 20.0
"""A lease is not renewed more often than this, in seconds, however short it is."""
CHECK_S: Final = 60.0
"""Between two looks, in seconds, whether the gateway still knows the mapping."""
SILENT_S: Final = 15.0
"""Before the next look, in seconds, after one without an answer."""
SILENT_LOOKS: Final = 3
"""Looks without an answer, a count, after which everything begins anew."""
LOOK_S: Final = 10.0
"""Between two looks, in seconds, whether the gateway or the own address is another."""
RETRY_S: Final = (60.0, 1800.0)
"""After a round in which nothing worked, in seconds: the first pause, doubled up to the last."""
SPREAD_S: Final = 5.0
"""An announcement is acted upon after 0 to so many seconds, so that not all hosts behind a
gateway ask at once (RFC 6886, section 3.6; RFC 6887, section 14.1)."""
HUSH_S: Final = 10.0
"""Announcements and `refresh` lead to at most one renewal in so many seconds."""
HEADSTART_S: Final = 0.05
"""How long, in seconds, a protocol waits for a better one that answers at the same time."""
END_S: Final = 1.0
"""How long, in seconds, the end may wait until mappings are removed."""
ALIGN_TRIES: Final = 4
"""How often, a count, TCP or UDP is moved to get one number for both."""
RANDOM_PORTS: Final = (20000, 60000)
"""Outer ports to try where the wished one is another's: from, below."""
PORT_TRIES: Final = 8
"""Outer ports to try with UPnP, a count."""

FIRST_WAIT_S: Final = 0.25
TRIES: Final = 4
"""NAT-PMP and PCP: the first wait for an answer in seconds, doubled with every try; a count
(RFC 6886, section 3.1, which tries 9 times; a LAN that loses 4 in a row has no use for us)."""
DATAGRAM_BYTES: Final = 1100
"""Longer ones are not looked at (RFC 6887, section 7)."""

SEARCH_S: Final = 2
"""Over how many seconds devices may spread their answers (MX of SSDP)."""
SEARCH_TRIES: Final = 2
LOCATIONS: Final = 4
"""Descriptions that are read, and services that are tried, counts."""
SSDP_BYTES: Final = 2048
URL_LETTERS: Final = 512
HTTP_S: Final = 5.0
"""A request and its whole answer, in seconds."""
HEAD_BYTES: Final = 8 * 1024
BODY_BYTES: Final = 128 * 1024
"""Descriptions of home routers have 2 to 30 kB."""
XML_DEPTH: Final = 32
XML_ELEMENTS: Final = 4096


@dataclass(frozen=True, slots=True)
class PortmapLimits:
    """Times of a `PortMapper` that its owner may set; the other constants are protocol."""

    lease_s: int = LEASE_S
    """Lease asked for, in seconds."""
    check_s: float = CHECK_S
    """Between two looks, in seconds, whether the gateway still knows the mapping."""
    look_s: float = LOOK_S
    """Between two looks, in seconds, whether gateway or own address changed."""
    end_s: float = END_S
    """How long, in seconds, the end may wait until mappings are removed."""

"""All constants of LAN discovery, with their units."""

from dataclasses import dataclass
from typing import Final

GROUP: Final = "224.0.0.251"
PORT: Final = 5353
SERVICE: Final = (b"_shoal", b"_udp", b"local")
TTL_S: Final = 120
"""Seconds for which others may cache our records (RFC 6762, section 10: host names)."""
LONGEST_TTL_S: Final = 4500
"""Longest time for which records of others are cached, in seconds."""
GOODBYE_S: Final = 10.0
"""Seconds for which a peer is remembered after its goodbye (RFC 6762, section 10.1, has 1). A peer
that keeps coming and going is reported no more often than this."""
FIRST_WAIT_S: Final = (0.02, 0.12)
"""Random delay before the first query and before a reply, in seconds (sections 5.2 and 6)."""
QUERY_S: Final = (1.0, 3600.0)
"""Seconds between two queries: first, and longest; doubled each time (section 5.2)."""
REFRESH: Final = (0.80, 0.85, 0.90, 0.95)
"""Shares of a record's life at which it is queried again (section 5.2)."""
REFRESH_SPREAD: Final = 0.02
ANSWER_S: Final = 1.0
"""Least time between two equal replies on an interface, in seconds (section 6)."""
ANNOUNCEMENTS: Final = (0.0, 1.0)
"""Times of our announcements on a new interface, in seconds (section 8.3)."""
KNOWN_ANSWERS: Final = 16
"""Peers that a query lists as known, a count: as many as fit a packet of 1,500 bytes."""
LOOK_S: Final = 10.0
INTERFACES: Final = 8
PEERS: Final = 128
PER_SOURCE: Final = 4
TAKEN_PER_S: Final = 100
TAKEN_BURST: Final = 300
NEWS_PER_S: Final = 2
NEWS_BURST: Final = 128

MESSAGE_BYTES: Final = 9000
"""RFC 6762, section 17."""
QUESTIONS: Final = 32
RECORDS: Final = 128
NAME_BYTES: Final = 255
LABEL_BYTES: Final = 63
LABELS: Final = 1024
"""Labels in all names of a message, pointers followed: 2 kB could encode 16,000."""
TEXT_BYTES: Final = 1024
"""Longest TXT record that is read, in bytes; ours has about 90."""


@dataclass(frozen=True, slots=True)
class LanLimits:
    """Limits for what the LAN may cost this node."""

    peers: int = PEERS
    """Peers at an address that are stored, a count; beyond it the next to expire is evicted."""
    per_source: int = PER_SOURCE
    """Peers that one address may announce, a count: nodes on one computer."""
    interfaces: int = INTERFACES
    """Interfaces used, a count."""
    taken_per_s: float = TAKEN_PER_S
    """Datagrams handled on an interface, per second."""
    taken_burst: int = TAKEN_BURST
    """Datagrams handled at once, a count."""
    news_per_s: float = NEWS_PER_S
    """New peers that an interface may report, per second: each of them is dialled."""
    news_burst: int = NEWS_BURST
    """New peers reported at once, a count."""
    look_s: float = LOOK_S
    """Seconds between two checks of the interfaces."""

"""All constants of LAN discovery, with their units."""

from dataclasses import dataclass
from typing import Final

GROUP: Final = "224.0.0.251"
PORT: Final = 5353
SERVICE: Final = (b"_shoal", b"_udp", b"local")
TTL_S: Final = 120
"""Time for which other hosts may cache our records, in seconds (RFC 6762, section 10, for host
names)."""
LONGEST_TTL_S: Final = 4500
"""Longest time for which this node caches the records of other hosts, in seconds."""
GOODBYE_S: Final = 10.0
"""Time for which a peer is remembered after its goodbye, in seconds (RFC 6762, section 10.1,
prescribes 1). A peer that joins and leaves repeatedly is reported at most once in this time."""
FIRST_WAIT_S: Final = (0.02, 0.12)
"""Shortest and longest random delay before the first query and before a reply, in seconds (RFC
6762, sections 5.2 and 6)."""
QUERY_S: Final = (1.0, 3600.0)
"""Time between two queries, in seconds: (the first one, the longest one). It is doubled after each
query (RFC 6762, section 5.2)."""
REFRESH: Final = (0.80, 0.85, 0.90, 0.95)
"""Parts of a record's lifetime after which the record is queried again (RFC 6762, section 5.2)."""
REFRESH_SPREAD: Final = 0.02
"""Largest random addition to the parts in `REFRESH`, so that not all hosts query at once (RFC 6762,
section 5.2)."""
ANSWER_S: Final = 1.0
"""Shortest time between two equal replies on an interface, in seconds (RFC 6762, section 6)."""
ANNOUNCEMENTS: Final = (0.0, 1.0)
"""Times of our announcements on a new interface, in seconds after it appeared (RFC 6762, section
8.3)."""
KNOWN_ANSWERS: Final = 16
"""Number of peers that a query lists as known, which need not reply. As many as this fit into a
packet of 1,500 bytes."""
LOOK_S: Final = 10.0
INTERFACES: Final = 8
PEERS: Final = 128
PER_SOURCE: Final = 4
TAKEN_PER_S: Final = 100
TAKEN_BURST: Final = 300
NEWS_PER_S: Final = 2
NEWS_BURST: Final = 128

MESSAGE_BYTES: Final = 9000
"""Largest message, in bytes (RFC 6762, section 17)."""
QUESTIONS: Final = 32
RECORDS: Final = 128
NAME_BYTES: Final = 255
LABEL_BYTES: Final = 63
LABELS: Final = 1024
"""Number of labels in all names of a message, counted after following pointers. With pointers, a
message of 2 kB could encode 16,000 labels."""
TEXT_BYTES: Final = 1024
"""Longest TXT record that is decoded, in bytes. The TXT record of a node has about 90."""


@dataclass(frozen=True, slots=True)
class LanLimits:
    """Limits on what other hosts on the LAN can cost this node."""

    peers: int = PEERS
    """Number of stored entries, each of which is a peer at an address. Above it, the entry that
    expires next is evicted."""
    per_source: int = PER_SOURCE
    """Number of peers that one IP address may announce. Several nodes may run on one computer."""
    interfaces: int = INTERFACES
    """Number of network interfaces that are used."""
    taken_per_s: float = TAKEN_PER_S
    """Datagrams processed per second on one interface."""
    taken_burst: int = TAKEN_BURST
    """Datagrams processed in a burst on one interface, a count."""
    news_per_s: float = NEWS_PER_S
    """New peers reported per second on one interface. Each of them is dialled."""
    news_burst: int = NEWS_BURST
    """New peers reported in a burst on one interface, a count."""
    look_s: float = LOOK_S
    """Time between two checks of which interfaces exist, in seconds."""

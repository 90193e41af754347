"""Every constant of LAN discovery, with its unit."""

from dataclasses import dataclass
from typing import Final

GROUP: Final = "224.0.0.251"
PORT: Final = 5353
SERVICE: Final = (b"_shoal", b"_udp", b"local")
TTL_S: Final = 120
"""How long others may keep what we say, in seconds (RFC 6762, section 10: names of hosts)."""
LONGEST_TTL_S: Final = 4500
"""What others say is kept no longer than this, in seconds."""
GOODBYE_S: Final = 10.0
"""How long a peer that said goodbye still counts, in seconds (RFC 6762, section 10.1, has 1): who
comes and goes all the time is told of no more often than this."""
FIRST_WAIT_S: Final = (0.02, 0.12)
"""Before the first query, and before an answer, in seconds: from, to (sections 5.2 and 6)."""
QUERY_S: Final = (1.0, 3600.0)
"""Between two queries, in seconds: at first, and the longest; doubled each time (section 5.2)."""
REFRESH: Final = (0.80, 0.85, 0.90, 0.95)
"""Parts of a record's life at which it is asked for again (section 5.2)."""
REFRESH_SPREAD: Final = 0.02
ANSWER_S: Final = 1.0
"""An interface says the same at most once in so many seconds (section 6)."""
ANNOUNCEMENTS: Final = (0.0, 1.0)
"""When a new interface hears of us, in seconds (section 8.3)."""
KNOWN_ANSWERS: Final = 16
"""Peers that a query names as known, a count: what fits a packet of 1,500 bytes."""
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
"""Of all names of a message, pointers followed: 2 kB can name 16,000."""
TEXT_BYTES: Final = 1024
"""Of a TXT record that is looked at; ours has about 90."""


@dataclass(frozen=True, slots=True)
class LanLimits:
    """What the LAN may cost us."""

    peers: int = PEERS
    """Places of peers that are kept, a count; the one that would end soonest gives way."""
    per_source: int = PER_SOURCE
    """Peers that one address may announce, a count: nodes of one computer."""
    interfaces: int = INTERFACES
    """Interfaces that are served, a count."""
    taken_per_s: float = TAKEN_PER_S
    """Datagrams looked at on an interface, per second."""
    taken_burst: int = TAKEN_BURST
    """The same at once, a count."""
    news_per_s: float = NEWS_PER_S
    """Peers not known before that an interface may tell of, per second: each is dialled."""
    news_burst: int = NEWS_BURST
    """The same at once, a count."""
    look_s: float = LOOK_S
    """Between two looks, in seconds, which interfaces there are."""

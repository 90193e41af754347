"""Constants of hole punching, with their units."""

from dataclasses import dataclass
from typing import Final

# Part of the protocol (docs/spec/punch.md): both sides must agree.
CANDIDATES: Final = 16
"""Largest number of addresses in one offer."""
UNSEEN: Final = 2
"""Largest number of addresses that are checked although no third node has seen the peer there."""
COMB: Final = 7
"""New sockets that a side opens from the second round on, a count. They make up the *comb*, which
helps if a router spoils a port because a packet arrived there too early (docs/spec/punch.md,
section 4)."""
COMB_STEP_S: Final = 0.025
"""Time between the first checks of two neighbouring sockets of the comb, in seconds."""
SECRET_BYTES: Final = 20
"""Size in bytes of the key with which the peer signs its checks (RFC 8445, section 5.3: at least
128 bits)."""
ATTEMPT_BYTES: Final = 8
"""Size of an attempt's name, in bytes."""
OFFER_BYTES: Final = 8 * 1024
"""Size of the largest offer and of the largest reply to one, in bytes."""

# Prediction (predict.py).
BIRTHDAY_SOCKETS: Final = 256
"""Sockets that the side behind the symmetric NAT opens in a birthday search, a count."""
BIRTHDAY_PROBES: Final = 1400
"""Ports of the symmetric NAT that the other side tries in a birthday search, a count."""
NAT_PORTS: Final = 65536 - 1024
"""Outer ports from which a NAT is assumed to choose (1024 to 65535), a count."""
SEQUENCE: Final = 64
"""Successive ports to try on a NAT that allocates ports sequentially, a count."""
DELTA: Final = 16
"""Largest step between successive ports of a NAT that allocates ports sequentially."""


@dataclass(frozen=True, slots=True)
class PunchLimits:
    """Limits of hole punching.

    They bound its cost for this node, for the peer, and for the owner of an address that the peer
    names.
    """

    target_datagrams: int = 1500
    """Datagrams to one IPv4 address or IPv6 /64 in a window, in all attempts together, a count. A
    larger network gets a multiple of it (`networks.targets`)."""
    target_syns: int = 60
    """TCP SYNs to one IPv4 address or IPv6 /64 in a window, in all attempts together, a count."""
    window_s: float = 600.0
    """Length of the window in which datagrams and SYNs are counted, in seconds."""
    unseen: tuple[float, float] = (16, 1 / 8)
    """Datagrams to one IPv6 /64 if no third node has seen the peer there and the peer has not
    replied from there: largest burst, and rate per second. A datagram has about 130 bytes."""
    unseen_total: tuple[float, float] = (256, 2.0)
    """Datagrams to all networks together in which no third node has seen the peer: largest burst,
    and rate per second."""
    targets: int = 2048
    """Largest number of targets (addresses and networks) whose datagrams and SYNs are counted. Once
    it is reached, nothing is sent to a new target."""
    attempts: int = 32
    """Concurrent attempts, a count. Further ones are refused with the code `busy`."""
    searches: int = 2
    """Concurrent attempts with a birthday search, a count. A search uses 256 sockets, or sends
    1,400 datagrams within about a second."""
    attempt_s: float = 10.0
    """Time from the first offer to the end of the last round, in seconds."""
    rounds: int = 3
    """Largest number of rounds of one attempt."""
    offers_per_peer: int = 8
    """Offers of one peer that are accepted within `offers_s` seconds, a count."""
    offers_s: float = 30.0
    offer_s: float = 3.0
    """Time limit for the reply to an offer, in seconds."""
    skew_s: float = 1.0
    """Longest time, in seconds, for which the answering side delays the start of a round so that
    its reply can reach the other side first."""

    # Checks (checks.py), in seconds and counts.
    pace_s: float = 0.005
    """Time between two checks until `burst` checks have been sent."""
    slow_pace_s: float = 0.02
    """Time between two checks after the first `burst` checks. RFC 8445, section 14.2, recommends 50
    ms, which is unnecessarily slow for a few addresses."""
    burst: int = 24
    repeat_s: tuple[float, ...] = (0.05, 0.08, 0.12, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5)
    """Pauses between the repeated checks of one pair of a socket and an address."""
    settle_s: float = 0.06
    """Time to wait for a better pair after the first one works."""
    nominate_s: float = 0.1
    nominations: int = 20
    """The controlling side sends its choice every `nominate_s` seconds until the peer confirms it,
    at most `nominations` times."""
    pairs: int = 128
    """Pairs of a socket and an address that are checked repeatedly, a count."""
    pending: int = 4096
    """Unanswered checks that are remembered, a count. If there are more, the oldest is evicted."""
    heard: int = 4096
    """Requests of the peer that are remembered, a count. A remembered request gets no second
    reply."""

    # Rounds (puncher.py), in seconds.
    round_s: float = 1.2
    """Time from the start of a round until the next offer, to which two round trips are added."""
    last_round_s: float = 3.0
    """Length of the last round, and of a round with a birthday search. Two round trips are added to
    it."""
    grace_s: float = 0.4
    """Time for which other dials and checks continue after one has worked."""
    linger_s: float = 1.5
    """How long this side still answers checks after a pair is chosen, because the peer may not know
    about the choice yet."""
    observe_s: float = 0.8
    """Time limit for asking observers where they see this node's sockets."""
    fresh_s: float = 15.0
    """Age up to which the observed UDP port is used if the NAT does not preserve ports."""
    dial_s: float = 5.0
    """Time limit for the QUIC handshake on the chosen pair."""

    # Simultaneous open (tcp.py).
    tcp_s: float = 5.0
    """Time limit for all TCP dials, in seconds. In that time the kernel sends the SYN of a dial
    after 0, 1 and 3 seconds."""
    tcp_retry_s: tuple[float, float] = (0.03, 0.13)
    """Bounds in seconds of the random pause before a failed dial is repeated. A dial fails at once
    if a router answers its SYN with a reset."""
    tcp_tries: int = 18
    """Largest number of dials to one address in one round."""
    first_byte_s: float = 0.15
    """Time in seconds for which this side waits for the first byte on a connection that it has
    accepted from the address of a current attempt. If none arrives, this side sends first."""

"""Every constant of `punch`, with its unit."""

from dataclasses import dataclass
from typing import Final

# Part of the protocol (docs/spec/punch.md): both sides must agree.
CANDIDATES: Final = 16
"""Addresses that one side may name in one offer, a count."""
UNSEEN: Final = 2
"""Addresses of one offer that are checked although only the peer has named them, a count."""
COMB: Final = 7
"""Fresh sockets that a side opens in the second round if a router may treat early packets wrongly,
a count."""
COMB_STEP_S: Final = 0.025
"""Time between the first checks of two neighbours in the comb, in seconds."""
SECRET_BYTES: Final = 20
"""Size of the key with which the other side signs its checks (RFC 8445, 5.3: at least 128 bits)."""
ATTEMPT_BYTES: Final = 8
"""Size of an attempt's name, in bytes."""
OFFER_BYTES: Final = 8 * 1024
"""The largest payload of an offer or of its reply, in bytes."""

# Prediction (predict.py).
BIRTHDAY_SOCKETS: Final = 256
"""Sockets that the hard side opens, a count."""
BIRTHDAY_PROBES: Final = 1400
"""Ports of the hard side's address that the easy side tries, a count."""
NAT_PORTS: Final = 65536 - 1024
"""Ports that a NAT picks from, a count."""
SEQUENCE: Final = 64
"""Consecutive ports to try on a counting NAT, a count."""
DELTA: Final = 16
"""The largest step between two ports of a counting NAT."""


@dataclass(frozen=True, slots=True)
class PunchLimits:
    """Limits on what punching may cost us, the peer, and the owner of an address that it names."""

    target_datagrams: int = 1500
    """Datagrams to one IPv4 address or IPv6 /64 in a window, over all attempts, a count; a larger
    network gets a multiple of it (`networks.targets`)."""
    target_syns: int = 60
    """TCP dials to one target in a window, over all attempts, a count."""
    window_s: float = 600.0
    """Length of the window, in seconds."""
    unseen: tuple[float, float] = (16, 1 / 8)
    """Datagrams to one IPv6 /64 at which no third node has seen the peer and the peer has not
    replied: a burst and a rate per second. Each has about 130 bytes."""
    unseen_total: tuple[float, float] = (256, 2.0)
    """Datagrams to all such networks together, likewise."""
    targets: int = 2048
    """Targets with an account, including networks, a count. Beyond it no new target is sent to."""
    attempts: int = 32
    """Concurrent attempts, a count. Another one is refused as `busy`."""
    searches: int = 2
    """Concurrent attempts with a birthday search (256 sockets, or 1,400 datagrams in a second)."""
    attempt_s: float = 10.0
    """Time from the first offer to the end of the last round, in seconds."""
    rounds: int = 3
    """Rounds of one attempt, a count."""
    offers_per_peer: int = 8
    """Offers of one peer that are answered in `offers_s` seconds, a count."""
    offers_s: float = 30.0
    offer_s: float = 3.0
    """How long an offer waits for its reply, in seconds."""
    skew_s: float = 1.0
    """The longest time that one side waits for its reply to reach the other, in seconds."""

    # Checks (checks.py), in seconds and counts.
    pace_s: float = 0.005
    """Time between two checks while fewer than `burst` have been sent."""
    slow_pace_s: float = 0.02
    """Time between two checks afterwards (RFC 8445, 14.2 says 50 ms, too slow for few
    addresses)."""
    burst: int = 24
    repeat_s: tuple[float, ...] = (0.05, 0.08, 0.12, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5)
    """Pauses between repeated checks of the same pair."""
    settle_s: float = 0.06
    """Time after the first working pair to wait for a better one."""
    nominate_s: float = 0.1
    nominations: int = 20
    """How often, and how many seconds apart, the choice is sent until it is confirmed."""
    pairs: int = 128
    """Pairs of sockets and addresses that are checked repeatedly, a count."""
    pending: int = 4096
    """Unanswered checks that are remembered, a count. Beyond it the oldest is forgotten."""
    heard: int = 4096
    """Requests of the peer that are remembered, so that none is answered twice, a count."""

    # Rounds (puncher.py), in seconds.
    round_s: float = 1.2
    """Time from the start of a round until the next offer, besides two round trips."""
    last_round_s: float = 3.0
    grace_s: float = 0.4
    """Time for the other method after one has worked."""
    linger_s: float = 1.5
    """How long checks are answered after the choice, because the peer may not know it yet."""
    observe_s: float = 0.8
    """How long an observation of this node's ports may take."""
    fresh_s: float = 15.0
    """The greatest age of an observed UDP port behind a NAT that does not preserve ports."""
    dial_s: float = 5.0
    """Time limit of the QUIC handshake on the chosen pair."""

    # Simultaneous open (tcp.py).
    tcp_s: float = 5.0
    """How long TCP dials are tried, in seconds: the kernel sends SYNs after 0, 1 and 3."""
    tcp_retry_s: tuple[float, float] = (0.03, 0.13)
    """Bounds of the random pause between two tries after a SYN was answered by a reset, in
    seconds."""
    tcp_tries: int = 18
    """Tries of one address in one round, a count."""
    first_byte_s: float = 0.15
    """How long an accepted connection from an address that is being punched may stay silent
    before this side speaks first, in seconds."""

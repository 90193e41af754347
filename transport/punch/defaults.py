"""Every constant of `punch`, with its unit."""

from dataclasses import dataclass
from typing import Final

# Part of the protocol (docs/spec/punch.md): both sides must agree.
CANDIDATES: Final = 16
"""Addresses that one side may name in one offer, a count."""
UNSEEN: Final = 2
"""Addresses of one offer that are checked though only the peer has named them, a count."""
COMB: Final = 7
"""Fresh sockets a side that may be misunderstood by a router opens in the second round, a count."""
COMB_STEP_S: Final = 0.025
"""Between the first checks of two neighbours in the comb, in seconds."""
SECRET_BYTES: Final = 20
"""Of the key with which the other side signs its checks (RFC 8445, 5.3: 128 bits at least)."""
ATTEMPT_BYTES: Final = 8
"""Of the name of an attempt."""
OFFER_BYTES: Final = 8 * 1024
"""The largest payload of an offer or of its answer."""

# Prediction (predict.py).
BIRTHDAY_SOCKETS: Final = 256
"""Sockets the hard side opens, a count."""
BIRTHDAY_PROBES: Final = 1400
"""Ports of the hard side's address that the easy side tries, a count."""
NAT_PORTS: Final = 65536 - 1024
"""Ports from which a NAT draws, a count."""
SEQUENCE: Final = 64
"""Ports in a row that are tried on a NAT that counts, a count."""
DELTA: Final = 16
"""The largest step between two ports of a NAT that counts."""


@dataclass(frozen=True, slots=True)
class PunchLimits:
    """What punching may cost: us, the peer, and who is at an address that it names."""

    target_datagrams: int = 1500
    """Datagrams to one IPv4 address or IPv6 /64 in a window, over all attempts, a count; a larger
    network gets a multiple of it (`place.targets`)."""
    target_syns: int = 60
    """TCP connections begun to one, over all attempts, in a window."""
    window_s: float = 600.0
    """The window, in seconds."""
    unseen: tuple[float, float] = (16, 1 / 8)
    """Datagrams to one IPv6 /64 at which no third node has seen the peer and the peer has not
    answered, a count: at once, and per second. Each has about 130 bytes."""
    unseen_total: tuple[float, float] = (256, 2.0)
    """Datagrams to all such networks together, likewise."""
    targets: int = 2048
    """Accounts of targets, networks included, a count. Beyond it nothing is sent to new targets."""
    attempts: int = 32
    """Attempts under way at a time, a count; another is refused as `busy`."""
    searches: int = 2
    """Attempts with a birthday search (256 sockets, or 1,400 datagrams in a second) at a time."""
    attempt_s: float = 10.0
    """Seconds from the first offer to the end of the last round."""
    rounds: int = 3
    """Rounds of one attempt."""
    offers_per_peer: int = 8
    """Offers of one peer that are answered in `offers_s` seconds."""
    offers_s: float = 30.0
    offer_s: float = 3.0
    """Seconds an offer waits for its answer."""
    skew_s: float = 1.0
    """The longest time, in seconds, that one side waits for the other to get its answer."""

    # Checks (checks.py), in seconds and counts.
    pace_s: float = 0.005
    """Between two checks while fewer than `burst` have been sent."""
    slow_pace_s: float = 0.02
    """The same afterwards (RFC 8445, 14.2 has 50 ms; a few addresses are not worth that)."""
    burst: int = 24
    repeat_s: tuple[float, ...] = (0.05, 0.08, 0.12, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5)
    """When a check is sent again on the same pair, seconds after the one before."""
    settle_s: float = 0.06
    """After the first working pair, time for a better one before it is chosen."""
    nominate_s: float = 0.1
    nominations: int = 20
    """How often, and every how many seconds, the choice is told until it is confirmed."""
    pairs: int = 128
    """Pairs of sockets and addresses that are checked more than once, a count."""
    pending: int = 4096
    """Checks that may be unanswered, a count; the oldest is forgotten."""
    heard: int = 4096
    """Requests of the peer's that are remembered, so that none is answered twice, a count."""

    # Rounds (puncher.py), in seconds.
    round_s: float = 1.2
    """From the start of a round until the next is offered, beside two round trips."""
    last_round_s: float = 3.0
    grace_s: float = 0.4
    """After one rung has worked, the time the other is given."""
    linger_s: float = 1.5
    """How long checks are answered after the choice: the peer may not know of it yet."""
    observe_s: float = 0.8
    """How long an observation of own ports may take."""
    fresh_s: float = 15.0
    """How old an observed UDP port may be where the NAT does not preserve ports."""
    dial_s: float = 5.0
    """For QUIC's handshake on the chosen path."""

    # Simultaneous open (tcp.py).
    tcp_s: float = 5.0
    """Seconds in which connections are tried: the kernel sends SYNs after 0, 1 and 3."""
    tcp_retry_s: tuple[float, float] = (0.03, 0.13)
    """Seconds between two tries where a SYN was answered by a reset: drawn between these."""
    tcp_tries: int = 18
    """Tries of one address in one round, a count."""
    first_byte_s: float = 0.15
    """How long an accepted connection from an address that is being punched may stay silent
    before this side speaks first."""

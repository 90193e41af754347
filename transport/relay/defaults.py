"""All constants of relaying, with their units, and the limits that an owner may set."""

from dataclasses import dataclass
from typing import Final

from ..defaults import HTTPS_PORT, KIB

# Defaults of `RelayLimits`, which says what they limit.
RATE: Final = 64_000
RESERVATION_S: Final = 3600.0
RESERVATIONS: Final = 128
RESERVATIONS_PER_SUBNET: Final = 8
STRANGER_BYTES: Final = 128 * KIB
STRANGER_S: Final = 120.0
MEMBER_S: Final = 24 * 3600.0
STRANGER_TURN_S: Final = 20.0
CIRCUITS: Final = 256
STRANGER_CIRCUITS: Final = 128
STRANGER_CIRCUITS_PER_SUBNET: Final = 32
CIRCUITS_PER_PEER: Final = 32
CIRCUITS_PER_PAIR: Final = 3

CODES_COUNTED: Final = 32
"""Codes of refusals that are counted by name, a count."""

# Sharing the rate (pacer.py).
BURST_S: Final = 0.25
"""Bytes that may be moved at once after a quiet time, in seconds of the rate."""
GRAIN_BYTES: Final = 16 * KIB
"""Bytes for which a waiting circuit is woken: about one TLS record."""
LEAST_GRAIN_BYTES: Final = 1400
"""Fewest bytes for which a circuit is woken: about one packet."""
CRUMBS: Final = 8
"""Fraction (1/8) of a grain below which bytes are not worth moving."""
DEAL_S: Final = 0.001
"""Shortest interval between distributions of tokens, in seconds."""
PAUSE_S: Final = (0.005, 0.5)
"""Shortest and longest wait for tokens, in seconds."""
PATIENCE_S: Final = 1.0
"""Seconds without a request after which a circuit counts as inactive."""
LIGHT_BYTES: Final = 32 * KIB
"""Bytes moved in about a second below which a circuit need not wait behind the others."""
MEMBER_WEIGHT: Final = 4
"""A member's part of the rate relative to a stranger's, if both want more than there is."""
MEMBERS_PART: Final = 0.75
"""Least part of the rate, of 1, for all members together while one of them waits for bytes."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Limits of relaying, which starts once this node knows that other nodes reach it."""

    volunteer: bool = False
    """Whether it relays before it knows that, because its owner says so."""
    rate: int = RATE
    """Bytes per second relayed, all circuits and both directions together; 0 to never relay."""
    reservation_s: float = RESERVATION_S
    """Seconds for which a reservation lasts unless it is renewed."""
    reservations: int = RESERVATIONS
    """Concurrent reservations, a count."""
    reservations_per_subnet: int = RESERVATIONS_PER_SUBNET
    """Concurrent reservations from one /24 (IPv4) or /64 (IPv6), a count."""
    stranger_bytes: int = STRANGER_BYTES
    """Bytes of a circuit with a stranger at either end, both directions together."""
    stranger_s: float = STRANGER_S
    """Most seconds that such a circuit lasts."""
    stranger_turn_s: float = STRANGER_TURN_S
    """Seconds after which a stranger's circuit may be closed in favour of another stranger's, if
    there are too many."""
    member_s: float = MEMBER_S
    """Most seconds that a circuit between members lasts."""
    circuits: int = CIRCUITS
    """Concurrent circuits, a count."""
    stranger_circuits: int = STRANGER_CIRCUITS
    """Concurrent circuits with a stranger at either end, a count."""
    stranger_circuits_per_subnet: int = STRANGER_CIRCUITS_PER_SUBNET
    """Concurrent strangers' circuits opened from one /24 (IPv4) or /64 (IPv6), a count."""
    circuits_per_peer: int = CIRCUITS_PER_PEER
    """Concurrent circuits with the same peer at either end, a count."""
    circuits_per_pair: int = CIRCUITS_PER_PAIR
    """Concurrent circuits from one peer to another, a count, so that no peer can block another."""


# Membership in an open swarm (standing.py).
STANDING_S: Final = 600.0
"""Seconds of being linked after which a peer is a member."""
AWAY_S: Final = 600.0
"""Seconds for which a peer may be away before its time starts over."""
MEMBERS: Final = 256
"""Peers whose time is counted, a count; the first ones are kept."""
MEMBERS_PER_NETWORK: Final = 4
"""Peers of one network that may become members, a count; the first ones do."""

# Opening circuits (openings.py).
OPENING_RATE: Final = 8000
"""Bytes per second of the rate for each circuit that is opening: a handshake and the first messages
are about 12 kB, and should take 2 s."""
OPENINGS_LEAST: Final = 4
"""Circuits that may always open at once, a count."""
OPENING_BYTES: Final = 12_000
"""Bytes carried after which a circuit counts as open."""
OPENING_S: Final = 6.0
"""Seconds after which a circuit counts as open in any case, since an end may not answer."""
QUEUE_S: Final = 8.0
"""Seconds for which a circuit waits for its turn to open."""
QUEUE: Final = 64
"""Members' circuits that wait for their turn, a count; strangers have as many more."""
QUEUE_PER_SOURCE: Final = 8
"""Circuits of one peer that wait for their turn, a count."""
CROSSING_S: Final = 10.0
"""Seconds for which a circuit that the other end opened serves both ends."""
PIECE_COST: Final = 128
"""Bytes that each piece costs in addition to its payload: headers and acknowledgements."""


# Carrying bytes (circuit.py, service.py).
WINDOW_BYTES: Final = 256 * KIB
"""Credit of a circuit's streams. Part of the protocol: both ends of each stream must agree."""
PIECE_BYTES: Final = 128 * KIB
"""Bytes moved at once, and bytes that may be unsent before more is read."""
FETCH_S: Final = 6.0
"""Seconds for which a relay tries to link to a peer that a member wants to reach through it."""
FETCHES: Final = 8
"""Concurrent attempts to do so, a count."""
FETCHES_BY_ASKER: Final = (8, 0.1)
"""Attempts for one member: burst, and per second."""
FETCHES_OF_TARGET: Final = (2, 0.1)
"""Attempts to link to one peer for all members, so that a dead peer is not dialled forever."""
LOOK_S: Final = 2.0
"""Seconds between checks of the source while the target accepts nothing."""
AHEAD_BYTES: Final = 64 * KIB
"""Bytes that an end of a circuit may write ahead of its link."""
LOW_BYTES: Final = 16 * KIB
"""Unsent bytes below which an end accepts more; low, as more urgent data cannot overtake them."""
PREFACE_BYTES: Final = 512
"""Most bytes of the preface that a relay sends at the start of a circuit."""

# A node behind relays (choice.py, client.py).
WANTED: Final = 3
"""Reservations to hold, a count."""
SPARE: Final = 3
"""Relays measured beyond the number missing, a count."""
CANDIDATES: Final = 256
"""Candidates remembered, a count."""
RELAY_ADDRESSES: Final = 4
"""Addresses remembered per candidate, a count."""
RELAY_PORT: Final = HTTPS_PORT
"""TCP port at which at least one relay should be reached."""
BACKOFF_S: Final = (5.0, 3600.0)
"""First and longest pause before a failed relay is retried, in seconds."""
DIAL_S: Final = 5.0
"""Timeout to dial a relay, in seconds: a slower one is not near."""
ANSWER_S: Final = 5.0
"""Timeout of a call to a relay, in seconds."""
GATHER_S: Final = 1.0
"""Time for other relays to answer after the first has, in seconds."""
TTL_S: Final = (60.0, 24 * 3600.0)
"""Least and most life of a reservation that is accepted, in seconds."""
IMPROVE_S: Final = 600.0
"""Interval between measurements of further relays, in seconds."""
BETTER: Final = 0.5
"""A relay replaces another if its round trip is below this fraction of the other's."""
ARRIVING: Final = 64
"""Open incoming circuits, a count; a further one is refused."""
ARRIVING_PER_RELAY: Final = 24
"""Open incoming circuits by one relay, so that a flood by one leaves capacity to others."""
ARRIVING_PER_SOURCE: Final = 4
"""Open incoming circuits of one peer, according to the relay."""
ARRIVALS: Final = (32, 4.0)
"""Incoming circuits by one relay, burst and per second: each may cost a handshake."""
UNASKED: Final = 16
"""Open incoming circuits by relays without a reservation of this node, a count."""
UNASKED_PER_RELAY: Final = 8
"""Open incoming circuits by one such relay, a count."""

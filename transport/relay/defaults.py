"""Constants of relaying with their units, and the limits that an owner may set."""

from dataclasses import dataclass
from typing import Final

from ..defaults import HTTPS_PORT, KIB

# Defaults of `RelayLimits`, where each limit is explained.
RATE: Final = 64_000
RESERVATION_S: Final = 3600.0
RESERVATIONS: Final = 128
RESERVATIONS_PER_SUBNET: Final = 8
STRANGER_S: Final = 120.0
MEMBER_S: Final = 24 * 3600.0
STRANGER_TURN_S: Final = 20.0
CIRCUITS: Final = 256
STRANGER_CIRCUITS: Final = 128
STRANGER_CIRCUITS_PER_SUBNET: Final = 32
CIRCUITS_PER_PEER: Final = 32
CIRCUITS_PER_PAIR: Final = 3

CODES_COUNTED: Final = 32
"""Largest number of different codes of refusals that are counted."""

# Sharing the rate (limiter.py).
BURST_S: Final = 0.25
"""Largest burst after a pause, as a multiple of the bytes that the rate allows in one second."""
GRAIN_BYTES: Final = 16 * KIB
"""Largest grain (see limiter.py), in bytes: about one TLS record."""
LEAST_GRAIN_BYTES: Final = 1400
"""Smallest grain, in bytes: about one packet."""
CRUMBS: Final = 8
"""A grain divided by this number is the smallest number of bytes that is worth moving."""
DEAL_S: Final = 0.001
"""Shortest interval between distributions of tokens, in seconds."""
PAUSE_S: Final = (0.005, 0.5)
"""Shortest and longest wait for tokens, in seconds."""
PATIENCE_S: Final = 1.0
"""Seconds without a request after which a circuit counts as inactive."""
LIGHT_BYTES: Final = 32 * KIB
"""Bytes in about one second up to which a circuit counts as light, and need not wait for others."""
MEMBER_WEIGHT: Final = 4
"""A member's part of the rate as a multiple of a stranger's, if both want more than there is."""
MEMBERS_PART: Final = 0.75
"""Smallest fraction of the rate for all members together while one of them waits for bytes."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Limits of relaying, which begins once this node knows that other nodes reach it."""

    volunteer: bool = False
    """Whether the node relays even before it knows that other nodes reach it, because its owner
    wants it to."""
    rate: int = RATE
    """Bytes per second in all circuits and both directions together. 0 means never to relay."""
    reservation_s: float = RESERVATION_S
    """Seconds for which a reservation lasts unless it is renewed."""
    reservations: int = RESERVATIONS
    """Largest number of concurrent reservations."""
    reservations_per_subnet: int = RESERVATIONS_PER_SUBNET
    """Largest number of concurrent reservations from one /24 (IPv4) or /64 (IPv6)."""
    stranger_s: float = STRANGER_S
    """Longest duration of a circuit with a stranger at either end, in seconds."""
    stranger_turn_s: float = STRANGER_TURN_S
    """Seconds after which a stranger's circuit may be closed in favour of another stranger's, if
    there are too many."""
    member_s: float = MEMBER_S
    """Longest duration of a circuit between members, in seconds."""
    circuits: int = CIRCUITS
    """Largest number of concurrent circuits."""
    stranger_circuits: int = STRANGER_CIRCUITS
    """Largest number of concurrent circuits with a stranger at either end."""
    stranger_circuits_per_subnet: int = STRANGER_CIRCUITS_PER_SUBNET
    """Largest number of circuits with a stranger at either end that are opened from one /24 (IPv4)
    or /64 (IPv6)."""
    circuits_per_peer: int = CIRCUITS_PER_PEER
    """Largest number of concurrent circuits with the same peer at either end."""
    circuits_per_pair: int = CIRCUITS_PER_PAIR
    """Largest number of concurrent circuits from one peer to another. Without this limit, a peer
    could use up all circuits of another one."""


# Membership in an open swarm (standing.py).
STANDING_S: Final = 600.0
"""Seconds for which a peer must have been linked to become a member."""
AWAY_S: Final = 600.0
"""Seconds for which a peer may be away before its time starts over."""
MEMBERS: Final = 256
"""Largest number of peers for which it is counted how long they have been linked. Later peers stay
strangers."""
MEMBERS_PER_NETWORK: Final = 4
"""Largest number of peers of one network for which it is counted how long they have been linked.
Later peers stay strangers."""

# Opening circuits (openings.py).
OPENING_RATE: Final = 8000
"""The rate (bytes per second) divided by this is the number of circuits that may open at once. The
handshake and the first messages of one circuit are about 12 kB, and should take 2 s."""
OPENINGS_LEAST: Final = 4
"""Number of circuits that may open at once even if the rate is small."""
OPENING_BYTES: Final = 12_000
"""Bytes carried after which a circuit counts as open."""
OPENING_S: Final = 6.0
"""Seconds after which a circuit counts as open in any case, because an end may not answer."""
QUEUE_S: Final = 8.0
"""Longest wait of a circuit before it may open, in seconds."""
QUEUE: Final = 64
"""Largest number of members' circuits that wait to open. The same limit applies to strangers'."""
QUEUE_PER_SOURCE: Final = 8
"""Largest number of circuits of one peer that wait to open."""
CROSSING_S: Final = 10.0
"""Seconds after the opening of a circuit in which one in the other direction is refused."""
PIECE_COST: Final = 128
"""Bytes charged for each piece in addition to its payload, for headers and acknowledgements."""


# Carrying bytes (circuit.py, service.py).
WINDOW_BYTES: Final = 256 * KIB
"""Flow control window of a circuit's streams, in bytes. It is part of the protocol, because both
ends of a stream must use the same one."""
PIECE_BYTES: Final = 128 * KIB
"""Largest number of bytes that are moved at once. It is also the number of unsent bytes at which no
more are read."""
FETCH_S: Final = 6.0
"""Seconds for which a relay tries to link to a peer that a member wants to reach through it."""
FETCHES: Final = 8
"""Largest number of concurrent attempts to link to peers that members want to reach."""
FETCHES_BY_ASKER: Final = (8, 0.1)
"""Attempts to link to peers that one member wants to reach: largest burst, and rate per second."""
FETCHES_OF_TARGET: Final = (2, 0.1)
"""Attempts to link to one peer for all members together: largest burst, and rate per second.
Without this limit, a dead peer would be dialled again and again."""
LOOK_S: Final = 2.0
"""Seconds between two checks of a circuit's source while its target accepts nothing."""
AHEAD_BYTES: Final = 64 * KIB
"""Largest number of unsent bytes at one end of a circuit."""
LOW_BYTES: Final = 16 * KIB
"""Number of unsent bytes below which an end of a circuit accepts more. It is low, because more
urgent data cannot overtake unsent bytes."""
PREFACE_BYTES: Final = 512
"""Largest size of the preface that a relay sends at the start of a circuit, in bytes."""

# A node behind relays (choice.py, client.py).
WANTED: Final = 3
"""Number of reservations to hold."""
SPARE: Final = 3
"""Number of relays that are measured in addition to the missing number."""
CANDIDATES: Final = 256
"""Largest number of candidates."""
RELAY_ADDRESSES: Final = 4
"""Largest number of addresses of a candidate."""
RELAY_PORT: Final = HTTPS_PORT
"""TCP port at which at least one relay should be reached."""
BACKOFF_S: Final = (5.0, 3600.0)
"""First and longest pause before a failed relay is retried, in seconds."""
DIAL_S: Final = 5.0
"""Time limit of a dial to a relay, in seconds. A slower relay is not near."""
ANSWER_S: Final = 5.0
"""Time limit of a call to a relay, in seconds."""
GATHER_S: Final = 1.0
"""Time in which other relays must answer after the first one has, in seconds."""
TTL_S: Final = (60.0, 24 * 3600.0)
"""Shortest and longest life of a reservation that is accepted, in seconds."""
IMPROVE_S: Final = 600.0
"""Interval between measurements of further relays, in seconds."""
BETTER: Final = 0.5
"""A relay replaces another if its round trip is below this fraction of the other's."""
ARRIVING: Final = 64
"""Largest number of open incoming circuits. A further one is refused."""
ARRIVING_PER_RELAY: Final = 24
"""Largest number of open incoming circuits from one relay. A flood from one relay then leaves
capacity for others."""
ARRIVING_PER_SOURCE: Final = 4
"""Largest number of open incoming circuits of one peer, as named by the relay."""
ARRIVALS: Final = (32, 4.0)
"""Incoming circuits from one relay: largest burst, and rate per second. Each may cost a
handshake."""
UNASKED: Final = 16
"""Largest number of open incoming circuits from relays without a reservation of this node."""
UNASKED_PER_RELAY: Final = 8
"""Largest number of open incoming circuits from one relay without a reservation of this node."""

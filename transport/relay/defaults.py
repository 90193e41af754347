"""Every constant of relaying, with its unit, and what an owner may set of them."""

from dataclasses import dataclass
from typing import Final

from ..defaults import HTTPS_PORT, KIB

# What an owner lends (`RelayLimits` says what each one bounds).
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
"""Different refusals that are counted by name."""

# Sharing the rate (pacer.py).
BURST_S: Final = 0.25
"""What may be moved at once after a quiet time, in seconds' worth of the rate."""
GRAIN_BYTES: Final = 16 * KIB
"""A circuit that waits for its share is woken for about so many bytes: one TLS record."""
LEAST_GRAIN_BYTES: Final = 1400
"""The least bytes for which a circuit is woken: about one packet."""
CRUMBS: Final = 8
"""Less than this part of a grain is not worth moving."""
DEAL_S: Final = 0.001
"""What is earned is dealt out no more often than this, in seconds."""
PAUSE_S: Final = (0.005, 0.5)
"""The shortest and the longest wait for a share, in seconds."""
PATIENCE_S: Final = 1.0
"""A circuit that has not asked for so many seconds wants nothing at the moment."""
LIGHT_BYTES: Final = 32 * KIB
"""A circuit that has moved less than this in about a second need not wait behind the others."""
MEMBER_WEIGHT: Final = 4
"""A member's part of the rate for one of a stranger's, where both want more than there is."""
MEMBERS_PART: Final = 0.75
"""Least part of the rate, of 1, for all members together while one of them waits for bytes."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Limits of relaying. It starts once this node knows that others reach it."""

    volunteer: bool = False
    """Whether it lends before it knows that, because its owner says so."""
    rate: int = RATE
    """Bytes per second relayed, all circuits and both directions together; 0: it never relays."""
    reservation_s: float = RESERVATION_S
    """Seconds for which a reservation holds unless it is renewed."""
    reservations: int = RESERVATIONS
    """Reservations at once, a count."""
    reservations_per_subnet: int = RESERVATIONS_PER_SUBNET
    """The same from one /24 (IPv4) or /64 (IPv6), a count."""
    stranger_bytes: int = STRANGER_BYTES
    """Bytes of a circuit in which a stranger takes part, both directions together."""
    stranger_s: float = STRANGER_S
    """Seconds that such a circuit lasts at most."""
    stranger_turn_s: float = STRANGER_TURN_S
    """Seconds after which a stranger's circuit may be closed for another stranger's, if all places
    are taken."""
    member_s: float = MEMBER_S
    """Seconds that a circuit between members lasts at most."""
    circuits: int = CIRCUITS
    """Circuits at once, a count."""
    stranger_circuits: int = STRANGER_CIRCUITS
    """Those of them in which a stranger takes part, a count."""
    stranger_circuits_per_subnet: int = STRANGER_CIRCUITS_PER_SUBNET
    """The same opened from one /24 (IPv4) or /64 (IPv6), a count."""
    circuits_per_peer: int = CIRCUITS_PER_PEER
    """Circuits at once in which one peer is either end, a count."""
    circuits_per_pair: int = CIRCUITS_PER_PAIR
    """The same from one peer to one other: nobody alone shuts another one's door."""


# Members of an open swarm (standing.py).
STANDING_S: Final = 600.0
"""Seconds of being linked after which a peer is a member."""
AWAY_S: Final = 600.0
"""Seconds for which a peer may be away before its time starts over."""
MEMBERS: Final = 256
"""Peers whose time is counted, a count; those that came first are kept."""
MEMBERS_PER_NETWORK: Final = 4
"""Peers of one network that may become members, a count; the first ones do."""

# Circuits on their way (openings.py).
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
"""How long a circuit waits for its turn to open, in seconds."""
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
"""The credit of a circuit's streams. Part of the protocol: both ends of each stream must agree."""
PIECE_BYTES: Final = 128 * KIB
"""What is moved in one go, and what may wait to leave before more is read."""
FETCH_S: Final = 6.0
"""How long a relay tries to link itself, in seconds, to whom a member wants to reach by it."""
FETCHES: Final = 8
"""Such attempts at once, a count."""
FETCHES_BY_ASKER: Final = (8, 0.1)
"""The same for one member, at once and per second."""
FETCHES_OF_TARGET: Final = (2, 0.1)
"""The same to one peer, whoever asks: a dead one is not dialled for ever."""
LOOK_S: Final = 2.0
"""While the target takes nothing, a relay looks this often whether the source is still there."""
AHEAD_BYTES: Final = 64 * KIB
"""Bytes that an end of a circuit may run ahead of the link that carries it."""
LOW_BYTES: Final = 16 * KIB
"""With fewer than this unsent, an end takes more: what is written early cannot be overtaken."""
PREFACE_BYTES: Final = 512
"""Of what a relay says at the start of a circuit."""

# A node that is reached through relays (choice.py, client.py).
WANTED: Final = 3
"""Relays at which a place is held, a count."""
SPARE: Final = 3
"""So many more are measured than are missing, a count."""
CANDIDATES: Final = 256
"""Nodes that may relay which are remembered, a count."""
RELAY_ADDRESSES: Final = 4
"""Addresses remembered of each, a count."""
RELAY_PORT: Final = HTTPS_PORT
"""One relay at least is reached at this TCP port."""
BACKOFF_S: Final = (5.0, 3600.0)
"""The first and the longest pause before a relay that failed is tried again, in seconds."""
DIAL_S: Final = 5.0
"""A relay that takes longer to be dialled is not near, in seconds."""
ANSWER_S: Final = 5.0
"""The same for an answer to a call."""
GATHER_S: Final = 1.0
"""After the first relay has answered the others get this long, in seconds."""
TTL_S: Final = (60.0, 24 * 3600.0)
"""A relay's promise counts as at least and at most so many seconds."""
IMPROVE_S: Final = 600.0
"""How often relays that have not been measured get their chance, in seconds."""
BETTER: Final = 0.5
"""A relay takes another's place if its round trip is shorter than this part of that one's."""
ARRIVING: Final = 64
"""Circuits to this node that are open, a count; a further one is refused."""
ARRIVING_PER_RELAY: Final = 24
"""The same by one relay, so that one that floods us leaves others their places."""
ARRIVING_PER_SOURCE: Final = 4
"""The same of one peer, as the relay says."""
ARRIVALS: Final = (32, 4.0)
"""Circuits by one relay, at once and per second: each may cost us a handshake."""
UNASKED: Final = 16
"""Of the open circuits to this node, those by relays at which it has no place, a count."""
UNASKED_PER_RELAY: Final = 8
"""The same by one such relay."""

"""Goal and settings of a look-up, its sender, and the queries that it sends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...transport.identity import PeerId
from .. import defaults
from ..kademlia.messages import Find
from ..records.contact import Contact
from ..records.key import Key


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """Settings of a look-up. Tests can switch the defences off."""

    paths: int = defaults.PATHS
    """Number of disjoint paths. If it is 1, every reply serves the whole look-up."""
    random_order: bool = True
    """Whether the nodes of the region are queried in random order, and asked for contacts at random
    positions in the region. Otherwise the nearest are queried first until the `K` nearest have
    answered, as joining and the density estimate need it."""
    subnet_limits: bool = True
    """Whether contacts in networks that were queried often are queried last."""
    doubt: bool = True
    """Whether contacts are queried last if the peers that named them have also named dead contacts.
    A node of the region that was not queried then counts only if two peers have named it."""
    hedge: float = defaults.HEDGE
    """Seconds after which a reply counts as late."""
    at_once: int = defaults.PATH_ASKED
    """Concurrent queries of each path, not counting late ones."""
    shares: bool = True
    """Whether each path has its share of the queries and contacts. Otherwise liars that answer fast
    could make one path use the queries of all."""
    witnesses: bool = True
    """Whether authors count only once several peers have returned records of the key, because one
    liar can invent any number of authors."""
    accounts: bool = True
    """Whether the addresses that all paths name for a contact are used. Otherwise, only those named
    first."""
    queries: int = defaults.LOOKUP_QUERIES
    """Most queries of one look-up."""


@dataclass(frozen=True, slots=True)
class LookupGoal:
    """Goal of a look-up: records, or the nodes of a region of the key space."""

    keys: Sequence[Key]
    radius: float
    """XOR distance from the first key within which its region lies. All keys are in the region."""
    enough: int = 0
    """Number of authors wanted for each key. 0: the look-up searches for the region's nodes."""
    most: int = defaults.K
    """Most records per key that each node is asked for."""
    kinds: tuple[str, ...] = ()
    """Kinds of records that each node is asked for. Empty: all kinds."""


@dataclass(frozen=True, slots=True)
class Querier:
    """The node that sends the queries of a look-up or a walk."""

    entropy: Callable[[int], bytes]
    """Returns this number of random bytes."""
    peer: PeerId | None = None
    """Its peer id, so that it never queries itself."""
    serves: bytes | None = None
    """Its encoded contact for the requests. None while it does not serve."""
    linked: Callable[[PeerId], bool] = lambda peer: False
    """Returns whether a peer can be asked without a dial."""


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """Request to one contact."""

    contact: Contact
    find: Find
    by: tuple[PeerId, ...] = ()  # its referrers; empty if it is in the own table

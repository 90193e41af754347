"""Settings of a look-up, and the queries that it sends."""

from dataclasses import dataclass

from ...transport.identity import PeerId
from .. import defaults
from ..records.contact import Contact
from .messages import Find


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """Settings of a look-up; tests can switch the defences off."""

    paths: int = defaults.PATHS
    """Disjoint paths; with 1, every reply feeds the whole look-up."""
    random_order: bool = True
    """Query the nodes of the region in random order, and ask for random positions in it. Otherwise
    query the nearest first until the `K` nearest have answered, which joining and the density
    estimate need."""
    subnet_limits: bool = True
    """Query contacts last whose networks were queried often."""
    doubt: bool = True
    """Query contacts last that were named by peers that named dead contacts, and believe in a node
    of the region only if two peers name it."""
    hedge: float = defaults.HEDGE
    """Seconds after which a reply counts as late."""
    at_once: int = defaults.PATH_ASKED
    """Concurrent queries of each path, not counting late ones."""
    shares: bool = True
    """Give each path its share of the queries and contacts. Otherwise a path that fast liars lead
    in circles uses those of the others."""
    witnesses: bool = True
    """Count authors only once several peers have returned records: one liar can invent any number
    of authors."""
    accounts: bool = True
    """Use the addresses that each path names for a contact."""
    queries: int = defaults.LOOKUP_QUERIES
    """Most queries of one look-up."""


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """Request to one contact."""

    contact: Contact
    find: Find
    by: tuple[PeerId, ...] = ()  # peers that named it; empty for one of the own table

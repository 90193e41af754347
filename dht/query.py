"""How a look-up goes, and what it asks."""

from dataclasses import dataclass

from ..transport.identity import PeerId
from . import defaults
from .contact import Contact
from .messages import Find


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """How a look-up goes; the defences can be switched off for tests."""

    paths: int = defaults.PATHS
    """Disjoint paths; 1: every answer feeds the whole look-up."""
    by_lot: bool = True
    """The region's nodes in an order by lot, and random places of it asked for. Else the nearest
    first, until the `K` nearest have answered: for joining, and to see how dense it is there."""
    subnet_limits: bool = True
    """Contacts of networks that were asked often come last."""
    doubt: bool = True
    """Contacts named by those who named others in vain come last, and the region's nodes are not
    taken on the word of one."""
    hedge: float = defaults.HEDGE
    """Seconds after which an answer counts as late."""
    at_once: int = defaults.PATH_ASKED
    """Queries of each path under way at once, late ones aside."""
    shares: bool = True
    """Of the queries, and of the contacts that are heard of, each path has its share: else one that
    is led in circles, by machines that answer at once, uses up those of the others."""
    witnesses: bool = True
    """Enough authors are known only when several have handed out records: one liar makes up as
    many authors as are wanted."""
    accounts: bool = True
    """Of a contact that several paths named, what each says of where it is counts."""
    queries: int = defaults.LOOKUP_QUERIES
    """Of one look-up, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """To be asked of a contact."""

    contact: Contact
    find: Find
    by: tuple[PeerId, ...] = ()  # who named it; nobody: the own table

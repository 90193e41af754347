"""Candidates of one look-up, their replies, and how far their referrers are trusted. No I/O.

The *referrers* of a candidate are the peers that named it. A liar can invent any number of nodes.
Each candidate that is late or fails therefore counts against its referrers, and each that answers
counts for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ...transport.address import Address
from .. import defaults
from ..records.contact import Contact
from ..records.key import Key

_GOOD: Final = ("", "records", "contacts", "nothing")
"""Outcomes of a query that is pending ("") or was answered."""


@dataclass(slots=True)
class LookupStep:
    """A query and its outcome, in the trace of a look-up that the user can see.

    `path` is the number of the disjoint path on which the contact was queried.
    """

    contact: Contact
    path: int
    hop: int  # 1 for contacts of this node's own table
    asked: float  # when the query was sent
    answered: float | None = None  # time of the reply or the failure
    outcome: str = ""  # "" pending, "records", "contacts", "nothing", "failed", or an error code
    handed: Mapping[Key, int] = field(default_factory=dict)  # key -> records returned for it
    contacts: int = 0  # new contacts in the reply

    @property
    def records(self) -> int:
        """Number of records returned, for all keys."""
        return sum(self.handed.values())


@dataclass(slots=True, eq=False)
class LookupCandidate:
    """A contact that the look-up may query.

    `distance` is the XOR distance of its key from the key that is looked up, and `rank` a random
    number that decides the order of equally good candidates.
    """

    contact: Contact
    path: int
    hop: int
    distance: int
    rank: int
    accounts: dict[int, Contact]  # path -> contact as named on that path
    by: list["LookupCandidate"] = field(default_factory=list)  # referrers; empty: own table
    step: LookupStep | None = None
    tried: frozenset[Address] = frozenset()  # addresses that failed in an earlier query
    lost: bool = False  # not reachable at its addresses
    late: bool = False  # late, or failed
    good: int = 0  # contacts it named that have answered
    bad: int = 0  # contacts it named that are late or have failed

    @property
    def doubt(self) -> int:
        """Least number of dead contacts that any of the referrers has named, less an allowance.

        The allowance is one for each contact of the referrer that answered, but at most `CREDIT`.
        """
        return min((max(one.bad - min(one.good, defaults.CREDIT), 0) for one in self.by), default=0)

    @property
    def sure(self) -> bool:
        """Whether the candidate probably exists.

        It answered, is in this node's own table, or was named by several referrers of which at
        least one is trusted.
        """
        answered = self.step is not None and self.step.answered is not None
        return answered or not self.by or (len(self.by) > 1 and self.doubt == 0)

    @property
    def dead(self) -> bool:
        """Whether the query to the candidate failed."""
        return self.step is not None and self.step.outcome not in _GOOD

    def older(self, seconds: float, now: float) -> bool:
        """Return whether the query to the candidate was sent at least `seconds` ago."""
        return self.step is not None and self.step.asked + seconds <= now

    def add_referrer(self, one: "LookupCandidate | None") -> None:
        """Add the referrer `one`, unless the candidate is from this node's own table."""
        if one is None or one is self or not self.by:
            return
        self.by.append(one)
        one.bad += self.late

    def mark_failed(self) -> None:
        """Mark the candidate as late or failed, which counts against its referrers."""
        if not self.late:
            self.late = True
            for one in self.by:
                one.bad += 1

    def mark_answered(self) -> None:
        """Record that the candidate answered, which counts for its referrers."""
        for one in self.by:
            one.good += 1
            one.bad -= self.late
        self.late = False


@dataclass(slots=True)
class LookupPath:
    """State of one of the disjoint paths of a look-up."""

    waiting: list[LookupCandidate] = field(default_factory=list)
    asked: list[LookupCandidate] = field(default_factory=list)  # queries without a reply so far
    queries: int = 0  # sent so far
    heard: int = 0  # contacts that were named on this path
    begun: bool = False  # the first query was sent
    sure: bool = False  # its first query is pending, and very likely returns the records

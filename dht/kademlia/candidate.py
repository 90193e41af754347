"""Candidates of one look-up, their replies, and how far the peers that named them are trusted.

A liar can invent any number of nodes. So each contact that is late or fails counts against the
peers that named it, and each that answers counts for them. Sans-I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ...transport.address import Address
from .. import defaults
from ..records.contact import Contact
from ..records.key import Key

_GOOD: Final = ("", "records", "contacts", "nothing")
"""Outcomes of a contact that is alive, as far as is known."""


@dataclass(slots=True)
class Step:
    """A query and its outcome, for the trace of a look-up that the user can see."""

    contact: Contact
    path: int
    hop: int  # 1 for contacts of this node's own table
    asked: float
    answered: float | None = None
    outcome: str = ""  # "" pending, "records", "contacts", "nothing", "failed", or an error code
    handed: Mapping[Key, int] = field(default_factory=dict)  # key -> records returned for it
    contacts: int = 0  # new contacts in the reply

    @property
    def records(self) -> int:
        """Number of records returned, for all keys."""
        return sum(self.handed.values())


@dataclass(slots=True, eq=False)
class Candidate:
    """A contact that the look-up may query."""

    contact: Contact
    path: int
    hop: int
    distance: int
    rank: int
    accounts: dict[int, Contact]  # path -> the contact with the addresses given on that path
    by: list["Candidate"] = field(default_factory=list)  # its referrers; empty: own table
    step: Step | None = None
    tried: frozenset[Address] = frozenset()  # addresses that failed earlier
    lost: bool = False  # not reachable at the addresses given
    late: bool = False  # late, or failed
    good: int = 0  # contacts it named that have answered
    bad: int = 0  # contacts it named that are late or have failed

    @property
    def doubt(self) -> int:
        """Dead contacts named by its best referrer, less an allowance."""
        return min((max(one.bad - min(one.good, defaults.CREDIT), 0) for one in self.by), default=0)

    @property
    def sure(self) -> bool:
        """Whether it answered, is in the own table, or was named by two trusted referrers."""
        answered = self.step is not None and self.step.answered is not None
        return answered or not self.by or (len(self.by) > 1 and self.doubt == 0)

    @property
    def dead(self) -> bool:
        """Whether its query failed."""
        return self.step is not None and self.step.outcome not in _GOOD

    def older(self, seconds: float, now: float) -> bool:
        """Whether it was queried at least `seconds` ago."""
        return self.step is not None and self.step.asked + seconds <= now

    def add_referrer(self, one: "Candidate | None") -> None:
        """Add a referrer; a contact of the own table needs none."""
        if one is None or one is self or not self.by:
            return
        self.by.append(one)
        one.bad += self.late

    def mark_failed(self) -> None:
        """Mark it late or failed, which counts against its referrers."""
        if not self.late:
            self.late = True
            for one in self.by:
                one.bad += 1

    def mark_answered(self) -> None:
        """Record that it answered, which counts for its referrers."""
        for one in self.by:
            one.good += 1
            one.bad -= self.late
        self.late = False


@dataclass(slots=True)
class LookupPath:
    """State of one of the disjoint paths of a look-up."""

    waiting: list[Candidate] = field(default_factory=list)
    asked: list[Candidate] = field(default_factory=list)  # queries without a reply so far
    queries: int = 0  # sent so far
    heard: int = 0  # contacts received
    begun: bool = False
    sure: bool = False  # its first query, still pending, should be enough

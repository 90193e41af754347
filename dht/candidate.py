"""Who may be asked in one look-up, what came of it, and how far who named them is believed.

A liar can make up any number of nodes. So each contact that is late or fails is held against those
who named it, and each that answers speaks for them. Sans-I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..transport.address import Address
from . import defaults
from .contact import Contact
from .key import Key

_GOOD: Final = ("", "records", "contacts", "nothing")
"""Outcomes of one that is there, as far as is known."""


@dataclass(slots=True)
class Step:
    """One query, and what came of it: for people who want to see the way."""

    contact: Contact
    path: int
    hop: int  # 1 for contacts of the own table
    asked: float
    answered: float | None = None
    outcome: str = ""  # "" under way, "records", "contacts", "nothing", "failed", or a code
    handed: Mapping[Key, int] = field(default_factory=dict)  # records under each key
    contacts: int = 0  # that were new

    @property
    def records(self) -> int:
        """In all."""
        return sum(self.handed.values())


@dataclass(slots=True, eq=False)
class Candidate:
    """A contact that was heard of."""

    contact: Contact
    path: int
    hop: int
    distance: int
    lot: int
    accounts: dict[int, Contact]  # by path, where it is said to be
    by: list["Candidate"] = field(default_factory=list)  # who named it; nobody: the own table
    step: Step | None = None
    tried: frozenset[Address] = frozenset()  # before, in vain
    lost: bool = False  # it was not found where it was said to be
    late: bool = False  # or failed
    good: int = 0  # of those that it named have answered
    bad: int = 0  # are late or have failed

    @property
    def doubt(self) -> int:
        """How many contacts, beyond some, the most credible of those who named it named in vain."""
        return min((max(one.bad - min(one.good, defaults.CREDIT), 0) for one in self.by), default=0)

    @property
    def sure(self) -> bool:
        """It answered, or is of the own table, or two have named it and are in no doubt."""
        answered = self.step is not None and self.step.answered is not None
        return answered or not self.by or (len(self.by) > 1 and self.doubt == 0)

    @property
    def dead(self) -> bool:
        """It was asked in vain."""
        return self.step is not None and self.step.outcome not in _GOOD

    def older(self, seconds: float, now: float) -> bool:
        """Whether it was asked so long ago."""
        return self.step is not None and self.step.asked + seconds <= now

    def named_by(self, one: "Candidate | None") -> None:
        """Another names it too; one of the own table needs no such word."""
        if one is None or one is self or not self.by:
            return
        self.by.append(one)
        one.bad += self.late

    def in_vain(self) -> None:
        """It is late, or has failed: that is held against who named it."""
        if not self.late:
            self.late = True
            for one in self.by:
                one.bad += 1

    def made_good(self) -> None:
        """It has answered."""
        for one in self.by:
            one.good += 1
            one.bad -= self.late
        self.late = False


@dataclass(slots=True)
class LookupPath:
    """One of the disjoint paths of a look-up."""

    waiting: list[Candidate] = field(default_factory=list)
    asked: list[Candidate] = field(default_factory=list)  # and not answered yet
    queries: int = 0  # so far
    heard: int = 0  # contacts
    begun: bool = False
    sure: bool = False  # the first of it, under way, should do

"""Result of finding the records of a key, and the merging of records from several sources."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..transport.identity import PeerId
from . import defaults
from .lookup.candidate import LookupStep
from .lookup.cells import cells
from .lookup.foundrecords import FoundRecord
from .records.key import Key


@dataclass(frozen=True, slots=True)
class FindingResult:
    """Records found under a key, and the queries (`path`) that the look-up sent, in order.

    There is one record for each author and slot, the latest. `began` and `ended` are times of the
    host's monotonic clock, in seconds.
    """

    records: tuple[FoundRecord, ...] = ()
    path: tuple[LookupStep, ...] = ()
    began: float = 0.0
    ended: float = 0.0


class Gathering:
    """Latest record of each author and slot under one key, merged from several sources."""

    def __init__(self) -> None:
        self._latest: dict[tuple[PeerId, str], FoundRecord] = {}

    def add(self, found: Iterable[FoundRecord]) -> None:
        """Add records, and keep only the latest of each author and slot.

        Of two copies of one record, the one that its author announced more recently is kept.
        """
        for each in found:
            slot = each.record.author, each.record.slot
            old = self._latest.get(slot)
            if old is None or _rank(each) > _rank(old):
                self._latest[slot] = each

    def authors(self) -> int:
        """Return the number of authors that have a record that is not withdrawn."""
        return len({each.record.author for each in self.records()})

    def records(self) -> list[FoundRecord]:
        """Return the records that are not withdrawn."""
        return [each for each in self._latest.values() if not each.record.gone]


def _rank(found: FoundRecord) -> tuple[int, float]:
    """Return the rank of a record among those in one slot: a later record or fresher copy wins."""
    return found.record.made, -found.age


def regions(keys: Iterable[Key], radius: float) -> list[list[Key]]:
    """Group keys so that one look-up covers each group. A group has at most `FIND_KEYS` keys.

    `radius` is the expected distance from a key to the farthest node that stores its records.
    """
    return [
        group[start : start + defaults.FIND_KEYS]
        for group in cells(keys, radius)
        for start in range(0, len(group), defaults.FIND_KEYS)
    ]

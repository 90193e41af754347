"""Records found under a key, merged from several sources, with the trace of the look-up."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..transport.identity import PeerId
from . import defaults
from .kademlia.candidate import Step
from .kademlia.foundrecords import FoundRecord
from .kademlia.walk import cells
from .records.key import Key


@dataclass(frozen=True, slots=True)
class Found:
    """Latest record of each author and slot, and the queries sent, in order.

    Times are the host's monotonic seconds.
    """

    records: tuple[FoundRecord, ...] = ()
    path: tuple[Step, ...] = ()
    began: float = 0.0
    ended: float = 0.0


class Gathering:
    """Merges the records of one key from several sources."""

    def __init__(self) -> None:
        self._latest: dict[tuple[PeerId, str], FoundRecord] = {}

    def add(self, found: Iterable[FoundRecord]) -> None:
        """Keep the latest record of each author and slot; on ties the fresher copy."""
        for each in found:
            slot = each.record.author, each.record.slot
            old = self._latest.get(slot)
            if old is None or _rank(each) > _rank(old):
                self._latest[slot] = each

    def authors(self) -> int:
        """Return the number of authors with a record that is not withdrawn."""
        return len({each.record.author for each in self.records()})

    def records(self) -> list[FoundRecord]:
        """Return the records that are not withdrawn."""
        return [each for each in self._latest.values() if not each.record.gone]


def _rank(found: FoundRecord) -> tuple[int, float]:
    return found.record.made, -found.age


def regions(keys: Iterable[Key], radius: float) -> list[list[Key]]:
    """Group keys so that each group takes one look-up."""
    return [
        group[start : start + defaults.FIND_KEYS]
        for group in cells(keys, radius)
        for start in range(0, len(group), defaults.FIND_KEYS)
    ]

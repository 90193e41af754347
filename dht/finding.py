"""What was found under a key, from whichever source, and how it was looked for."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..transport.identity import PeerId
from . import defaults
from .candidate import Step
from .foundrecords import FoundRecord
from .key import Key
from .walk import cells


@dataclass(frozen=True, slots=True)
class Found:
    """The latest record of each author and slot, and who was asked, in that order. Times are the
    host's monotonic seconds."""

    records: tuple[FoundRecord, ...] = ()
    path: tuple[Step, ...] = ()
    began: float = 0.0
    ended: float = 0.0


class Gathering:
    """Records of one key from several sources."""

    def __init__(self) -> None:
        self._latest: dict[tuple[PeerId, str], FoundRecord] = {}

    def add(self, found: Iterable[FoundRecord]) -> None:
        """Of each author and slot the later made counts; of equals the one heard of later."""
        for each in found:
            slot = each.record.author, each.record.slot
            old = self._latest.get(slot)
            if old is None or _rank(each) > _rank(old):
                self._latest[slot] = each

    def authors(self) -> int:
        """How many have something to say that they have not withdrawn."""
        return len({each.record.author for each in self.records()})

    def records(self) -> list[FoundRecord]:
        """What is not withdrawn."""
        return [each for each in self._latest.values() if not each.record.gone]


def _rank(found: FoundRecord) -> tuple[int, float]:
    return found.record.made, -found.age


def regions(keys: Iterable[Key], radius: float) -> list[list[Key]]:
    """Keys in groups, each for one look-up."""
    return [
        group[start : start + defaults.FIND_KEYS]
        for group in cells(keys, radius)
        for start in range(0, len(group), defaults.FIND_KEYS)
    ]

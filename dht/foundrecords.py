"""`FoundRecords`: what those that were asked in one look-up handed out. Sans-I/O.

Every record is verified before it counts, and each node that handed one out is a witness: one liar
makes up as many authors as are wanted, and is one witness all the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..transport.identity import PeerId
from . import defaults
from .errors import BadRecord
from .key import Key
from .messages import Found
from .record import Record, open_record, time_code


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record, how long nobody had heard of it from its author (s), who handed it out."""

    record: Record
    age: float
    by: PeerId


class FoundRecords:
    """Under `keys`: of each place the latest."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)
        self._latest: dict[tuple[PeerId, Key, str], FoundRecord] = {}
        self._witnesses: dict[Key, set[PeerId]] = {key: set() for key in self._keys}

    def take(self, peer: PeerId, found: Found, wall: float) -> str:
        """What a node handed out, all of it or nothing; a code where it sent what is no record of
        the key. `wall` is the own clock, s since 1970."""
        taken: list[FoundRecord] = []
        for key, listed in zip(self._keys, found.records, strict=True):
            for aged in listed:
                try:
                    record = open_record(aged.sealed)
                except BadRecord as error:
                    return error.code
                if record.key != key:
                    return "bad-type"
                if aged.age < record.ttl and not time_code(record, wall):
                    taken.append(FoundRecord(record, float(aged.age), peer))
        for each in taken:
            self._add(each)
        return ""

    def _add(self, one: FoundRecord) -> None:
        if not one.record.gone:
            self._witnesses[one.record.key].add(one.by)
        old = self._latest.get(one.record.place)
        if old is None or (one.record.made, -one.age) > (old.record.made, -old.age):
            self._latest[one.record.place] = one

    def of(self, key: Key) -> list[FoundRecord]:
        """The latest of each author and slot; withdrawn ones not."""
        return [
            each
            for each in self._latest.values()
            if each.record.key == key and not each.record.gone
        ]

    def gone(self, key: Key) -> list[FoundRecord]:
        """Those that say that something is withdrawn."""
        return [
            each for each in self._latest.values() if each.record.key == key and each.record.gone
        ]

    def enough(self, authors: int, *, witnesses: bool) -> bool:
        """Whether each key has records of so many authors, and where `witnesses` count from as
        many nodes, as far as `WITNESSES` go."""
        known: dict[Key, set[PeerId]] = {key: set() for key in self._keys}
        for each in self._latest.values():
            if not each.record.gone:
                known[each.record.key].add(each.record.author)
        several = min(authors, defaults.WITNESSES) if witnesses else 1
        return all(
            len(found) >= authors and len(self._witnesses[key]) >= several
            for key, found in known.items()
        )

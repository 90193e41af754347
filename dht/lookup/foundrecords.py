"""`FoundRecords`: the records that the queried nodes of one look-up returned. No I/O.

Every record is verified before it counts. Each node that returned a valid record of a key is a
witness of the key. A liar can invent any number of authors, but remains a single witness.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...transport.identity import PeerId
from .. import defaults
from ..errors import BadRecord
from ..kademlia.messages import FindReply
from ..records.key import Key
from ..records.record import Record, open_record, time_code


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record, its age in seconds since its last announcement, and the node that returned it."""

    record: Record
    age: float
    by: PeerId


class FoundRecords:
    """Latest record of each author and slot under `keys`."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)
        self._latest: dict[tuple[PeerId, Key, str], FoundRecord] = {}
        self._witnesses: dict[Key, set[PeerId]] = {key: set() for key in self._keys}

    def take(self, peer: PeerId, found: FindReply, wall: float) -> str:
        """Verify and add the records of a node's reply.

        Return "", or an error code if one is invalid. If one record is invalid, none is added.
        Expired records are ignored. `wall` is this node's own clock in seconds since 1970.
        """
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
        """Add a record if it is the latest of its slot.

        The node that returned it becomes a witness of the key, unless the record is a withdrawal.
        """
        if not one.record.gone:
            self._witnesses[one.record.key].add(one.by)
        old = self._latest.get(one.record.place)
        if old is None or (one.record.made, -one.age) > (old.record.made, -old.age):
            self._latest[one.record.place] = one

    def of(self, key: Key) -> list[FoundRecord]:
        """Return the latest record of each author and slot under a key, without withdrawals."""
        return [
            each
            for each in self._latest.values()
            if each.record.key == key and not each.record.gone
        ]

    def gone(self, key: Key) -> list[FoundRecord]:
        """Return the withdrawals under a key."""
        return [
            each for each in self._latest.values() if each.record.key == key and each.record.gone
        ]

    def enough(self, authors: int, *, witnesses: bool) -> bool:
        """Return whether each key has records of at least `authors` authors.

        If `witnesses`, each key must also have as many witnesses as authors, but at most
        `WITNESSES`.
        """
        known: dict[Key, set[PeerId]] = {key: set() for key in self._keys}
        for each in self._latest.values():
            if not each.record.gone:
                known[each.record.key].add(each.record.author)
        several = min(authors, defaults.WITNESSES) if witnesses else 1
        return all(
            len(found) >= authors and len(self._witnesses[key]) >= several
            for key, found in known.items()
        )

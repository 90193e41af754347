"""Records that this node publishes, and the time at which each is announced again.

To *announce* a record is to store it at the nodes of its region. A record expires there, and must
therefore be announced repeatedly. No I/O. Times are seconds of the host's monotonic clock, except
`wall`, which is in seconds since 1970.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from ...transport.identity import Identity
from .. import defaults
from ..errors import BadRecord
from ..figures import OwnRecordFigures
from ..records.key import Key, key_text
from ..records.record import (
    BlobBody,
    Body,
    NameBody,
    PeerBody,
    Record,
    ShardBody,
    open_record,
    seal_record,
)

Slot = tuple[Key, str]


@dataclass(slots=True)
class OwnRecord:
    """A record that this node publishes.

    A withdrawn record stays until every node has forgotten it.
    """

    record: Record
    lasting: bool  # it stays true after this process ends
    due: float  # when to announce it next
    stale: bool = False  # it must be sealed again before it is announced
    announced: float | None = None  # end of the last announcement of this content
    stored: int = 0  # nodes that acknowledged the last announcement
    tries: int = 0  # announcements in a row that too few nodes acknowledged
    patient: bool = False  # it is announced in the background, with few dials
    walking: bool = False  # it is being announced now
    last: float = -inf  # end of the last announcement of its slot
    known: int = 0  # nodes that this node knew at the last announcement
    fresh: bool = True  # its current content has not been announced yet
    ends: float | None = None  # when every node has forgotten a withdrawal; else None

    @property
    def slot(self) -> Slot:
        """Key and slot of the record."""
        return self.record.key, self.record.slot

    def view(self, now: float) -> OwnRecordFigures:
        """Return the figures of this record that `shoal dht` shows."""
        record = self.record
        return OwnRecordFigures(
            kind=record.body.kind,
            key=key_text(record.key),
            about=_about(record.body),
            gone=record.gone,
            stored=self.stored,
            announced_s=None if self.announced is None else now - self.announced,
            due_s=None if self.due == inf else self.due - now,
        )


def _about(body: Body) -> str:
    """Return the subject of a record for display: a peer, a name, a root, or a slot."""
    match body:
        case PeerBody():
            return body.peer
        case NameBody():
            return body.name
        case BlobBody():
            return body.root
        case ShardBody():
            return f"{body.slot} of {body.root}"
        case _:
            return body.slot


class OwnRecords:
    """All records that the node `identity` publishes, by key and slot.

    `changed` counts the changes so far, which shows when the records must be saved again.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._own: dict[Key, dict[str, OwnRecord]] = {}
        self.changed = 0

    def __len__(self) -> int:
        return sum(map(len, self._own.values()))

    def __iter__(self) -> Iterator[OwnRecord]:
        for slots in self._own.values():
            yield from slots.values()

    def at(self, key: Key) -> list[OwnRecord]:
        """Return the records under a key that are not withdrawn."""
        return [own for own in self._own.get(key, {}).values() if not own.record.gone]

    def _get(self, key: Key, slot: str) -> OwnRecord | None:
        """Return the record in a slot, or None."""
        return self._own.get(key, {}).get(slot)

    def _set(self, own: OwnRecord) -> None:
        """Store a record in its slot."""
        self._own.setdefault(own.record.key, {})[own.record.slot] = own

    # Publishing.

    def publish(
        self,
        body: Body,
        ttl: int,
        *,
        lasting: bool,
        patient: bool = False,
        now: float,
        wall: float,
    ) -> bool:
        """Add or replace a record, to be announced. Return False if it is unchanged.

        A `patient` record is announced in the background. Raises BadRecord if other nodes would
        reject the record, or if this node has already used all its slots under the key.
        """
        old = self._get(body.key, body.slot)
        if old is not None and not old.record.gone and old.record.body == body:
            if old.lasting == lasting and old.record.ttl == ttl:
                return False
        elif old is None or old.record.gone:
            self._check_slots(body)
        own = self._say(body, ttl, lasting=lasting, gone=False, now=now, wall=wall)
        if patient:
            own.patient = True
            own.due = max(now + defaults.SAY_AFTER, own.last + defaults.SAY_PAUSE)
            if old is not None and old.patient and not old.walking:
                own.due = min(own.due, old.due)  # frequent changes must not postpone it endlessly
        return True

    def withdraw(self, key: Key, slot: str, *, now: float, wall: float) -> bool:
        """Replace the record in a slot by a withdrawal, to be announced.

        Return False if there is none.
        """
        old = self._get(key, slot)
        if old is None or old.record.gone:
            return False
        record = old.record
        own = self._say(record.body, record.ttl, lasting=True, gone=True, now=now, wall=wall)
        own.ends = now + defaults.LIVES * record.ttl
        return True

    def restore(self, kept: Iterable[tuple[Record, bool]], *, now: float, wall: float) -> None:
        """Add the records that the last run saved, each with whether it is lasting.

        Records that are not lasting are withdrawn. Records that every node has forgotten are
        ignored.
        """
        for record, lasting in kept:
            if record.author != self._identity.peer or self._get(record.key, record.slot):
                continue
            over = record.made / 1000 + defaults.LIVES * record.ttl - wall
            if (record.gone or not lasting) and over <= 0:
                continue  # every node has forgotten it by now
            own = OwnRecord(record, lasting, now, stale=not record.gone)
            self._set(own)
            if record.gone:
                own.ends = now + over
            elif not lasting:
                self.withdraw(*own.slot, now=now, wall=wall)

    def _say(
        self, body: Body, ttl: int, *, lasting: bool, gone: bool, now: float, wall: float
    ) -> OwnRecord:
        """Seal a record, put it into its slot, and return it. It is due now."""
        old = self._get(body.key, body.slot)
        made = int(wall * 1000)
        if old is not None:
            made = max(made, old.record.made + 1)  # the wall clock may have been set back
        sealed = seal_record(self._identity, body, made=made, ttl=ttl, gone=gone)
        last = -inf if old is None else old.last
        own = OwnRecord(open_record(sealed), lasting, now, last=last)
        self._set(own)
        self.changed += 1
        return own

    def _check_slots(self, body: Body) -> None:
        """Raise BadRecord if this node has already used all its slots under the key of `body`."""
        most = defaults.SLOTS.get(body.kind, defaults.SLOTS_OTHER)
        if len(self.at(body.key)) >= most:
            raise BadRecord("quota", f"nodes store at most {most} records of an author under a key")

    # Announcing.

    def due(self, now: float) -> list[OwnRecord]:
        """Return the records to announce now.

        If one of them is a regular repeat, and neither new nor a retry, the records that are nearly
        due are returned as well, to share its walk.
        """
        self._forget(now)
        found = [own for own in self if own.due <= now]
        if any(not own.fresh and not own.tries for own in found):
            return [own for own in self if own.due <= now + self._early(own)]
        return found

    def next_due(self) -> float | None:
        """Return the time at which the next record is due, or None if there are no records."""
        return min((own.due for own in self), default=None)

    def sealed(self, own: OwnRecord, wall: float) -> bytes:
        """Return the sealed bytes of a record for its announcement.

        A record that is stale, or older than `AGAIN` times its ttl, is sealed again first.
        """
        record = own.record
        old = wall - record.made / 1000 > record.ttl * defaults.AGAIN
        if own.stale or (old and not record.gone):
            made = max(int(wall * 1000), record.made + 1)
            sealed = seal_record(self._identity, record.body, made=made, ttl=record.ttl)
            own.record, own.stale = open_record(sealed), False
            self.changed += 1
        return own.record.sealed

    def stored(self, record: Record, nodes: int) -> None:
        """Record how many nodes have acknowledged a record in the present announcement."""
        own = self._get(record.key, record.slot)
        if own is not None and own.record is record:
            own.stored = nodes

    def announced(
        self, own: OwnRecord, stored: int, wanted: int, now: float, jitter: float
    ) -> None:
        """Record the result of an announcement, and schedule the next one.

        `stored` of `wanted` nodes acknowledged the record. `jitter`, a random number from 0 to 1,
        shortens the interval a little.
        """
        current = self._get(*own.slot)
        if current is not None:
            current.last = now
        if current is not own:  # the record was replaced during the announcement
            if current is not None and current.patient:
                current.due = max(current.due, self._rested(current))
            return
        own.announced, own.stored = now, stored
        if stored >= max(1, wanted * defaults.ENOUGH_KEPT):
            own.tries, own.fresh = 0, False
            own.stale = not own.record.gone
            if own.record.gone:
                own.due = inf  # a node that forgets the withdrawal has forgotten the record too
                return
            again = own.record.ttl * defaults.AGAIN
            own.due = now + again * (1 - defaults.AGAIN_SPREAD * jitter)
            return
        self.put_off(own, now, jitter)

    def put_off(self, own: OwnRecord, now: float, jitter: float) -> None:
        """Schedule the next announcement of a record after one that has failed.

        `jitter`, from 0 to 1, shortens the pause by up to a quarter.
        """
        pause = min(defaults.REPAIR_PAUSE[0] * 2**own.tries, defaults.REPAIR_PAUSE[1])
        if own.patient:
            pause = max(pause, defaults.SAY_PAUSE)
        own.tries = min(own.tries + 1, 32)
        own.due = now + pause * (1 - 0.25 * jitter)

    def grown(self, known: int, now: float) -> bool:
        """Schedule records that were announced when this node knew far fewer nodes than now.

        Such a record may be stored at too few nodes, and vanish before it is due. `known` is the
        number of nodes that are known now. Returns whether a record was rescheduled.
        """
        found = [
            own
            for own in self
            if own.announced is not None and 2 * own.known <= min(known, defaults.K)
            if not own.record.gone and own.due > max(now, self._rested(own))
        ]
        for own in found:
            own.due = max(now, self._rested(own))
        return bool(found)

    def hurry(self, now: float) -> None:
        """Make the records due that too few nodes store, because the network has changed."""
        for own in self:
            if own.tries:
                own.due, own.tries = now, 1

    @staticmethod
    def _rested(own: OwnRecord) -> float:
        """Return the earliest time at which a record may be announced again."""
        return own.last + defaults.SAY_PAUSE if own.patient else -inf

    @staticmethod
    def _early(own: OwnRecord) -> float:
        """Return how many seconds early a record may be announced."""
        return own.record.ttl * defaults.AGAIN * defaults.AGAIN_SPREAD

    def _forget(self, now: float) -> None:
        """Remove the withdrawals that every node has forgotten."""
        over = [own.slot for own in self if own.ends is not None and own.ends <= now]
        for key, slot in over:
            del self._own[key][slot]
            if not self._own[key]:
                del self._own[key]
            self.changed += 1

    def dump(self) -> list[tuple[bytes, bool]]:
        """Return the sealed bytes of each record, and whether it is lasting, to be saved."""
        return [(own.record.sealed, own.lasting) for own in self]

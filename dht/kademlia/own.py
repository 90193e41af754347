"""Records that this node publishes, and when each is announced again.

Sans-I/O: bodies and times go in, sealed records come out. Times are seconds of the host's
monotonic clock, except `wall`.
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
class Own:
    """One own record, until it is withdrawn and every node has forgotten it."""

    record: Record
    lasting: bool  # stays true after this process ends
    due: float  # when to announce it next
    stale: bool = False  # has to be sealed again before it is announced
    announced: float | None = None
    kept: int = 0  # nodes that acknowledged the last announcement
    tries: int = 0  # announcements in a row that too few nodes acknowledged
    patient: bool = False  # announced in the background, at the rate of upkeep
    walking: bool = False  # an announcement is in progress
    last: float = -inf  # when its slot was last announced
    known: int = 0  # nodes that this node knew at the last announcement
    fresh: bool = True  # its current content has not been announced yet
    ends: float | None = None  # for a withdrawal: when every node has forgotten it

    @property
    def slot(self) -> Slot:
        return self.record.key, self.record.slot

    def view(self, now: float) -> OwnRecordFigures:
        """Return what `shoal dht` shows of it."""
        record = self.record
        return OwnRecordFigures(
            kind=record.body.kind,
            key=key_text(record.key),
            about=_about(record.body),
            gone=record.gone,
            kept=self.kept,
            announced_s=None if self.announced is None else now - self.announced,
            due_s=None if self.due == inf else self.due - now,
        )


def _about(body: Body) -> str:
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
    """All own records of one identity. `changed` counts the changes that have to be saved."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._own: dict[Key, dict[str, Own]] = {}
        self.changed = 0

    def __len__(self) -> int:
        return sum(map(len, self._own.values()))

    def __iter__(self) -> Iterator[Own]:
        for slots in self._own.values():
            yield from slots.values()

    def at(self, key: Key) -> list[Own]:
        """Return the records under a key that are not withdrawn."""
        return [own for own in self._own.get(key, {}).values() if not own.record.gone]

    def _get(self, key: Key, slot: str) -> Own | None:
        return self._own.get(key, {}).get(slot)

    def _set(self, own: Own) -> None:
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
        """Publish a record; return False if it is published already.

        Raises BadRecord if other nodes would reject it, or if this author has used all its slots
        under the key.
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
                own.due = min(own.due, old.due)  # frequent changes must not postpone it for good
        return True

    def withdraw(self, key: Key, slot: str, *, now: float, wall: float) -> bool:
        """Withdraw the record in a slot; return False if there is none."""
        old = self._get(key, slot)
        if old is None or old.record.gone:
            return False
        record = old.record
        own = self._say(record.body, record.ttl, lasting=True, gone=True, now=now, wall=wall)
        own.ends = now + defaults.LIVES * record.ttl
        return True

    def restore(self, kept: Iterable[tuple[Record, bool]], *, now: float, wall: float) -> None:
        """Take over the records of the last run; withdraw those that ended with that process."""
        for record, lasting in kept:
            if record.author != self._identity.peer or self._get(record.key, record.slot):
                continue
            over = record.made / 1000 + defaults.LIVES * record.ttl - wall
            if (record.gone or not lasting) and over <= 0:
                continue  # every node has forgotten it by now
            own = Own(record, lasting, now, stale=not record.gone)
            self._set(own)
            if record.gone:
                own.ends = now + over
            elif not lasting:
                self.withdraw(*own.slot, now=now, wall=wall)

    def _say(
        self, body: Body, ttl: int, *, lasting: bool, gone: bool, now: float, wall: float
    ) -> Own:
        old = self._get(body.key, body.slot)
        made = int(wall * 1000)
        if old is not None:
            made = max(made, old.record.made + 1)  # the wall clock may have been set back
        sealed = seal_record(self._identity, body, made=made, ttl=ttl, gone=gone)
        last = -inf if old is None else old.last
        own = Own(open_record(sealed), lasting, now, last=last)
        self._set(own)
        self.changed += 1
        return own

    def _check_slots(self, body: Body) -> None:
        most = defaults.SLOTS.get(body.kind, defaults.SLOTS_OTHER)
        if len(self.at(body.key)) >= most:
            raise BadRecord("quota", f"nodes store at most {most} records of an author under a key")

    # Announcing.

    def due(self, now: float) -> list[Own]:
        """Return the records to announce now, and with them those that are nearly due."""
        self._forget(now)
        found = [own for own in self if own.due <= now]
        if any(not own.fresh and not own.tries for own in found):
            return [own for own in self if own.due <= now + self._early(own)]
        return found

    def next_due(self) -> float | None:
        """Return when the next record is due."""
        return min((own.due for own in self), default=None)

    def sealed(self, own: Own, wall: float) -> bytes:
        """Return the bytes to announce, sealed again if old, so that the record does not expire."""
        record = own.record
        old = wall - record.made / 1000 > record.ttl * defaults.AGAIN
        if own.stale or (old and not record.gone):
            made = max(int(wall * 1000), record.made + 1)
            sealed = seal_record(self._identity, record.body, made=made, ttl=record.ttl)
            own.record, own.stale = open_record(sealed), False
            self.changed += 1
        return own.record.sealed

    def kept(self, record: Record, nodes: int) -> None:
        """Record how many nodes have acknowledged a record so far."""
        own = self._get(record.key, record.slot)
        if own is not None and own.record is record:
            own.kept = nodes

    def announced(self, own: Own, kept: int, wanted: int, now: float, jitter: float) -> None:
        """Record the result of an announcement and schedule the next one.

        `kept` of `wanted` nodes acknowledged it; `jitter` is from 0 to 1.
        """
        current = self._get(*own.slot)
        if current is not None:
            current.last = now
        if current is not own:  # the slot was changed during the announcement
            if current is not None and current.patient:
                current.due = max(current.due, self._rested(current))
            return
        own.announced, own.kept = now, kept
        if kept >= max(1, wanted * defaults.ENOUGH_KEPT):
            own.tries, own.fresh = 0, False
            own.stale = not own.record.gone
            if own.record.gone:
                own.due = inf  # a node that forgets the withdrawal has forgotten the record too
                return
            again = own.record.ttl * defaults.AGAIN
            own.due = now + again * (1 - defaults.AGAIN_SPREAD * jitter)
            return
        pause = min(defaults.REPAIR_PAUSE[0] * 2**own.tries, defaults.REPAIR_PAUSE[1])
        if own.patient:
            pause = max(pause, defaults.SAY_PAUSE)
        own.tries = min(own.tries + 1, 32)
        own.due = now + pause * (1 - 0.25 * jitter)

    def grown(self, known: int, now: float) -> bool:
        """Schedule records again if this node knew far fewer nodes when it announced them.

        Records that went to too few nodes could vanish before they are due. Returns whether any
        was rescheduled; `known` is the number of nodes known now.
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
        """Retry at once the records that too few nodes store, after a change of the network."""
        for own in self:
            if own.tries:
                own.due, own.tries = now, 1

    @staticmethod
    def _rested(own: Own) -> float:
        """Return the earliest time at which a record may be announced again."""
        return own.last + defaults.SAY_PAUSE if own.patient else -inf

    @staticmethod
    def _early(own: Own) -> float:
        return own.record.ttl * defaults.AGAIN * defaults.AGAIN_SPREAD

    def _forget(self, now: float) -> None:
        over = [own.slot for own in self if own.ends is not None and own.ends <= now]
        for key, slot in over:
            del self._own[key][slot]
            if not self._own[key]:
                del self._own[key]
            self.changed += 1

    def dump(self) -> list[tuple[bytes, bool]]:
        """Return what to save for the next run: sealed bytes, and whether the record is lasting."""
        return [(own.record.sealed, own.lasting) for own in self]

"""What this node says in records of its own, and when it says it again.

Sans-I/O: bodies and times in, sealed records out. Times are seconds of the host's monotonic clock,
but for `wall`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from ..transport.identity import Identity
from . import defaults
from .errors import BadRecord
from .key import Key, key_text
from .record import (
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
    """One record, until it is withdrawn and that has been forgotten everywhere."""

    record: Record
    lasting: bool  # true beyond this process
    due: float  # when to announce it next
    stale: bool = False  # it is to be sealed anew before it goes out
    announced: float | None = None
    kept: int = 0  # nodes that acknowledged it last time
    tries: int = 0  # in a row that too few did
    patient: bool = False  # it goes out in the background, at the pace of upkeep
    walking: bool = False  # it is being announced
    last: float = -inf  # when its slot was last announced
    known: int = 0  # nodes that this one knew when it was last announced
    fresh: bool = True  # what it says now has not been announced yet
    ends: float | None = None  # of what is withdrawn: when all have forgotten it

    @property
    def slot(self) -> Slot:
        return self.record.key, self.record.slot

    def view(self, now: float) -> dict[str, Any]:
        """What `shoal dht` shows of it; times in seconds, None for never."""
        record = self.record
        return {
            "kind": record.body.kind,
            "key": key_text(record.key),
            "about": _about(record.body),
            "gone": record.gone,
            "kept": self.kept,
            "announced_s": None if self.announced is None else now - self.announced,
            "due_s": None if self.due == inf else self.due - now,
        }


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
    """All records of one identity. `changed` counts what a file of them would not have."""

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
        """Those under a key that have not been withdrawn."""
        return [own for own in self._own.get(key, {}).values() if not own.record.gone]

    def _get(self, key: Key, slot: str) -> Own | None:
        return self._own.get(key, {}).get(slot)

    def _set(self, own: Own) -> None:
        self._own.setdefault(own.record.key, {})[own.record.slot] = own

    # What is said.

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
        """Say this from now on; False where it is being said already.

        Raises BadRecord where others would refuse it, and where its author has more slots under
        a key than others keep.
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
                own.due = min(own.due, old.due)  # or what changes often would never be told
        return True

    def withdraw(self, key: Key, slot: str, *, now: float, wall: float) -> bool:
        """Take back what was said there; False where nothing is."""
        old = self._get(key, slot)
        if old is None or old.record.gone:
            return False
        record = old.record
        own = self._say(record.body, record.ttl, lasting=True, gone=True, now=now, wall=wall)
        own.ends = now + defaults.LIVES * record.ttl
        return True

    def restore(self, kept: Iterable[tuple[Record, bool]], *, now: float, wall: float) -> None:
        """What the last run had said: it holds again, or is withdrawn where its truth ended with
        that run."""
        for record, lasting in kept:
            if record.author != self._identity.peer or self._get(record.key, record.slot):
                continue
            over = record.made / 1000 + defaults.LIVES * record.ttl - wall
            if (record.gone or not lasting) and over <= 0:
                continue  # forgotten everywhere by now
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
            made = max(made, old.record.made + 1)  # the clock may have been set back
        sealed = seal_record(self._identity, body, made=made, ttl=ttl, gone=gone)
        last = -inf if old is None else old.last
        own = Own(open_record(sealed), lasting, now, last=last)
        self._set(own)
        self.changed += 1
        return own

    def _check_slots(self, body: Body) -> None:
        most = defaults.SLOTS.get(body.kind, defaults.SLOTS_OTHER)
        if len(self.at(body.key)) >= most:
            raise BadRecord("quota", f"others keep {most} records of one node under one key")

    # What is due.

    def due(self, now: float) -> list[Own]:
        """Those to announce now; if any are, those that would be soon go along."""
        self._forget(now)
        found = [own for own in self if own.due <= now]
        if any(not own.fresh and not own.tries for own in found):
            return [own for own in self if own.due <= now + self._early(own)]
        return found

    def next_due(self) -> float | None:
        """When something is."""
        return min((own.due for own in self), default=None)

    def sealed(self, own: Own, wall: float) -> bytes:
        """What to send of it: made anew where it was announced before, so that it lives on."""
        record = own.record
        old = wall - record.made / 1000 > record.ttl * defaults.AGAIN
        if own.stale or (old and not record.gone):
            made = max(int(wall * 1000), record.made + 1)
            sealed = seal_record(self._identity, record.body, made=made, ttl=record.ttl)
            own.record, own.stale = open_record(sealed), False
            self.changed += 1
        return own.record.sealed

    def kept(self, record: Record, nodes: int) -> None:
        """So many nodes have acknowledged it so far."""
        own = self._get(record.key, record.slot)
        if own is not None and own.record is record:
            own.kept = nodes

    def announced(self, own: Own, kept: int, wanted: int, now: float, jitter: float) -> None:
        """How many nodes acknowledged it, of how many that should have; `jitter` is 0 to 1."""
        current = self._get(*own.slot)
        if current is not None:
            current.last = now
        if current is not own:  # something else is said there by now
            if current is not None and current.patient:
                current.due = max(current.due, self._rested(current))
            return
        own.announced, own.kept = now, kept
        if kept >= max(1, wanted * defaults.ENOUGH_KEPT):
            own.tries, own.fresh = 0, False
            own.stale = not own.record.gone
            if own.record.gone:
                own.due = inf  # who has forgotten it has forgotten what it took back
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
        """So many nodes are known now. What was announced when there were half as many at most,
        and fewer than should keep it, is due again: they may all go before its life ends."""
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
        """The network may be another, or be back: who was kept by too few is tried again."""
        for own in self:
            if own.tries:
                own.due, own.tries = now, 1

    @staticmethod
    def _rested(own: Own) -> float:
        """Return the earliest time of its next announcement."""
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
        """What to keep over a restart."""
        return [(own.record.sealed, own.lasting) for own in self]

"""One iterative look-up: of the records under some keys of one region, or of the region's nodes.

Several disjoint paths approach the region (Baumgart and Mies, "S/Kademlia", ICPADS 2007, section
4.4): no contact belongs to two, so a liar spoils one of them. In the region the nodes are asked in
an order drawn by lot, not the nearest first, and each is asked as well who is near to some random
place there: identities ground next to the key are then neither the first that are asked nor all
that is heard of. Whoever named contacts that do not answer is believed last: a liar that makes up
nodes next to the key costs the time of one or two of them. Sans-I/O: queries come out of `next`,
answers go in.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import inf
from typing import Final

from ..transport.address import Address
from ..transport.identity import PeerId
from . import defaults
from .contact import Contact, merged
from .errors import BadRecord
from .key import SPACE, Key, key_at, point
from .messages import Find, Found
from .record import Record, open_record, time_code
from .table import lot

_THERE: Final = ("busy", "not-serving", "unknown-method", "bad-message")
"""Codes of a contact that was reached."""


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """How a look-up goes; the defences can be switched off for tests."""

    paths: int = defaults.PATHS
    """Disjoint paths; 1: every answer feeds the whole look-up."""
    by_lot: bool = True
    """The region's nodes in an order by lot, and random places of it asked for. Else the nearest
    first, until the `K` nearest have answered: for joining, and to see how dense it is there."""
    subnet_limits: bool = True
    """Contacts of networks that were asked often come last."""
    doubt: bool = True
    """Contacts named by those who named others in vain come last, and the region's nodes are not
    taken on the word of one."""
    hedge: float = defaults.HEDGE
    """Seconds after which an answer counts as late."""
    at_once: int = defaults.PATH_ASKED
    """Queries of each path under way at once, late ones aside."""
    shares: bool = True
    """Of the queries, and of the contacts that are heard of, each path has its share: else one that
    is led in circles, by machines that answer at once, uses up those of the others."""
    witnesses: bool = True
    """Enough authors are known only when several have handed out records: one liar makes up as
    many authors as are wanted."""
    accounts: bool = True
    """Of a contact that several paths named, what each says of where it is counts."""
    queries: int = defaults.LOOKUP_QUERIES
    """Of one look-up, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """To be asked of a contact."""

    contact: Contact
    find: Find
    by: tuple[PeerId, ...] = ()  # who named it; nobody: the own table


@dataclass(slots=True)
class Step:
    """One query, and what came of it: for people who want to see the way."""

    contact: Contact
    path: int
    hop: int  # 1 for contacts of the own table
    asked: float
    answered: float | None = None
    outcome: str = ""  # "" under way, "records", "contacts", "nothing", "failed", or a code
    records: int = 0
    contacts: int = 0  # that were new


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record, how long nobody had heard of it from its author (s), who handed it out."""

    record: Record
    age: float
    by: PeerId


@dataclass(slots=True, eq=False)
class _Candidate:
    contact: Contact
    path: int
    hop: int
    distance: int
    lot: int
    accounts: dict[int, Contact]  # by path, where it is said to be
    by: list["_Candidate"] = field(default_factory=list)  # who named it; nobody: the own table
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


@dataclass(slots=True)
class _Path:
    waiting: list[_Candidate] = field(default_factory=list)
    asked: list[_Candidate] = field(default_factory=list)  # and not answered yet
    queries: int = 0  # so far
    heard: int = 0  # contacts
    begun: bool = False
    sure: bool = False  # the first of it, under way, should do


class Lookup:
    """Of `keys`, which lie within `radius` of the first; without `enough`, of nodes."""

    def __init__(
        self,
        keys: Sequence[Key],
        start: Iterable[Contact],
        radius: float,
        entropy: Callable[[int], bytes],
        *,
        settings: LookupSettings | None = None,
        own: PeerId | None = None,
        serves: Contact | None = None,
        linked: Callable[[PeerId], bool] = lambda peer: False,
        enough: int = 0,
        most: int = defaults.K,
        kinds: tuple[str, ...] = (),
    ) -> None:
        """`start`: contacts of the table, nearest first. `enough`: authors of records for each
        key, 0 to look for the region's nodes. `own` is never asked."""
        self.keys = tuple(keys)
        self.settings = settings or LookupSettings()
        self.radius = radius
        self.steps: list[Step] = []
        self._at = point(self.keys[0])
        self._entropy = entropy
        self._nonce = entropy(16)
        self._own = own
        self._serves = serves
        self._linked = linked
        self._enough = enough
        self._most = most
        self._kinds = kinds
        self._paths = [_Path() for _ in range(self.settings.paths)]
        self._known: dict[PeerId, _Candidate] = {}
        self._networks: Counter[str] = Counter()  # of those that were asked
        self._records: dict[tuple[PeerId, Key, str], FoundRecord] = {}
        self._witnesses: dict[Key, set[PeerId]] = {key: set() for key in self.keys}
        self._answered: list[_Candidate] = []
        self._inside = 0  # nodes of the region that answered
        self._named = 0  # nodes of the region that were heard of
        self._quiet = 0  # answers in a row without a new node of the region
        self._now = 0.0
        self._slowest = inf  # s, of the answers so far
        for index, contact in enumerate(start):
            self._hear(contact, index % len(self._paths), 1, None)

    # What it has found.

    @property
    def done(self) -> bool:
        """Nothing more is to be asked, and answers under way are late beyond what is usual."""
        return self._satisfied() or (not self._awaited() and self._exhausted())

    @property
    def failed_all(self) -> bool:
        """Everybody was asked, and nobody answered."""
        return not self._answered

    def found(self, key: Key) -> list[FoundRecord]:
        """What is known of a key, the latest of each author and slot; withdrawn ones not."""
        return [
            each
            for each in self._records.values()
            if each.record.key == key and not each.record.gone
        ]

    def gone(self, key: Key) -> list[FoundRecord]:
        """Records under a key that say that something is withdrawn."""
        return [
            each for each in self._records.values() if each.record.key == key and each.record.gone
        ]

    def region(self) -> list[Contact]:
        """Nodes of the region: those that answered, and those in the own table or named by two
        that are not in doubt, nearest first; at least the `K` nearest, the others' word for them
        where need be."""
        alive = [each for each in self._known.values() if not self._dead(each)]
        alive.sort(key=lambda each: each.distance)
        if self.settings.doubt:
            sure = [each for each in alive if self._sure(each)]
            rest = [each for each in alive if not self._sure(each)]
            rest.sort(key=lambda each: each.doubt)
            alive = sure + rest[: max(defaults.K - len(sure), 0)]
        alive.sort(key=lambda each: each.distance)
        return [
            each.contact
            for index, each in enumerate(alive)
            if index < defaults.K or each.distance <= self.radius
        ]

    @staticmethod
    def _sure(each: _Candidate) -> bool:
        answered = each.step is not None and each.step.answered is not None
        return answered or not each.by or (len(each.by) > 1 and each.doubt == 0)

    def answerers(self) -> list[Contact]:
        """Who answered, nearest first."""
        return [each.contact for each in sorted(self._answered, key=lambda each: each.distance)]

    @staticmethod
    def _dead(each: _Candidate) -> bool:
        return each.step is not None and each.step.outcome not in (
            "",
            "records",
            "contacts",
            "nothing",
        )

    # Asking.

    def next(self, now: float) -> list[Query]:
        """Whom to ask what now. Ask again after each answer, failure, and at `wake_at`."""
        queries: list[Query] = []
        self._now = now
        if self._satisfied():
            return queries
        self._mark_late(now)
        for path in self._paths:
            while self._prompt(path, now) < (1 if path.sure else self.settings.at_once):
                chosen = self._choose(path)
                if chosen is None:
                    break
                queries.append(self._ask(path, chosen, now))
        return queries

    def wake_at(self, now: float) -> float:
        """When an answer will be late, or waited for no more, infinity where none is awaited."""
        due = (
            each.step.asked + wait
            for path in self._paths
            for each in path.asked
            if each.step is not None
            for wait in (self.settings.hedge, self._patience())
        )
        return min((when for when in due if when > now), default=inf)

    def _patience(self) -> float:
        """How long an answer is waited for when nobody else is left to ask."""
        least, most = defaults.LATE_S
        return min(max(defaults.LATE_FACTOR * self._slowest, least), most)

    def _prompt(self, path: _Path, now: float) -> int:
        """Queries under way that are not late."""
        return sum(not self._older(each, self.settings.hedge, now) for each in path.asked)

    @staticmethod
    def _older(each: _Candidate, seconds: float, now: float) -> bool:
        return each.step is not None and each.step.asked + seconds <= now

    def _mark_late(self, now: float) -> None:
        for path in self._paths:
            for each in path.asked:
                if not each.late and self._older(each, self.settings.hedge, now):
                    self._in_vain(each)
                    path.sure = False

    @staticmethod
    def _in_vain(each: _Candidate) -> None:
        """It is late, or has failed: that is held against who named it."""
        if not each.late:
            each.late = True
            for one in each.by:
                one.bad += 1

    @staticmethod
    def _made_good(each: _Candidate) -> None:
        """It has answered."""
        for one in each.by:
            one.good += 1
            one.bad -= each.late
        each.late = False

    def _ask(self, path: _Path, chosen: _Candidate, now: float) -> Query:
        path.waiting.remove(chosen)
        path.asked.append(chosen)
        path.queries += 1
        self._networks.update(chosen.contact.networks)
        chosen.step = Step(chosen.contact, chosen.path, chosen.hop, now)
        path.sure = not path.begun and self._should_do(chosen)
        path.begun = True
        self.steps.append(chosen.step)
        near = (self._place(),) if self.settings.by_lot else ()
        most = self._most if self._enough else 0
        by = tuple(one.contact.peer for one in chosen.by)
        return Query(chosen.contact, Find(self.keys, near, most, self._kinds, self._serves), by)

    def _should_do(self, one: _Candidate) -> bool:
        """Whether it should have what is looked for, and is there: then nobody else of its path is
        asked beside it."""
        inside = one.distance <= self.radius
        return bool(self._enough) and inside and self._linked(one.contact.peer)

    def _place(self) -> Key:
        """Somewhere in the region."""
        offset = int.from_bytes(self._entropy(32)) % max(min(int(self.radius), SPACE - 1), 1)
        return key_at(self._at ^ offset)

    def _choose(self, path: _Path) -> _Candidate | None:
        if not path.waiting or not self._affordable(path) or self._settled():
            return None
        if self.settings.by_lot:
            inside = [each for each in path.waiting if each.distance <= self.radius]
            if inside:
                return self._credible(min(inside, key=self._drawn))
            return None if self._closed() else min(path.waiting, key=self._nearness)
        promising = filter(self._promising, path.waiting)
        chosen = min(promising, key=self._nearness, default=None)
        return None if chosen is None else self._credible(chosen)

    def _affordable(self, path: _Path) -> bool:
        """Whether a query is left beside those that are kept for other paths, while they need
        them."""
        share = self.settings.queries // len(self._paths) if self.settings.shares else 0
        kept = sum(
            max(share - other.queries, 0)
            for other in self._paths
            if other is not path and (other.waiting or other.asked)
        )
        return len(self.steps) + kept < self.settings.queries

    def _credible(self, each: _Candidate) -> _Candidate | None:
        """Not one in doubt, where enough have answered already."""
        if self.settings.by_lot:
            left = self._inside >= self._thin() and self._doubt(each) > 0
        else:
            left = len(self._answered) >= defaults.K and self._doubt(each) > defaults.DOUBT_MOST
        return None if left else each

    def _drawn(self, each: _Candidate) -> tuple[int, int, bool, int]:
        linked = self._linked(each.contact.peer)
        return self._doubt(each), self._crowd(each), not linked, each.lot

    def _nearness(self, each: _Candidate) -> tuple[int, int, int, int]:
        bonus = defaults.LINKED_BITS if self._linked(each.contact.peer) else 0
        bits = each.distance.bit_length() - bonus
        return self._doubt(each), self._crowd(each), bits, each.distance

    def _doubt(self, each: _Candidate) -> int:
        return each.doubt if self.settings.doubt else 0

    def _crowd(self, each: _Candidate) -> int:
        """How often its networks were asked beyond what is usual."""
        if not self.settings.subnet_limits:
            return 0
        asked = max((self._networks[name] for name in each.contact.networks), default=0)
        return max(asked - defaults.SUBNET_ASKED + 1, 0)

    def _promising(self, each: _Candidate) -> bool:
        """Whether fewer than `K` that are nearer have answered."""
        return sum(other.distance < each.distance for other in self._answered) < defaults.K

    def _closed(self) -> bool:
        """Whether it is not worth asking outside of the region: as many of it have answered as
        are to be expected, and many answers in a row named nobody else of it."""
        return self._inside >= self._thin() and self._quiet >= defaults.CLOSED_QUIET

    @staticmethod
    def _thin() -> float:
        return defaults.REGION_NODES * defaults.REGION_THIN

    def _settled(self) -> bool:
        """Whether the region's nodes are known, where nothing else is wanted."""
        if self._enough or not self.settings.by_lot:
            return False
        known = self._inside >= defaults.SETTLED_ASKED and self._quiet >= defaults.SETTLED_QUIET
        return known or self._inside >= defaults.SETTLED_MOST

    def _satisfied(self) -> bool:
        if not self._enough:
            return self._settled()
        authors: dict[Key, set[PeerId]] = {key: set() for key in self.keys}
        for each in self._records.values():
            if not each.record.gone:
                authors[each.record.key].add(each.record.author)
        several = min(self._enough, defaults.WITNESSES) if self.settings.witnesses else 1
        return all(
            len(found) >= self._enough and len(self._witnesses[key]) >= several
            for key, found in authors.items()
        )

    def _awaited(self) -> bool:
        """Whether an answer under way may still come soon."""
        patience = self._patience()
        return any(
            not self._older(each, patience, self._now)
            for path in self._paths
            for each in path.asked
        )

    def _exhausted(self) -> bool:
        return all(self._choose(path) is None for path in self._paths)

    # Answers.

    def answered(self, contact: Contact, found: Found, now: float, wall: float) -> str:
        """What a contact said. Returns a code where it sent a record that is none: `wall` is the
        own clock, s since 1970."""
        one = self._close(contact, now)
        if one is None or one.step is None:
            return ""
        code = self._take_records(contact, found, wall)
        if code:
            one.step.outcome = code
            self._in_vain(one)
            return code
        self._answered.append(one)
        self._made_good(one)
        took = now - one.step.asked
        self._slowest = took if self._slowest == inf else max(self._slowest, took)
        self._inside += one.distance <= self.radius
        before, inside = len(self._known), self._named
        for each in _in_turn(found.nearest):
            if len(self._known) - before < defaults.ANSWER_CONTACTS or each.peer in self._known:
                self._hear(each, one.path, one.hop + 1, one)
        self._quiet = 0 if self._named > inside else self._quiet + 1
        one.step.contacts = len(self._known) - before
        one.step.records = sum(map(len, found.records))
        one.step.outcome = (
            "records" if one.step.records else "contacts" if one.step.contacts else "nothing"
        )
        return ""

    def failed(self, contact: Contact, now: float, outcome: str = "failed") -> None:
        """It could not be asked, or did not answer; `outcome` may be a code of its refusal."""
        one = self._close(contact, now)
        if one is not None and one.step is not None:
            one.step.outcome = outcome
            if outcome != "busy":
                self._in_vain(one)
            one.lost = outcome not in _THERE
            self._elsewhere(one)

    def _close(self, contact: Contact, now: float) -> _Candidate | None:
        one = self._known.get(contact.peer)
        if one is None or one.step is None or one.step.answered is not None:
            return None
        one.step.answered = now
        path = self._paths[one.path]
        path.asked.remove(one)
        path.sure = False
        return one

    def _take_records(self, contact: Contact, found: Found, wall: float) -> str:
        taken: list[FoundRecord] = []
        for key, listed in zip(self.keys, found.records, strict=True):
            for aged in listed:
                try:
                    record = open_record(aged.sealed)
                except BadRecord as error:
                    return error.code
                if record.key != key:
                    return "bad-type"
                if aged.age < record.ttl and not time_code(record, wall):
                    taken.append(FoundRecord(record, float(aged.age), contact.peer))
        for each in taken:
            if not each.record.gone:
                self._witnesses[each.record.key].add(contact.peer)
            old = self._records.get(each.record.place)
            if old is None or (each.record.made, -each.age) > (old.record.made, -old.age):
                self._records[each.record.place] = each
        return ""

    def _hear(self, contact: Contact, path: int, hop: int, by: _Candidate | None) -> None:
        """A contact belongs to the path that heard of it first."""
        known = self._known.get(contact.peer)
        if known is not None:
            self._hear_again(known, by)
            self._hear_where(known, contact, path)
            return
        heard = self._paths[path].heard if self.settings.shares else len(self._known)
        share = len(self._paths) if self.settings.shares else 1
        if contact.peer == self._own or heard >= defaults.LOOKUP_CONTACTS // share:
            return
        candidate = _Candidate(
            contact,
            path,
            hop,
            contact.point ^ self._at,
            lot(self._nonce, contact.key),
            {path: contact},
        )
        if by is not None:
            candidate.by.append(by)
        self._known[contact.peer] = candidate
        self._named += candidate.distance <= self.radius
        self._paths[path].heard += 1
        self._paths[path].waiting.append(candidate)

    @staticmethod
    def _hear_again(known: _Candidate, by: _Candidate | None) -> None:
        """Another names it too; one of the own table needs no such word."""
        if by is None or by is known or not known.by:
            return
        known.by.append(by)
        by.bad += known.late

    def _hear_where(self, one: _Candidate, contact: Contact, path: int) -> None:
        """Another path may know better where it is: else a liar that speaks first sends all paths
        to where nobody answers."""
        if path in one.accounts or not self.settings.accounts:
            return
        one.accounts[path] = contact
        if one.step is None:
            one.contact = merged(list(one.accounts.values()))
        else:
            self._elsewhere(one)

    def _elsewhere(self, one: _Candidate) -> None:
        """One that was not found is asked where else it is said to be."""
        tried = one.tried | set(one.contact.addresses)
        for path, account in one.accounts.items():
            if one.lost and not tried.issuperset(account.addresses):
                again = replace(one, contact=account, path=path, step=None, tried=tried, lost=False)
                self._known[account.peer] = again
                self._paths[path].waiting.append(again)
                return


def _in_turn(lists: Sequence[Sequence[Contact]]) -> list[Contact]:
    """Each contact of some lists once, the first of each list first."""
    rows = zip_longest(*lists)
    return list(dict.fromkeys(each for row in rows for each in row if each is not None))

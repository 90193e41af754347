"""Publication of many records: one walk around the ring, region after region, a message a node.

Keys are sorted, one look-up finds the nodes for all keys of a cell of the key space, and each node
gets all that belongs to it at once. What is not acknowledged is tried again, and where too few keep
a record its region is looked up anew. Sans-I/O, as `Lookup`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from ..transport.identity import PeerId
from . import defaults
from .contact import Contact
from .key import KEY_BYTES, SPACE, Key, point
from .lookup import Lookup, LookupSettings, Query
from .messages import Aged, Found, Store, batches
from .record import Record

_BITS = 8 * KEY_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class StoreQuery:
    """To be stored with a contact."""

    contact: Contact
    store: Store
    records: tuple[Record, ...]


@dataclass(slots=True)
class Published:
    """What became of one record."""

    record: Record
    kept: list[PeerId] = field(default_factory=list)
    refused: dict[PeerId, str] = field(default_factory=dict)  # codes
    failed: list[PeerId] = field(default_factory=list)  # did not answer
    sent: set[PeerId] = field(default_factory=set)  # the same, and those under way

    def tried(self, peer: PeerId) -> bool:
        """Whether it need not be asked again."""
        return peer in self.sent


@dataclass(slots=True, eq=False)
class _Cell:
    """Records whose keys share so many leading bits that one region holds all of theirs."""

    records: list[Record]
    lookup: Lookup
    stores: int = 0  # under way or waiting
    looked_up: bool = False
    again: bool = False


@dataclass(slots=True, eq=False)
class _Parcel:
    cell: _Cell
    query: StoreQuery
    tries: int = 0
    due: float = -inf


def cells(keys: Iterable[Key], radius: float) -> list[list[Key]]:
    """Keys in order, in groups: of one group are all in one aligned cell of the space, at least as
    large as a region, so that the regions of all of its keys lie within the cell."""
    width = min(max(int(radius), 1).bit_length(), _BITS)
    groups: dict[int, list[Key]] = {}
    for key in sorted(set(keys)):
        groups.setdefault(point(key) >> width, []).append(key)
    return list(groups.values())


def cell_radius(radius: float) -> float:
    """The farthest that two keys of a cell can be from each other."""
    return min((1 << min(max(int(radius), 1).bit_length(), _BITS)) - 1, SPACE)


class Walk:
    """Publishes `records`. `nearest` is the table's, `radius` that of a region."""

    def __init__(
        self,
        records: Sequence[Record],
        nearest: Callable[[Key, int], list[Contact]],
        radius: float,
        entropy: Callable[[int], bytes],
        *,
        settings: LookupSettings | None = None,
        own: PeerId | None = None,
        serves: Contact | None = None,
        linked: Callable[[PeerId], bool] = lambda peer: False,
        all_known: bool = False,
    ) -> None:
        """`all_known`: the table has everybody who serves, so nobody need be looked for."""
        self.results = {record.place: Published(record) for record in records}
        self.finds = 0  # queries
        self.stores = 0  # messages
        self._nearest = nearest
        self._radius = radius
        self._entropy = entropy
        self._settings = replace(settings or LookupSettings(), at_once=1)  # cells are many
        self._own = own
        self._serves = serves
        self._linked = linked
        self._all_known = all_known
        by_key: dict[Key, list[Record]] = {}
        for record in records:
            by_key.setdefault(record.key, []).append(record)
        self._waiting = deque(
            ([record for key in group for record in by_key[key]], False)
            for group in cells(by_key, radius)
        )
        self._active: list[_Cell] = []
        self._seen: dict[PeerId, Contact] = {}  # of the cells before, which border on the next
        self._down: set[PeerId] = set()
        self._asked: dict[Query, _Cell] = {}
        self._parcels: deque[_Parcel] = deque()
        self._later: list[_Parcel] = []
        self._sent: dict[StoreQuery, _Parcel] = {}

    @property
    def done(self) -> bool:
        """Everything has been acknowledged, refused, or has failed."""
        return not (self._waiting or self._active or self._parcels or self._later or self._sent)

    def wake_at(self, now: float) -> float:
        """When to call `next` again even if nothing has come, infinity for never."""
        lookups = (cell.lookup.wake_at(now) for cell in self._active)
        return min((*lookups, *(parcel.due for parcel in self._later)), default=inf)

    def next(self, now: float) -> list[Query | StoreQuery]:
        """What to ask and to store now."""
        found: list[Query | StoreQuery] = []
        moved = True
        while moved:
            self._begin()
            for cell in self._active:
                for query in cell.lookup.next(now):
                    self.finds += 1
                    self._asked[query] = cell
                    found.append(query)
            moved = self._end_lookups()
        self._due(now)
        while self._parcels and len(self._sent) < defaults.WALK_STORES:
            parcel = self._parcels.popleft()
            parcel.tries += 1
            self.stores += 1
            self._sent[parcel.query] = parcel
            found.append(parcel.query)
        return found

    def _due(self, now: float) -> None:
        self._parcels.extend(parcel for parcel in self._later if parcel.due <= now)
        self._later = [parcel for parcel in self._later if parcel.due > now]

    def _begin(self) -> None:
        """Look up further cells, but not far ahead of the stores."""
        while (
            self._waiting
            and len(self._active) < defaults.WALK_LOOKUPS
            and len(self._parcels) < 2 * defaults.WALK_STORES
        ):
            records, again = self._waiting.popleft()
            cell = _Cell(records, self._lookup(records[0].key), again=again)
            if self._all_known and not again:
                cell.looked_up = True
                self._pack(cell, self._nearest(records[0].key, defaults.REGION_MOST))
                continue
            if len(self.results) <= defaults.EAGER and not again:
                self._pack(cell, self._near_already(records[0].key))
            self._active.append(cell)

    def _near_already(self, key: Key) -> list[Contact]:
        """Some of the table that are within the radius: of few records, they have them at once,
        and the others when they have been found."""
        at = point(key)
        near = [each for each in self._nearest(key, defaults.K) if each.point ^ at <= self._radius]
        near.sort(key=lambda each: not self._linked(each.peer))
        return near[: defaults.EAGER_STORES]

    def _lookup(self, key: Key) -> Lookup:
        at = point(key)
        near = {each.peer: each for each in self._nearest(key, 2 * defaults.K)} | self._seen
        alive = [each for each in near.values() if each.peer not in self._down]
        start = sorted(alive, key=lambda contact: contact.point ^ at)[: defaults.K]
        return Lookup(
            (key,),
            start,
            cell_radius(self._radius),
            self._entropy,
            settings=self._settings,
            own=self._own,
            serves=self._serves,
            linked=self._linked,
        )

    def _end_lookups(self) -> bool:
        ended = [cell for cell in self._active if cell.lookup.done]
        for cell in ended:
            self._active.remove(cell)
            cell.looked_up = True
            region = cell.lookup.region()
            self._remember(region)
            self._pack(cell, region)
        return bool(ended)

    def _remember(self, region: Iterable[Contact]) -> None:
        for contact in region:
            self._seen.pop(contact.peer, None)
            self._seen[contact.peer] = contact
        while len(self._seen) > 4 * defaults.REGION_MOST:
            del self._seen[next(iter(self._seen))]

    def _pack(self, cell: _Cell, region: Sequence[Contact]) -> None:
        """A message a node, with each record that it does not keep already."""
        parcels: dict[Contact, list[Record]] = {}
        for record in cell.records:
            done = self.results[record.place]
            alive = [contact for contact in region if contact.peer not in done.failed]
            for contact in self._replicas(record.key, alive):
                if not done.tried(contact.peer):
                    done.sent.add(contact.peer)
                    parcels.setdefault(contact, []).append(record)
        for contact, records in parcels.items():
            by_bytes = {record.sealed: record for record in records}
            for batch in batches([Aged(0, record.sealed) for record in records]):
                several = tuple(by_bytes[aged.sealed] for aged in batch)
                query = StoreQuery(contact, Store(batch, self._serves), several)
                self._parcels.append(_Parcel(cell, query))
                cell.stores += 1
        self._close(cell)

    def _replicas(self, key: Key, region: Sequence[Contact]) -> list[Contact]:
        """The nodes within the radius of a key, and at least the `K` nearest."""
        at = point(key)
        near = sorted(region, key=lambda contact: contact.point ^ at)
        return [
            contact
            for index, contact in enumerate(near[: defaults.REGION_MOST])
            if index < defaults.K or contact.point ^ at <= self._radius
        ]

    # Answers.

    def answered(self, query: Query, found: Found, now: float, wall: float) -> str:
        """As `Lookup.answered`."""
        cell = self._asked.pop(query, None)
        return "" if cell is None else cell.lookup.answered(query.contact, found, now, wall)

    def failed(self, query: Query, now: float, outcome: str = "failed") -> None:
        """As `Lookup.failed`."""
        self._down.add(query.contact.peer)
        cell = self._asked.pop(query, None)
        if cell is not None:
            cell.lookup.failed(query.contact, now, outcome)

    def stored(self, query: StoreQuery, codes: Sequence[str], now: float) -> None:
        """A node has said of each record what became of it."""
        parcel = self._sent.pop(query, None)
        if parcel is None:
            return
        busy = [r for r, code in zip(query.records, codes, strict=True) if code == "busy"]
        for record, code in zip(query.records, codes, strict=True):
            done = self.results[record.place]
            if not code:
                done.kept.append(query.contact.peer)
            elif code != "busy" or parcel.tries >= defaults.STORE_TRIES:
                done.refused[query.contact.peer] = code
        if busy and parcel.tries < defaults.STORE_TRIES:
            store = Store(tuple(Aged(0, record.sealed) for record in busy), self._serves)
            parcel.query = StoreQuery(query.contact, store, tuple(busy))
            self._again(parcel, now)
        else:
            self._finish(parcel)

    def store_failed(self, query: StoreQuery, now: float) -> None:
        """A node did not acknowledge."""
        parcel = self._sent.pop(query, None)
        if parcel is None:
            return
        if parcel.tries < defaults.STORE_TRIES:
            self._again(parcel, now)
            return
        self._down.add(query.contact.peer)
        for record in query.records:
            self.results[record.place].failed.append(query.contact.peer)
        self._finish(parcel)

    def _again(self, parcel: _Parcel, now: float) -> None:
        parcel.due = now + defaults.STORE_PAUSE
        self._later.append(parcel)

    def _finish(self, parcel: _Parcel) -> None:
        parcel.cell.stores -= 1
        self._close(parcel.cell)

    def _close(self, cell: _Cell) -> None:
        """Where too few keep a record, its region is looked up once more: some have gone, and
        others are the nearest now."""
        if cell.stores or cell.again or not cell.looked_up:
            return
        lacking = [record for record in cell.records if self._lacks(self.results[record.place])]
        if lacking:
            self._waiting.append((lacking, True))

    @staticmethod
    def _lacks(done: Published) -> bool:
        """Whether nodes failed that should keep it, and too few do."""
        return bool(done.failed) and len(done.kept) < defaults.REPLICAS_LEAST

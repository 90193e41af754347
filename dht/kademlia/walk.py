"""Walk: publication of many records, region by region, with one message per node.

The keys are sorted and grouped into cells of the key space. One look-up finds the nodes for all
keys of a cell, and each node gets all its records in one message. A message that is not
acknowledged is sent again. If too few nodes store a record, its region is looked up again. No I/O:
`next` returns the queries, and their results are passed to `answered`, `failed`, `stored` and
`store_failed`.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from ...transport.identity import PeerId
from .. import defaults
from ..records.contact import Contact
from ..records.key import KEY_BYTES, SPACE, Key, point
from ..records.record import Record
from .diallimiter import DialLimiter
from .lookup import Lookup
from .messages import Aged, FindReply, StoreRequest, batches
from .query import LookupSettings, Query
from .table import random_rank

_BITS = 8 * KEY_BYTES
_AGAIN = -1  # in place of the block of a cell that is looked up again


@dataclass(frozen=True, slots=True, eq=False)
class StoreQuery:
    """Request to store records at a contact."""

    contact: Contact
    store: StoreRequest
    records: tuple[Record, ...]


@dataclass(slots=True)
class Published:
    """Result of the walk for one record."""

    record: Record
    kept: list[PeerId] = field(default_factory=list)  # nodes that stored it
    refused: dict[PeerId, str] = field(default_factory=dict)  # node -> error code
    failed: list[PeerId] = field(default_factory=list)  # nodes that did not answer
    sent: set[PeerId] = field(default_factory=set)  # all of these, and those with a pending message

    def tried(self, peer: PeerId) -> bool:
        """Return whether a message with this record was sent to a node, or queued."""
        return peer in self.sent

    @property
    def enough(self) -> bool:
        """Whether the record has enough replicas, so that the other nodes can be left out."""
        most, share = defaults.STORE_ENOUGH
        return len(self.kept) >= max(min(most, int(share * len(self.sent))), 1)


@dataclass(slots=True, eq=False)
class _Cell:
    """Records whose keys are so close that one look-up covers all their regions."""

    records: list[Record]
    lookup: Lookup
    block: int  # cells of one block are packed together; `_AGAIN`: looked up again, packed alone
    stores: int = 0  # messages pending or queued
    looked_up: bool = False


@dataclass(slots=True, eq=False)
class _Parcel:
    """A message to one node, with the cells to which its records belong."""

    cells: list[_Cell]
    query: StoreQuery
    tries: int = 0  # how often it was sent
    due: float = -inf  # when to send it again
    sent: float = -inf  # when it was sent last
    silent: bool = False  # the node did not answer, as opposed to being busy


def cells(keys: Iterable[Key], radius: float) -> list[list[Key]]:
    """Group keys by aligned cells of the key space, in ascending order.

    A cell is at least as large as a region, so the regions of all its keys are close to it.
    """
    width = min(max(int(radius), 1).bit_length(), _BITS)
    groups: dict[int, list[Key]] = {}
    for key in sorted(set(keys)):
        groups.setdefault(point(key) >> width, []).append(key)
    return list(groups.values())


def cell_radius(radius: float) -> float:
    """Return the largest possible distance between two keys of a cell."""
    return min((1 << min(max(int(radius), 1).bit_length(), _BITS)) - 1, SPACE)


def _block(key: Key, radius: float) -> int:
    """Return the block of a key. A block is four neighbouring cells.

    The records of a block are packed together: a node gets those of all four cells in one message.
    """
    return point(key) >> (min(max(int(radius), 1).bit_length(), _BITS) + 2)


class Walk:
    """Publication of `records` in one walk.

    `nearest` is `Table.nearest`, and `radius` is the radius of a region.
    """

    def __init__(
        self,
        records: Sequence[Record],
        nearest: Callable[[Key, int], list[Contact]],
        radius: float,
        entropy: Callable[[int], bytes],
        *,
        settings: LookupSettings | None = None,
        own: PeerId | None = None,
        serves: bytes | None = None,
        linked: Callable[[PeerId], bool] = lambda peer: False,
        all_known: bool = False,
        limiter: DialLimiter | None = None,
    ) -> None:
        """Prepare the walk. `next` returns its first queries.

        `all_known` means that the table has all serving nodes, so that no look-up is needed. The
        peer `own` is never queried. `serves` is this node's encoded contact for the requests.
        `linked` returns whether a peer can be asked without a dial. A background walk has a
        `limiter`. It stores records at linked nodes at once, and dials others only while too few
        nodes store a record, and only when the limiter allows it.
        """
        self.results = {record.place: Published(record) for record in records}
        self.finds = 0  # queries sent
        self.stores = 0  # messages sent
        self._nearest = nearest
        self._radius = radius if settings is None or settings.random_order else 0.0
        self._entropy = entropy
        self._nonce = entropy(16)
        # One pending query per path is enough, because many cells are looked up at once.
        self._settings = replace(settings or LookupSettings(), at_once=1)
        self._own = own
        self._serves = serves
        self._linked = linked
        self._all_known = all_known
        self._limiter = limiter
        by_key: dict[Key, list[Record]] = {}
        for record in records:
            by_key.setdefault(record.key, []).append(record)
        self._waiting = deque(
            ([record for key in group for record in by_key[key]], _block(group[0], self._radius))
            for group in cells(by_key, self._radius)
        )
        self._blocks = Counter(block for _, block in self._waiting)  # cells not packed yet
        self._packed: dict[int, list[tuple[_Cell, Contact, Record]]] = {}
        self._active: list[_Cell] = []
        self._down: set[PeerId] = set()
        self._asked: dict[Query, _Cell] = {}
        self._parcels: deque[_Parcel] = deque()
        self._later: list[_Parcel] = []
        self._held: deque[_Parcel] = deque()  # messages of a background walk that need a dial
        self._sent: dict[StoreQuery, _Parcel] = {}

    @property
    def done(self) -> bool:
        """Whether each message was acknowledged or refused, or was given up."""
        ahead = self._waiting or self._active or self._parcels or self._later or self._held
        return not (ahead or self._sent)

    def wake_at(self, now: float) -> float:
        """Return the time at which to call `next` even if no reply arrives.

        Infinity means never.
        """
        lookups = (cell.lookup.wake_at(now) for cell in self._active)
        late = (parcel.sent + defaults.STORE_LATE for parcel in self._sent.values())
        pauses = (parcel.due for parcel in self._later)
        dial = self._limiter.at if self._limiter is not None and self._held else inf
        mine = (when for when in (dial, *late) if when > now)
        return min((*lookups, *pauses, *mine), default=inf)

    def next(self, now: float) -> list[Query | StoreQuery]:
        """Return the queries and the stores to send now. They count as sent."""
        found: list[Query | StoreQuery] = []
        self._drop_late(now)
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
        self._release(now)
        late = sum(self._late(parcel, now) for parcel in self._sent.values())
        most = defaults.WALK_STORES + min(late, defaults.WALK_LATE)
        while self._parcels and len(self._sent) < most:
            parcel = self._parcels.popleft()
            parcel.tries += 1
            parcel.sent = now
            self.stores += 1
            self._sent[parcel.query] = parcel
            found.append(parcel.query)
        return found

    def _due(self, now: float) -> None:
        """Queue the messages whose time has come, and give up those that are no longer needed."""
        due = [parcel for parcel in self._later if parcel.due <= now]
        self._later = [parcel for parcel in self._later if parcel.due > now]
        for parcel in due:
            if parcel.silent and self._is_redundant(parcel.query):
                self._give_up(parcel)  # enough other nodes have acknowledged meanwhile
            else:
                self._parcels.append(parcel)

    def _release(self, now: float) -> None:
        """Queue the next held message of a background walk, if its node may be dialled now.

        Does nothing while an earlier message is unanswered, because its reply may make the dial
        unnecessary.
        """
        while self._held and not self._parcels and not self._sent:
            parcel = self._held[0]
            if not self._is_redundant(parcel.query):
                if not self._can_send_now(parcel.query.contact) and not self._may_dial(now):
                    return
                self._parcels.append(parcel)
            else:
                self._give_up(parcel)
            self._held.popleft()

    def _may_dial(self, now: float) -> bool:
        """Return whether a dial may begin now. If so, the dial is counted."""
        return self._limiter is None or self._limiter.take(now)

    def _can_send_now(self, contact: Contact) -> bool:
        """Return whether a message to this node needs no permission for a dial."""
        return self._limiter is None or self._linked(contact.peer)

    @staticmethod
    def _late(parcel: _Parcel, now: float) -> bool:
        """Return whether the reply to a message is late."""
        return parcel.sent + defaults.STORE_LATE <= now

    def _drop_late(self, now: float) -> None:
        """Give up late messages if nothing else is left to do.

        A message is given up only if enough nodes already store its records.
        """
        if self._waiting or self._active or self._parcels or self._later:
            return
        for query, parcel in list(self._sent.items()):
            if self._late(parcel, now) and self._is_redundant(query):
                self._give_up(self._sent.pop(query))

    def _begin(self) -> None:
        """Start the look-ups of further cells, unless too many messages are queued."""
        while (
            self._waiting
            and len(self._active) < defaults.WALK_LOOKUPS
            and len(self._parcels) < 2 * defaults.WALK_STORES
        ):
            records, block = self._waiting.popleft()
            cell = _Cell(records, self._lookup(records[0].key), block)
            if self._all_known and block != _AGAIN:
                cell.looked_up = True
                self._pack(cell, self._nearest(records[0].key, defaults.REGION_MOST))
                continue
            eager = self._limiter is None and len(self.results) <= defaults.EAGER
            if eager and block != _AGAIN:
                self._send(self._at_once(cell))
            self._active.append(cell)

    def _at_once(self, cell: _Cell) -> list[tuple[_Cell, Contact, Record]]:
        """Choose known nodes that get the records of a cell before its look-up ends.

        This is for walks of few records, which should be found as early as possible.
        """
        key = cell.records[0].key
        at = point(key)
        near = [each for each in self._nearest(key, defaults.K) if each.point ^ at <= self._radius]
        near.sort(key=lambda each: not self._linked(each.peer))
        chosen = near[: defaults.EAGER_STORES]
        return [
            (cell, contact, record)
            for record in cell.records
            for contact in chosen
            if contact.point ^ point(record.key) <= self._radius
        ]

    def _lookup(self, key: Key) -> Lookup:
        """Create the look-up of the nodes around a key."""
        near = self._nearest(key, 2 * defaults.K)
        start = [each for each in near if each.peer not in self._down][: defaults.K]
        return Lookup(
            (key,),
            start,
            cell_radius(self._radius),
            self._entropy,
            settings=self._settings,
            own=self._own,
            serves=self._serves,
            linked=self._linked,
            limiter=self._limiter,
        )

    def _end_lookups(self) -> bool:
        """Pack the cells whose look-ups have ended. Return whether there were any."""
        ended = [cell for cell in self._active if cell.lookup.done]
        for cell in ended:
            self._active.remove(cell)
            cell.looked_up = True
            self._pack(cell, cell.lookup.region())
        return bool(ended)

    def _pack(self, cell: _Cell, region: Sequence[Contact]) -> None:
        """Choose the nodes for each record of a cell. Send the block once all its cells are packed.

        Nodes that were tried before are left out.
        """
        packed = self._packed.setdefault(cell.block, [])
        for record in cell.records:
            done = self.results[record.place]
            alive = [contact for contact in region if contact.peer not in done.failed]
            packed += [
                (cell, contact, record)
                for contact in self._replicas(record.key, alive)
                if not done.tried(contact.peer)
            ]
        self._blocks[cell.block] -= 1
        if self._blocks[cell.block] <= 0:
            self._send(self._packed.pop(cell.block))
            self._close([cell])  # in case no node is left to send to

    def _send(self, packed: Sequence[tuple[_Cell, Contact, Record]]) -> None:
        """Queue one message for each node.

        If a node is chosen for records of several cells, its message has the records of all.
        """
        by_contact: dict[Contact, dict[bytes, tuple[_Cell, Record]]] = {}
        for cell, contact, record in packed:
            by_contact.setdefault(contact, {})[record.sealed] = cell, record
            self.results[record.place].sent.add(contact.peer)
        for contact in sorted(by_contact, key=lambda each: not each.direct):
            items, at_hand = by_contact[contact], self._can_send_now(contact)
            for batch in batches([Aged(0, sealed) for sealed in items]):
                chosen = [items[aged.sealed] for aged in batch]
                several = tuple(record for _, record in chosen)
                query = StoreQuery(contact, StoreRequest(batch, self._serves), several)
                of = list({id(cell): cell for cell, _ in chosen}.values())
                (self._parcels if at_hand else self._held).append(_Parcel(of, query))
                for cell in of:
                    cell.stores += 1

    def _replicas(self, key: Key, region: Sequence[Contact]) -> list[Contact]:
        """Return the nodes that should store a record: those within the radius, and at least `K`.

        If there are many more nodes than expected, an attacker is probably generating identities
        there. The choice is then random.
        """
        at = point(key)
        near = sorted(region, key=lambda contact: contact.point ^ at)
        chosen = [
            contact
            for index, contact in enumerate(near)
            if index < defaults.K or contact.point ^ at <= self._radius
        ]
        if len(chosen) > defaults.REGION_MOST:
            chosen.sort(key=lambda contact: random_rank(self._nonce, contact.key))
        return chosen[: defaults.REGION_MOST]

    # Replies.

    def answered(self, query: Query, found: FindReply, now: float, wall: float) -> str:
        """Pass the reply to a query to its look-up. Returns what `Lookup.answered` returns."""
        cell = self._asked.pop(query, None)
        return "" if cell is None else cell.lookup.answered(query.contact, found, now, wall)

    def failed(self, query: Query, now: float, outcome: str = "failed") -> None:
        """Pass the failure of a query to its look-up, as `Lookup.failed` describes."""
        self._down.add(query.contact.peer)
        cell = self._asked.pop(query, None)
        if cell is not None:
            cell.lookup.failed(query.contact, now, outcome)

    def stored(self, query: StoreQuery, codes: Sequence[str], now: float) -> None:
        """Process a node's reply to a store.

        `codes` has an error code for each record, "" if stored. The records that the node refused
        as `busy` are sent again later.
        """
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
            store = StoreRequest(tuple(Aged(0, record.sealed) for record in busy), self._serves)
            parcel.query = StoreQuery(query.contact, store, tuple(busy))
            parcel.silent = False
            self._again(parcel, now)
        else:
            self._finish(parcel)

    def store_failed(self, query: StoreQuery, now: float) -> None:
        """Record that a node did not acknowledge a store.

        A store that is still needed is repeated.
        """
        parcel = self._sent.pop(query, None)
        if parcel is None:
            return
        again = parcel.tries < defaults.STORE_TRIES and self._can_send_now(query.contact)
        if again and not self._is_redundant(query):
            parcel.silent = True
            self._again(parcel, now)
            return
        self._down.add(query.contact.peer)
        self._give_up(parcel)

    def _give_up(self, parcel: _Parcel) -> None:
        """Count the node of a message as failed for all its records."""
        for record in parcel.query.records:
            self.results[record.place].failed.append(parcel.query.contact.peer)
        self._finish(parcel)

    def _is_redundant(self, query: StoreQuery) -> bool:
        """Return whether enough nodes already store each record of a message."""
        return all(self.results[record.place].enough for record in query.records)

    def _again(self, parcel: _Parcel, now: float) -> None:
        """Schedule a message to be sent again."""
        parcel.due = now + defaults.STORE_PAUSE
        self._later.append(parcel)

    def _finish(self, parcel: _Parcel) -> None:
        """Record that a message has ended."""
        for cell in parcel.cells:
            cell.stores -= 1
        self._close(parcel.cells)

    def _close(self, ended: Iterable[_Cell]) -> None:
        """Schedule a second look-up for cells that have ended with too few replicas of a record.

        Some nodes of the region may have left, so that others are the nearest now.
        """
        for cell in ended:
            if cell.stores or not cell.looked_up or cell.block == _AGAIN:
                continue
            lacking = [record for record in cell.records if self._lacks(self.results[record.place])]
            if lacking:
                self._waiting.append((lacking, _AGAIN))

    @staticmethod
    def _lacks(done: Published) -> bool:
        """Return whether nodes have failed and too few store the record."""
        return bool(done.failed) and len(done.kept) < defaults.REPLICAS_LEAST and not done.enough

"""Walk: publication of many records, region by region, with one message per node.

The keys are sorted and grouped into cells of the key space. One look-up finds the nodes for all
keys of a cell, and each node gets all its records in one message. A message that is not
acknowledged is sent again. If too few nodes store a record, its region is looked up again. No I/O:
`next` returns the queries, and their results are passed to `answered`, `failed`, `stored` and
`store_failed`.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...transport.identity import PeerId
from ...transport.rates import DialLimiter
from .. import defaults
from ..kademlia.messages import Aged, FindReply, StoreRequest, batches
from ..kademlia.table import random_rank
from ..lookup.cells import block_of, cell_radius, cells
from ..lookup.lookup import Lookup
from ..lookup.query import LookupGoal, LookupSettings, Querier, Query
from ..records.contact import Contact
from ..records.key import Key, point
from ..records.record import Record
from .parcels import Published, StoreQuery, WalkMessages

_AGAIN = -1  # in place of the block of a cell that is looked up again


@dataclass(frozen=True, slots=True)
class KnownNodes:
    """The nodes that the routing table knows when a walk begins."""

    nearest: Callable[[Key, int], list[Contact]]
    """Returns this number of contacts near a key (`Table.nearest`)."""
    radius: float
    """Radius of a region."""
    complete: bool = False
    """Whether these are all serving nodes, so that no look-up is needed."""


@dataclass(slots=True, eq=False)
class _Cell:
    """Records whose keys are so close that one look-up covers all their regions."""

    records: list[Record]
    lookup: Lookup
    block: int  # cells of one block are packed together; `_AGAIN`: looked up again, packed alone
    stores: int = 0  # messages pending or queued
    looked_up: bool = False


class Walk:
    """Publication of `records` in one walk by the node `querier`, which knows the nodes `known`."""

    def __init__(
        self,
        records: Sequence[Record],
        known: KnownNodes,
        querier: Querier,
        *,
        settings: LookupSettings | None = None,
        limiter: DialLimiter | None = None,
    ) -> None:
        """Prepare the walk. `next` returns its first queries.

        A background walk has a `limiter`, which its look-ups and its messages obey.
        """
        settings = settings or LookupSettings()
        self.results = {record.place: Published(record) for record in records}
        self.finds = 0  # queries sent
        self._known = known
        self._radius = known.radius if settings.random_order else 0.0
        self._querier = querier
        self._nonce = querier.entropy(16)
        # One pending query per path is enough, because many cells are looked up at once.
        self._settings = replace(settings, at_once=1)
        self._limiter = limiter
        by_key: dict[Key, list[Record]] = {}
        for record in records:
            by_key.setdefault(record.key, []).append(record)
        self._waiting = deque(
            ([record for key in group for record in by_key[key]], block_of(group[0], self._radius))
            for group in cells(by_key, self._radius)
        )
        self._blocks = Counter(block for _, block in self._waiting)  # cells not packed yet
        self._packed: dict[int, list[tuple[_Cell, Contact, Record]]] = {}
        self._active: list[_Cell] = []
        self._down: set[PeerId] = set()
        self._asked: dict[Query, _Cell] = {}
        self._parcels = WalkMessages(self.results, querier, limiter)

    @property
    def stores(self) -> int:
        """Number of messages sent so far."""
        return self._parcels.count

    @property
    def done(self) -> bool:
        """Whether each message was acknowledged or refused, or was given up."""
        return not (self._waiting or self._active) and self._parcels.done

    def wake_at(self, now: float) -> float:
        """Return the time at which to call `next` even if no reply arrives.

        Infinity means never.
        """
        lookups = (cell.lookup.wake_at(now) for cell in self._active)
        return min((*lookups, self._parcels.wake_at(now)))

    def next(self, now: float) -> list[Query | StoreQuery]:
        """Return the queries and the stores to send now. They count as sent."""
        found: list[Query | StoreQuery] = []
        if not (self._waiting or self._active):
            self._parcels.drop_late(now)
        moved = True
        while moved:
            self._begin()
            for cell in self._active:
                for query in cell.lookup.next(now):
                    self.finds += 1
                    self._asked[query] = cell
                    found.append(query)
            moved = self._end_lookups()
        found += self._parcels.next(now)
        return found

    def _begin(self) -> None:
        """Start the look-ups of further cells, unless too many messages are queued."""
        while (
            self._waiting
            and len(self._active) < defaults.WALK_LOOKUPS
            and self._parcels.ready < 2 * defaults.WALK_STORES
        ):
            records, block = self._waiting.popleft()
            cell = _Cell(records, self._lookup(records[0].key), block)
            if self._known.complete and block != _AGAIN:
                cell.looked_up = True
                self._pack(cell, self._known.nearest(records[0].key, defaults.REGION_MOST))
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
        nearest = self._known.nearest(key, defaults.K)
        near = [each for each in nearest if each.point ^ at <= self._radius]
        near.sort(key=lambda each: not self._querier.linked(each.peer))
        chosen = near[: defaults.EAGER_STORES]
        return [
            (cell, contact, record)
            for record in cell.records
            for contact in chosen
            if contact.point ^ point(record.key) <= self._radius
        ]

    def _lookup(self, key: Key) -> Lookup:
        """Create the look-up of the nodes around a key."""
        near = self._known.nearest(key, 2 * defaults.K)
        down = self._down | self._parcels.silent
        start = [each for each in near if each.peer not in down][: defaults.K]
        goal = LookupGoal((key,), cell_radius(self._radius))
        return Lookup(goal, start, self._querier, settings=self._settings, limiter=self._limiter)

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
                for contact in self.replicas(record.key, alive)
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
            items = by_contact[contact]
            for batch in batches([Aged(0, sealed) for sealed in items]):
                chosen = [items[aged.sealed] for aged in batch]
                several = tuple(record for _, record in chosen)
                query = StoreQuery(contact, StoreRequest(batch, self._querier.serves), several)
                of = list({id(cell): cell for cell, _ in chosen}.values())
                self._parcels.put(query, partial(self._finish, of))
                for cell in of:
                    cell.stores += 1

    def replicas(self, key: Key, region: Sequence[Contact]) -> list[Contact]:
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
        """Process a node's reply to a store (`WalkMessages.stored`)."""
        self._parcels.stored(query, codes, now)

    def store_failed(self, query: StoreQuery, now: float) -> None:
        """Record that a node did not acknowledge a store (`WalkMessages.failed`)."""
        self._parcels.failed(query, now)

    def _finish(self, ended: Sequence[_Cell]) -> None:
        """Record that a message with records of these cells has ended."""
        for cell in ended:
            cell.stores -= 1
        self._close(ended)

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

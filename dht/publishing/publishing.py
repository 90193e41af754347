"""Announcement of this node's own records.

One *walk* around the key space announces all records that are due. A record is announced again
before it expires, or sooner if too few nodes acknowledged it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

import trio

from .. import defaults
from ..kademlia.asking import NoAnswer
from ..lookup.client import DhtClient
from ..lookup.query import Query
from ..records.record import Record
from .own import OwnRecord, OwnRecords
from .parcels import StoreQuery
from .walk import KnownNodes, Walk


@dataclass(frozen=True, slots=True)
class PublishReport:
    """Result of waiting for announcements.

    `records` is the number of records that were waited for, `stored_least` the fewest nodes that
    acknowledged one of them, and `done` whether all were announced in time.
    """

    records: int
    stored_least: int
    done: bool


@dataclass(frozen=True, slots=True)
class LastWalk:
    """Summary of the last walk.

    `ended` is the host's monotonic time in seconds, and `took` the duration in seconds.
    """

    ended: float
    took: float
    keys: int
    messages: int


class Publishing:
    """Task that announces own records in walks.

    `keep` is called with each record that is announced, because this node may be one of those that
    should store it. `settled` returns whether this node has looked up its own key recently. If the
    client has a limiter, walks of patient records are limited in their dials.
    """

    def __init__(
        self,
        client: DhtClient,
        records: OwnRecords,
        *,
        keep: Callable[[Record], None],
        settled: Callable[[], bool],
    ) -> None:
        self.last: LastWalk | None = None
        self._client = client
        self._host = client.host
        self._records = records
        self._table = client.table
        self._asking = client.asking
        self._keep = keep
        self._settled = settled
        self._limiter = client.limiter
        self._news = trio.Event()
        self._progress = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._walks = 0
        self._strolling = False  # a walk of patient records is running

    def wake(self) -> None:
        """Check now whether a record is due."""
        self._news.set()

    async def run(self, nursery: trio.Nursery) -> None:
        """Start a walk whenever records are due, until cancelled.

        Several walks may run at the same time, so that new records do not wait for a walk that slow
        nodes delay. Requests run in `nursery`.
        """
        self._nursery = nursery
        while True:
            self._news = trio.Event()
            due = self._due()
            if due and len(self._table) and self._walks < defaults.WALKS:
                self._walks += 1
                self._strolling |= due[0].patient
                for own in due:
                    own.walking = True
                end = partial(self._walk_failed, due)
                self._asking.guard.start(nursery, "nodes on a walk", self._walk, due, end=end)
                continue
            with trio.move_on_after(self._pause(bool(due))):
                await self._news.wait()

    def _due(self) -> list[OwnRecord]:
        """Return the records of the next walk: all that are not patient, or else all patient ones.

        Only one walk of patient records runs at a time, because it may take minutes.
        """
        due = [own for own in self._records.due(self._host.now()) if not own.walking]
        patient = [] if self._strolling else [own for own in due if own.patient]
        return [own for own in due if not own.patient] or patient

    def _pause(self, waiting: bool) -> float:
        """Return the time in seconds until the next check.

        `waiting` means that records are due now.
        """
        if waiting:  # no node is known yet, or too many walks are running
            return defaults.JOIN_PAUSE[0]
        idle = (own for own in self._records if not own.walking)
        due = min((own.due for own in idle if not (own.patient and self._strolling)), default=inf)
        return max(due - self._host.now(), 0.01)

    async def flushed(self, timeout: float, kept: int | None = None) -> PublishReport:
        """Wait until each new record that is not `patient` was announced.

        If `kept` is given, it is enough that this number of nodes has acknowledged the record.
        Waits for at most `timeout` seconds.
        """
        waited = [own for own in self._records if own.fresh and not own.patient]

        def done() -> bool:
            return all(
                own.announced is not None or (kept is not None and own.stored >= kept)
                for own in waited
            )

        with trio.move_on_after(timeout):
            while not done():
                await self._progress.wait()
        return PublishReport(len(waited), min((own.stored for own in waited), default=0), done())

    def _tell(self) -> None:
        """Wake the tasks that wait for progress."""
        self._progress.set()
        self._progress = trio.Event()

    # A single walk.

    async def _walk(self, due: list[OwnRecord]) -> None:
        """Announce the records in `due` in one walk, and schedule their next announcements."""
        began, before = self._host.now(), self._asking.messages
        known = len(self._table)
        places = {own.record.place: own for own in due}
        records = [await self._sealed(own) for own in due]
        limiter = None
        if self._limiter is not None and due[0].patient:
            limiter = self._limiter.within(defaults.WALK_SPREAD, defaults.K * len(due), began)
        walk = Walk(
            records,
            KnownNodes(
                self._table.nearest,
                self._table.radius(),
                complete=len(self._table) < defaults.K and self._settled(),
            ),
            self._client.querier(),
            settings=self._client.lookups,
            limiter=limiter,
        )
        await self._run(walk)
        now = self._host.now()
        for place, done in walk.results.items():
            kept, failed = len(done.kept), len(done.failed)
            self._records.announced(places[place], kept, kept + failed, now, self._jitter())
        self._ended(due)
        for own in due:
            own.known = known
            own.patient |= self._limiter is not None and not own.fresh  # repeats are not urgent
        self.last = LastWalk(now, now - began, len(due), self._asking.messages - before)
        self._tell()

    def _walk_failed(self, due: list[OwnRecord]) -> None:
        """Schedule the records of a walk that a bug has ended, as if no node had taken them."""
        now = self._host.now()
        for own in due:
            self._records.put_off(own, now, self._jitter())
        self._ended(due)

    def _ended(self, due: list[OwnRecord]) -> None:
        """Make room for the next walk."""
        self._walks -= 1
        self._strolling &= not due[0].patient
        for own in due:
            own.walking = False
        self._news.set()

    def _jitter(self) -> float:
        return int.from_bytes(self._host.entropy(2)) / 2**16

    async def _sealed(self, own: OwnRecord) -> Record:
        """Seal a record, and then let other tasks run, because many signatures take long."""
        self._records.sealed(own, self._host.wall())
        self._keep(own.record)
        await trio.lowlevel.checkpoint()
        return own.record

    async def _run(self, walk: Walk) -> None:
        """Run a walk until each message was acknowledged or given up."""
        assert self._nursery is not None
        waker = _Waker()
        while True:
            now = self._host.now()
            waker.event = trio.Event()
            for query in walk.next(now):
                self._start(self._nursery, walk, query, waker)
                await trio.lowlevel.checkpoint()  # send it before the next is prepared
            if walk.done:
                return
            with trio.move_on_after(max(walk.wake_at(now) - now, 0.0)):
                await waker.event.wait()

    def _start(
        self, nursery: trio.Nursery, walk: Walk, query: Query | StoreQuery, waker: "_Waker"
    ) -> None:
        """Start a task that sends a query of a walk."""
        guard, peer = self._asking.guard, query.contact.peer
        if isinstance(query, StoreQuery):
            end = partial(self._store_failed, walk, query, waker)
            guard.start(nursery, peer, self._store, walk, query, waker, end=end)
        else:
            end = partial(self._find_failed, walk, query, waker, "mishap")
            guard.start(nursery, peer, self._find, walk, query, waker, end=end)

    def _store_failed(self, walk: Walk, query: StoreQuery, waker: "_Waker") -> None:
        """Pass the failure of a store to its walk."""
        walk.store_failed(query, self._host.now())
        waker.event.set()

    def _find_failed(self, walk: Walk, query: Query, waker: "_Waker", code: str) -> None:
        """Pass the failure of a query to its walk."""
        walk.failed(query, self._host.now(), code)
        waker.event.set()

    async def _find(self, walk: Walk, query: Query, waker: "_Waker") -> None:
        """Send a query of a walk, and pass the result to the walk."""
        try:
            found = await self._asking.find(query.contact, query.find, query.by)
        except NoAnswer as error:
            walk.failed(query, self._host.now(), error.code)
        else:
            if code := walk.answered(query, found, self._host.now(), self._host.wall()):
                self._asking.reject(query.contact.peer, code)
        waker.event.set()

    async def _store(self, walk: Walk, query: StoreQuery, waker: "_Waker") -> None:
        """Send a store of a walk, and pass the result to the walk."""
        try:
            codes = await self._asking.store(query.contact, query.store)
        except NoAnswer:
            walk.store_failed(query, self._host.now())
        else:
            walk.stored(query, codes, self._host.now())
            for record in query.records:
                self._records.stored(record, len(walk.results[record.place].kept))
            self._tell()
        waker.event.set()


class _Waker:
    """Event of one walk. It is set, and replaced, when a reply arrives."""

    def __init__(self) -> None:
        self.event = trio.Event()

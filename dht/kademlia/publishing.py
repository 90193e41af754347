"""Announces this node's own records.

One walk around the key space takes all records that are due. A record is announced again before it
expires, and sooner if too few nodes acknowledged it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

import trio

from ...transport.host.seam import Host
from ...transport.identity import PeerId
from .. import defaults
from ..records.record import Record
from .asking import Asking, NoAnswer
from .diallimiter import DialLimiter
from .own import Own, OwnRecords
from .query import LookupSettings, Query
from .table import Table
from .walk import StoreQuery, Walk


@dataclass(frozen=True, slots=True)
class PublishReport:
    """Result of waiting: number of records, fewest replicas of one, and whether all are done."""

    records: int
    kept_least: int
    done: bool


@dataclass(frozen=True, slots=True)
class LastWalk:
    """Summary of the last walk; `ended` is the host's monotonic time, `took` is in seconds."""

    ended: float
    took: float
    keys: int
    messages: int


class Publishing:
    """Runs walks that announce records.

    `keep` is called with each own record announced, as this node may be among those that store it.
    `settled` returns whether this node looked up its own key lately.
    """

    def __init__(
        self,
        host: Host,
        own: PeerId,
        records: OwnRecords,
        table: Table,
        asking: Asking,
        settings: LookupSettings,
        *,
        keep: Callable[[Record], None],
        settled: Callable[[], bool],
        limiter: DialLimiter | None = None,
    ) -> None:
        self.last: LastWalk | None = None
        self._host = host
        self._own = own
        self._records = records
        self._table = table
        self._asking = asking
        self._settings = settings
        self._keep = keep
        self._settled = settled
        self._limiter = limiter
        self._news = trio.Event()
        self._progress = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._walks = 0
        self._strolling = False  # a patient walk is running

    def wake(self) -> None:
        """Check soon whether something is due."""
        self._news.set()

    async def run(self, nursery: trio.Nursery) -> None:
        """Start a walk whenever records are due, until cancelled.

        Several walks may run at once, so that new records do not wait for a walk that slow nodes
        delay. Requests run in `nursery`.
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
                nursery.start_soon(self._walk, due)
                continue
            with trio.move_on_after(self._pause(bool(due))):
                await self._news.wait()

    def _due(self) -> list[Own]:
        """Return the records of the next walk: all urgent ones, or else all patient ones.

        Only one patient walk runs at a time, as it may take minutes.
        """
        due = [own for own in self._records.due(self._host.now()) if not own.walking]
        patient = [] if self._strolling else [own for own in due if own.patient]
        return [own for own in due if not own.patient] or patient

    def _pause(self, waiting: bool) -> float:
        if waiting:  # no node is known yet, or too many walks are running
            return defaults.JOIN_PAUSE[0]
        idle = (own for own in self._records if not own.walking)
        due = min((own.due for own in idle if not (own.patient and self._strolling)), default=inf)
        return max(due - self._host.now(), 0.01)

    async def flushed(self, timeout: float, kept: int | None = None) -> PublishReport:
        """Wait until each record that is not `patient` was announced, or `kept` nodes store it.

        Waits for at most `timeout` seconds.
        """
        waited = [own for own in self._records if own.fresh and not own.patient]

        def done() -> bool:
            return all(
                own.announced is not None or (kept is not None and own.kept >= kept)
                for own in waited
            )

        with trio.move_on_after(timeout):
            while not done():
                await self._progress.wait()
        return PublishReport(len(waited), min((own.kept for own in waited), default=0), done())

    def _tell(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    # A single walk.

    async def _walk(self, due: list[Own]) -> None:
        began, before = self._host.now(), self._asking.messages
        known = len(self._table)
        places = {own.record.place: own for own in due}
        records = [await self._sealed(own) for own in due]
        limiter = None
        if self._limiter is not None and due[0].patient:
            limiter = self._limiter.within(defaults.WALK_SPREAD, defaults.K * len(due), began)
        walk = Walk(
            records,
            self._table.nearest,
            self._table.radius(),
            self._host.entropy,
            settings=self._settings,
            own=self._own,
            serves=self._asking.serves(),
            linked=self._asking.linked,
            all_known=len(self._table) < defaults.K and self._settled(),
            limiter=limiter,
        )
        await self._run(walk)
        self._walks -= 1
        self._strolling &= not due[0].patient
        now = self._host.now()
        for place, done in walk.results.items():
            kept, failed = len(done.kept), len(done.failed)
            jitter = int.from_bytes(self._host.entropy(2)) / 2**16
            self._records.announced(places[place], kept, kept + failed, now, jitter)
        for own in due:
            own.walking, own.known = False, known
            own.patient |= self._limiter is not None and not own.fresh  # repeats are not urgent
        self._news.set()
        self.last = LastWalk(now, now - began, len(due), self._asking.messages - before)
        self._tell()

    async def _sealed(self, own: Own) -> Record:
        """Seal a record, then let other tasks run, because many signatures take long."""
        self._records.sealed(own, self._host.wall())
        self._keep(own.record)
        await trio.lowlevel.checkpoint()
        return own.record

    async def _run(self, walk: Walk) -> None:
        """Run a walk until each store was acknowledged or given up."""
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
        guard, peer = self._asking.guard, query.contact.peer
        if isinstance(query, StoreQuery):
            end = partial(self._store_failed, walk, query, waker)
            guard.start(nursery, peer, self._store, walk, query, waker, end=end)
        else:
            end = partial(self._find_failed, walk, query, waker, "mishap")
            guard.start(nursery, peer, self._find, walk, query, waker, end=end)

    def _store_failed(self, walk: Walk, query: StoreQuery, waker: "_Waker") -> None:
        walk.store_failed(query, self._host.now())
        waker.event.set()

    def _find_failed(self, walk: Walk, query: Query, waker: "_Waker", code: str) -> None:
        walk.failed(query, self._host.now(), code)
        waker.event.set()

    async def _find(self, walk: Walk, query: Query, waker: "_Waker") -> None:
        try:
            found = await self._asking.find(query.contact, query.find, query.by)
        except NoAnswer as error:
            walk.failed(query, self._host.now(), error.code)
        else:
            if code := walk.answered(query, found, self._host.now(), self._host.wall()):
                self._asking.reject(query.contact.peer, code)
        waker.event.set()

    async def _store(self, walk: Walk, query: StoreQuery, waker: "_Waker") -> None:
        try:
            codes = await self._asking.store(query.contact, query.store)
        except NoAnswer:
            walk.store_failed(query, self._host.now())
        else:
            walk.stored(query, codes, self._host.now())
            for record in query.records:
                self._records.kept(record, len(walk.results[record.place].kept))
            self._tell()
        waker.event.set()


class _Waker:
    """Holds an event that is set, and replaced, when a reply arrives."""

    def __init__(self) -> None:
        self.event = trio.Event()

"""Runner of look-ups in trio: sends their queries, and passes them the replies."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import trio

from ...transport.peertasks import PeerTasks
from ...transport.rates import DialLimiter
from .. import defaults
from ..errors import BadRecord
from ..kademlia.asking import NoAnswer
from ..kademlia.messages import Aged
from ..records.key import Key
from ..records.record import open_record
from .cells import cell_radius
from .client import DhtClient
from .lookup import Lookup
from .query import LookupGoal, Query


class Searching:
    """Runner of look-ups.

    A query may be answered after its look-up has ended, and the reply still updates the routing
    table.
    """

    def __init__(self, client: DhtClient) -> None:
        self.tasks = PeerTasks(client.asking.guard)
        """Tasks that send the queries. They can be started only while the DHT runs."""
        self._client = client
        self._host = client.host
        self._asking = client.asking
        self._table = client.table

    def lookup(
        self,
        keys: Sequence[Key],
        *,
        enough: int = 0,
        most: int = defaults.K,
        kinds: tuple[str, ...] = (),
        limiter: DialLimiter | None = None,
    ) -> Lookup:
        """Create a look-up of keys of one region that starts with the nearest known contacts.

        If `enough` is 0, the look-up searches for nodes, the nearest first. Otherwise, it searches
        for records of `enough` authors per key.
        """
        region, settings = self._table.radius(), self._client.lookups
        radius = region if len(keys) == 1 else cell_radius(region)
        return Lookup(
            LookupGoal(keys, radius, enough, most, kinds),
            self._table.nearest(keys[0], defaults.START),
            self._client.querier(),
            settings=settings if enough else replace(settings, random_order=False),
            limiter=limiter,
        )

    async def run(self, lookup: Lookup) -> None:
        """Run a look-up to its end. If the DHT of this node is not running, return at once."""
        search = _RunningSearch(lookup)
        while self.tasks.running:
            now = self._host.now()
            search.news = trio.Event()
            for query in lookup.next(now):
                await self._begin(search, query)
            if lookup.done:
                break
            wake = lookup.wake_at(now)
            with trio.move_on_after(max(wake - now, 0.0)):
                await search.news.wait()
        now = self._host.now()
        for key in lookup.keys:
            self._table.looked(key, now)

    async def survey(self, key: Key) -> None:
        """Find the nodes around a key, and estimate the density of nodes there.

        This is background work.
        """
        lookup = self.lookup([key], limiter=self._client.limiter)
        await self.run(lookup)
        self._table.sample(key, lookup.answerers())

    async def _begin(self, search: "_RunningSearch", query: Query) -> None:
        """Send a query, and wait until it is sent, before the next one is prepared."""
        # The checkpoint sends the query before the next one is prepared.
        end = partial(self._failed, search, query, "mishap")
        if self.tasks.start(query.contact.peer, self._ask, search, query, end=end):
            await trio.lowlevel.checkpoint()

    async def _ask(self, search: "_RunningSearch", query: Query) -> None:
        """Send a query, and pass the result to its look-up."""
        lookup, contact = search.lookup, query.contact
        try:
            found = await self._asking.find(contact, query.find, query.by)
        except NoAnswer as error:
            self._failed(search, query, error.code)
        else:
            await self._check(aged for listed in found.records for aged in listed)
            now, wall = self._host.now(), self._host.wall()
            if code := lookup.answered(contact, found, now, wall):
                self._asking.reject(contact.peer, code)
        search.news.set()

    def _failed(self, search: "_RunningSearch", query: Query, code: str) -> None:
        """Pass a failure to the look-up of a query."""
        search.lookup.failed(query.contact, self._host.now(), code)
        search.news.set()

    async def _check(self, records: Iterable[Aged]) -> None:
        """Verify the signatures of records, and let other tasks run in between.

        Many signatures take long. `open_record` caches the valid ones, so that the look-up need not
        verify them again.
        """
        began = self._host.now()
        for aged in records:
            with suppress(BadRecord):
                open_record(aged.sealed)
            if self._host.now() - began > defaults.TURN:
                await trio.lowlevel.checkpoint()
                began = self._host.now()


class _RunningSearch:
    """A running look-up. `news` is set, and replaced, when a reply arrives."""

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self.news = trio.Event()

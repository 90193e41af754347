"""The swarm's state at one node: writes this node's facts, replicates feeds, and updates the views.

A fact takes one route. `say` or `set` passes it to the writer, which makes an entry. The store
writes the entry to the disk. Peers get news of the entry, pull it, check it and store it. Their
views then show the fact.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from math import inf

import trio

from ..transport.dial.endpoint import Endpoint
from ..transport.host.seam import Host
from ..transport.identity import Identity, PeerId, peer_id_of, public_key_of
from . import defaults
from .errors import BadEntry, BadOrder, StateError, StoreRefused
from .feeds.archive import MemoryArchive
from .feeds.committer import DISK, Committer, DiskArchive, Trouble
from .feeds.digest import Plot
from .feeds.entry import Entry, FeedName, read_stored
from .feeds.feed import Feed
from .feeds.kinds import KINDS, all_parts
from .feeds.stored import StoredFeed
from .feeds.writer import FeedWriter, OwnFacts, Value, WrittenFacts
from .group.group import Group
from .group.rule import Order
from .group.upkeep import Upkeep
from .inspection import Inspection
from .replication.exchange import FeedExchange
from .replication.interest import Interest
from .replication.replica import Replica
from .replication.replicafeeds import plot_of
from .replication.replication import Replication
from .settings import StateSettings
from .views.fields import read_fields
from .views.views import Views
from .vouching import Vouching

OWN_FEEDS, SAME_KEY = "state", "same-key"
"""Conditions that are reported to `trouble`, besides those of `feeds/committer.py`."""
_LEAST_WAIT = 0.01  # seconds; a shorter wait could round to 0 and spin on a stopped clock
_CONTESTED = "another node with this node's identity was seen"
_CONTESTED_HINT = "a data folder must run once: stop the copy, or give it another folder"


class OwnFeeds:
    """The feeds of the node with `identity`.

    Facts may be set by `say` at any time, and are written after `begin`. `trouble` is called if
    facts do not fit, or if another node has the same key.
    """

    def __init__(self, host: Host, identity: Identity, trouble: Trouble) -> None:
        self._host = host
        self._identity = identity
        self._trouble = trouble
        self.facts = OwnFacts()
        """The facts that this node wants its feeds to state."""
        self._writer: FeedWriter | None = None
        self._came_back = False  # a peer sent an entry of these feeds
        self._due = trio.Event()  # there is something to write

    @property
    def begun(self) -> bool:
        """Whether `begin` was called."""
        return self._writer is not None

    @property
    def writer(self) -> FeedWriter:
        """The writer of the feeds. `begin` must have been called."""
        assert self._writer is not None, "the state is not running"
        return self._writer

    def takes(self, entry: Entry) -> bool:
        """Return whether to admit an entry of these feeds that a peer sent: none before `begin`."""
        if self._writer is None:
            return False
        self._came_back = True
        return self._writer.takes(entry, self._host.now())

    def begin(
        self, feeds: Mapping[FeedName, Feed], exchange: FeedExchange, held_until: float
    ) -> None:
        """Begin to write to `feeds`, at the time `held_until` or later (see `FeedWriter`), and to
        listen to what peers report of them to `exchange`."""
        writer = self._writer = FeedWriter(
            self._identity,
            feeds.__getitem__,
            lot=lambda below: int.from_bytes(self._host.entropy(8)) % below,
            held_until=held_until,
        )

        def reported(peer: PeerId) -> None:
            """Record that a peer has reported its heads of this node's feeds.

            Peers compare feeds often, so `write` is woken only if the report changes something.
            """
            if writer.reported(peer, len(list(exchange.peers))) or self._came_back:
                self._came_back = False
                self._due.set()

        exchange.on_reported.append(reported)

    def say(self, said: WrittenFacts) -> None:
        """Replace the facts that `said` covers (see `State.say`)."""
        self.facts.say(said)
        self._settle()

    def wake(self) -> None:
        """Write what is due now."""
        self._due.set()

    def renew(self) -> None:
        """Write all facts again, because the feeds were lost."""
        if self._writer is not None:
            self._writer.renew()
            self._due.set()

    def _settle(self) -> None:
        """Pass this node's facts to the writer of its feeds, and report those that do not fit."""
        if self._writer is None:
            return
        self._trouble(OWN_FEEDS, self.facts.settle(self._writer))
        contested = self._host.now() < self._writer.contested_at + defaults.CONTESTED
        error = StateError(SAME_KEY, _CONTESTED, hint=_CONTESTED_HINT) if contested else None
        self._trouble(SAME_KEY, error)
        self._due.set()

    # Tasks.

    async def write(self, replication: Replication) -> None:
        """Write facts as entries, until cancelled. Facts that are set together share an entry."""
        writer = self.writer
        while True:
            wait = writer.wake(self._host.now())
            with trio.move_on_after(inf if wait is None else max(wait, _LEAST_WAIT)):
                await self._due.wait()
            self._due = trio.Event()
            self.facts.settle(writer)  # peers may have sent facts of an earlier run
            entries = writer.flush(self._host.now(), int(self._host.wall() * 1000))
            if not entries:
                await trio.sleep(_LEAST_WAIT)
                continue
            try:
                await replication.write(entries, writer.stored)
            except (StoreRefused, BadOrder):
                writer.failed(entries)
                await trio.sleep(defaults.REFUSED_PAUSE)

    async def stay_true(self) -> None:
        """Pass this node's facts to the writer periodically, until cancelled, so that facts that
        did not fit are retried."""
        while True:
            self._settle()
            await trio.sleep(defaults.SETTLE_AGAIN)


class State:
    """The state of one node.

    `trouble` is called when a disk refuses writes or its data is damaged, as described at `Trouble`
    in `feeds/committer.py`.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        identity: Identity,
        settings: StateSettings,
        *,
        trouble: Trouble,
    ) -> None:
        """Create the state without starting it; call `run` next."""
        self._host = host
        self._endpoint = endpoint
        self._identity = identity
        self._trouble = trouble
        self._hold = settings.hold
        self.committer = Committer(host, settings.folder, trouble=trouble, lost=self.lost)
        """The disk on which the feeds are stored."""
        self.interest = Interest(settings.keeps)
        archive = DiskArchive(identity.peer, self.committer)
        self.own = OwnFeeds(host, identity, trouble)
        """This node's own feeds."""
        self.replica = Replica(
            identity.peer, archive, interest=self.interest, own_entries=self.own, pause=self._pause
        )
        self.replication = Replication(host, endpoint, self.replica)
        parts = self.replica, self.replication, self.committer
        self.inspection = Inspection(host, *parts, self.lost)
        self.views = Views(self._shows)
        self.replica.watchers.append(self.views)
        self.upkeep: Upkeep | None = None
        """Upkeep of this node's private group, or None if this node is in no group."""
        self._entered = trio.Event()
        self._regrouped: dict[bytes, None] = {}  # authors whose visible facts have changed
        self._unused = trio.Event()  # something may not be needed any more
        self._losses = trio.Event()
        self.shown = trio.Event()
        """Set once the views show the facts stored before this run. If the disk refuses to read
        them, it is set at once, and the views are filled later."""

    async def enter(self, group: Group, *, alone: bool = False) -> None:
        """Join a private group, before or during `run`.

        `alone` means that the group never had another member, so that no peer can have earlier
        facts of it.
        """
        upkeep = self.upkeep = Upkeep(
            self._host, self._endpoint, self._identity, group, self.replication, self
        )
        upkeep.held = self._hold > 0 and not alone
        upkeep.on_change.append(self._regroup)
        self.replica.watchers.insert(0, upkeep)
        async with self.replication.turn():
            await self.replica.grouped((group.charter.founder,))
            if self.own.begun:
                await upkeep.settle()
        self._entered.set()

    def _shows(self, author: PeerId, kind: str) -> bool:
        """Return whether an author's feeds of a kind count. Outside a group, all do."""
        return self.upkeep is None or self.upkeep.group.shows(author, kind)

    async def in_group(self) -> Upkeep:
        """Wait until this node is in a private group, and return the group's upkeep."""
        await self._entered.wait()
        assert self.upkeep is not None
        return self.upkeep

    def say(self, said: WrittenFacts) -> None:
        """Replace all facts of this node whose keys `said` covers with those that `said` states.

        Facts that `said` covers but does not state are deleted from this node's feeds. May be
        called before `run` has started. Facts that do not fit are reported to `trouble`, and
        written again later.
        """
        self.own.say(said)

    def set(self, kind: str, key: str, value: Value | None, *, part: int = 0) -> None:
        """Set a fact of this node to `value`, or delete it if `value` is None.

        `run` must have started.

        Raises FeedFull if the feed cannot take the fact.
        """
        self.own.writer.set(kind, part, key, value)
        self.interest.wrote((kind, part))
        self.own.wake()

    def keys(self, kind: str, *, part: int = 0) -> Collection[str]:
        """Return the keys of this node's facts in a feed, including facts that are not written
        yet."""
        return self.own.writer.keys(kind, part)

    def need(self, plots: Iterable[Plot]) -> None:
        """Set the plots (kinds and parts of feeds) that this node needs, if it does not store all.

        Feeds of these plots are fetched from peers. Feeds that are no longer needed are dropped
        after UNUSED_KEPT seconds.
        """
        if self.interest.need(plots, self._host.now()):
            self.replication.wake()
            self._unused.set()

    def get(self, kind: str, key: str, *, part: int = 0) -> Mapping[str, object] | None:
        """Return the current value of one of this node's facts, or None if there is none.

        The value may not be written to the feed yet.
        """
        packed = self.own.writer.get(kind, part, key)
        return None if packed is None else read_fields(packed)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write, replicate and show facts, until cancelled.

        Reports `started` once the stored feeds are known and facts can be set.
        """
        async with trio.open_nursery() as nursery:
            feeds, held_until = await self._open(nursery), self._host.now() + self._hold
            self.own.begin(feeds, self.replication.exchange, held_until)
            guard = self._endpoint.guard
            vouching = Vouching(self._host, self.replication, self.set, guard)
            await nursery.start(self.replication.run)
            task_status.started()
            nursery.start_soon(self._show)
            nursery.start_soon(self.own.write, self.replication)
            nursery.start_soon(self.own.stay_true)
            guard.start_repeated(nursery, "peers to vouch for", vouching.run)
            nursery.start_soon(self._keep_group)
            nursery.start_soon(self._forget)
            nursery.start_soon(self._forget_lost)
            await trio.sleep_forever()

    async def _open(self, nursery: trio.Nursery) -> dict[FeedName, Feed]:
        """Open the store, and return this node's own feeds as they are stored.

        If the disk cannot open or read the store, the node starts with an empty archive in memory.
        """
        self._host.keep_memory()  # for the program itself
        try:
            await nursery.start(self._keep)
            more = None if self.upkeep is None else self.upkeep.more
            await self.replica.restore(more)
            return await self._own_feeds()
        except StoreRefused as refused:
            self._trouble(DISK, refused)
            self.replica.restart(MemoryArchive())
            return await self._own_feeds()

    async def _pause(self) -> None:
        if not self.own.begun:
            self._host.keep_memory()  # for the feeds restored so far
        await trio.lowlevel.checkpoint()

    async def _own_feeds(self) -> dict[FeedName, Feed]:
        names = [FeedName(self._identity.peer, kind, part) for kind, part in all_parts()]
        for name in names:
            # if one feed is damaged, all are dropped and written again
            await self.replica.own_feed(name)
        return {name: await self.replica.own_feed(name) for name in names}

    async def _keep(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self.committer.run(task_status=task_status)

    def lost(self, names: Sequence[FeedName] | None) -> None:
        """Fetch feeds again that the disk has lost, or all of them if `names` is None."""
        authors = None if names is None else {name.author for name in names}
        self.replica.lost(None if authors is None else sorted(authors))
        self._losses.set()
        if authors is None or self._identity.peer in authors:
            self.own.renew()

    # Tasks.

    async def _show(self) -> None:
        """Fill the views with the facts stored before this run.

        If the disk refuses to read, retry later.
        """
        while isinstance(self.replica.archive, DiskArchive):
            try:
                async with aclosing(self.committer.load()) as batches:
                    async for batch in batches:
                        await self._show_batch(batch)
                break
            except StoreRefused:
                self.shown.set()
                await trio.sleep(defaults.REFUSED_PAUSE)
            except trio.ClosedResourceError:
                return  # this node is ending
        self.shown.set()

    async def _show_batch(self, batch: Sequence[StoredFeed]) -> None:
        for stored in batch:
            with self._endpoint.guard.around(stored.name.author):
                async with self.replication.turn():
                    await self._shown(stored)
            await trio.lowlevel.checkpoint()
        self._host.keep_memory()

    async def _shown(self, stored: StoredFeed) -> None:
        key, plot = public_key_of(stored.name.author), (stored.name.kind, stored.name.part)
        feed = self.replica.feed(key, plot)
        if feed is None or feed.head is None:
            return
        if feed.head == stored.head:
            with suppress(BadEntry):  # `facts` reads the feed again and handles the damage
                feed.load(map(read_stored, stored.entries))
        await self._restored(feed, await self.replica.facts(key, plot))

    async def _restored(self, feed: Feed, facts: Mapping[str, bytes]) -> None:
        head, place = feed.head, (public_key_of(feed.name.author), plot_of(feed.name))
        for _ in self.views.restoring(feed.name, facts):
            await trio.lowlevel.checkpoint()
            if self.replica.head(*place) != head:
                return  # the author was dropped during a pause

    def _regroup(self, before: Order) -> None:
        """Mark the authors whose visible facts have changed because their roles in the group
        changed."""
        if self.upkeep is None or not self.own.begun:
            return  # nothing is shown yet
        group, own = self.upkeep.group, self._identity.peer
        peers = before.standings.keys() | before.revoked.keys()
        peers |= group.order.standings.keys() | group.order.revoked.keys()
        young = not before.knows(own)
        self._regrouped |= {
            public_key_of(peer): None
            for peer in sorted(peers)
            if young or before.role(peer) != group.order.role(peer)
        }
        if young and not group.young:  # until now, the facts of all authors counted
            self._regrouped |= dict.fromkeys(self.replica.authors.keys())

    async def _keep_group(self) -> None:
        upkeep = await self.in_group()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(upkeep.run)
            while True:
                while self._regrouped:
                    key = next(iter(self._regrouped))
                    del self._regrouped[key]
                    if not await self._show_anew(upkeep.group, key):
                        self._regrouped[key] = None  # the disk refuses now: retry later
                        break
                    await trio.lowlevel.checkpoint()
                await upkeep.decided()

    async def _show_anew(self, group: Group, key: bytes) -> bool:
        """Update the views of an author to the facts that its role in the group allows.

        Returns False if the disk refused to read some facts, so that the update must be repeated.
        """
        peer = peer_id_of(key)
        hidden = [kind for kind in KINDS if not group.shows(peer, kind)]
        self.views.hide(peer, hidden)
        for plot in self.replica.plots(key):
            if plot[0] not in hidden and not await self._show_again(key, plot):
                return False
        return True

    async def _show_again(self, author: bytes, plot: Plot) -> bool:
        """Show a feed in the views.

        Return False if the disk refused to read it, so that it must be repeated.
        """
        feed = self.replica.feed(author, plot)
        if feed is None or feed.head is None:
            return True
        async with self.replication.turn():
            try:
                facts = await self.replica.facts(author, plot)
            except (StoreRefused, trio.ClosedResourceError):
                return False
            await self._restored(feed, facts)
        return True

    async def _forget_lost(self) -> None:
        while True:
            await self._losses.wait()
            self._losses = trio.Event()
            await self.replica.forget_lost()
            self.replication.wake()

    async def _forget(self) -> None:
        """Drop the feeds that this node has not needed for UNUSED_KEPT seconds."""
        while True:
            wait = self.interest.next_at() - self._host.now()
            with trio.move_on_after(max(wait, _LEAST_WAIT)):
                await self._unused.wait()
            self._unused = trio.Event()
            if gone := self.interest.expire(self._host.now()):
                async with self.replication.turn():
                    await self.replica.forget(
                        [plot for plot in sorted(gone) if not self.interest(plot)]
                    )

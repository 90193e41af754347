"""The swarm's state as one node has it: its own facts written, everybody's replicated and shown.

A fact goes one way: `say` or `set` → the writer makes it an entry → the store has it on disk →
peers are told → each replica checks it, keeps it, and its views change.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import trio

from ..transport.endpoint import Endpoint
from ..transport.host import Host
from ..transport.identity import Identity, PeerId, peer_id_of, public_key_of
from ..transport.rates import Bucket, Rate
from . import defaults
from .archive import MemoryArchive
from .digest import Plot
from .entry import Entry, FeedName, read_stored
from .errors import BadEntry, BadOrder, FeedFull, StateError, StoreRefused
from .feed import Feed
from .feeds import plot_of
from .group.group import Group
from .group.rule import Order
from .group.upkeep import Upkeep
from .inspection import Inspection
from .interest import Interest
from .keeper import DISK, Keeper, Trouble
from .kept import KeptArchive
from .kinds import KINDS, all_parts
from .ownfacts import OwnFacts, Said
from .replica import Replica
from .replication import Replication
from .stored import StoredFeed
from .views.fact import read_fields
from .views.views import Views
from .vouches import VOUCHES, write_vouches
from .writer import Writer


class State:
    """Of one node; its feeds lie in `folder`. `trouble` hears of a disk that refuses or is damaged,
    as of a `Keeper`."""

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        identity: Identity,
        folder: Path,
        *,
        trouble: Trouble,
        keeps: Iterable[Plot] | None = None,
    ) -> None:
        """`keeps`: what is kept of others' feeds, until `need` says otherwise; None: all."""
        self._host = host
        self._endpoint = endpoint
        self._identity = identity
        self._trouble = trouble
        self._keeper = Keeper(host, folder, trouble=trouble, lost=self._lost)
        self.interest = Interest(keeps)
        archive = KeptArchive(identity.peer, self._keeper)
        self.replica = Replica(identity.peer, archive, interest=self.interest, pause=self._pause)
        self.replication = Replication(host, endpoint, self.replica)
        self.inspection = Inspection(host, self.replica, self.replication, self._keeper, self._lost)
        self.views = Views()
        self.replica.watchers.append(self.views)
        self.hold = defaults.WRITE_HOLD
        """Seconds that own feeds stay as they are after the start; 0 where the key is new, so that
        nobody can have more of them."""
        self.upkeep: Upkeep | None = None
        """Of this node's private group, where it is in one."""
        self._entered = trio.Event()
        self._regrouped: dict[bytes, None] = {}  # authors of whom other things are to be shown
        self._writer: Writer | None = None
        self._came_back = False  # an own entry, from a peer: it may say what is not true any more
        self._own_facts = OwnFacts()
        self._due = trio.Event()  # something is to be written
        self._unused = trio.Event()  # something may not be needed any more
        self._losses = trio.Event()
        self._met = trio.Event()  # a peer that had no link has one
        self.shown = trio.Event()
        """The views say what was stored before this run, as far as the disk gave it."""

    async def enter(self, group: Group, *, alone: bool = False) -> None:
        """This node is in that private group from now on; before `run`, or later on. `alone`:
        nobody else ever was."""
        upkeep = self.upkeep = Upkeep(
            self._host, self._endpoint, self._identity, group, self.replication, self
        )
        upkeep.held = self.hold > 0 and not alone
        upkeep.on_change.append(self._regroup)
        self.replica.watchers.insert(0, group)
        self.views.shows = group.shows
        async with self.replication.turn():
            await self.replica.grouped((group.charter.founder,))
            if self._writer is not None:
                await upkeep.settle()
        self._entered.set()

    async def in_group(self) -> Upkeep:
        """Wait until this node is in a private group."""
        await self._entered.wait()
        assert self.upkeep is not None
        return self.upkeep

    def say(self, said: Said) -> None:
        """From now on these are all facts of this node with such keys; what the feeds hold else,
        also from an earlier run, is taken out. It may be said before `run` has started; what has
        no room is told as `trouble`, and tried again."""
        self._own_facts.say(said)
        self._settle()

    def set(self, kind: str, key: str, value: Mapping[str, Any] | None, *, part: int = 0) -> None:
        """Let a fact of this node be `value`, or be no more (None). `run` must have started.

        Raises FeedFull.
        """
        assert self._writer is not None, "the state is not running"
        self._writer.set(kind, part, key, value)
        self.interest.wrote((kind, part))
        self._due.set()

    def keys(self, kind: str, *, part: int = 0) -> Collection[str]:
        """Of the facts that a feed of this node holds, or is about to."""
        assert self._writer is not None, "the state is not running"
        return self._writer.keys(kind, part)

    def need(self, plots: Iterable[Plot]) -> None:
        """What this node has use for from now on, where it does not keep all: it is fetched from
        peers, and what is not needed any more goes after a while."""
        if self.interest.need(plots, self._host.now()):
            self.replication.wake()
            self._unused.set()

    def get(self, kind: str, key: str, *, part: int = 0) -> Mapping[str, Any] | None:
        """What a fact of this node says, or is about to; None: there is none."""
        assert self._writer is not None, "the state is not running"
        packed = self._writer.get(kind, part, key)
        return None if packed is None else read_fields(packed)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started when what was stored is known and facts can be set."""
        async with trio.open_nursery() as nursery:
            self._begin(await self._open(nursery))
            await nursery.start(self.replication.run)
            task_status.started()
            nursery.start_soon(self._show)
            nursery.start_soon(self._write)
            nursery.start_soon(self._stay_true)
            nursery.start_soon(self._vouch)
            nursery.start_soon(self._keep_group)
            nursery.start_soon(self._forget)
            nursery.start_soon(self._forget_lost)
            await trio.sleep_forever()

    async def _open(self, nursery: trio.Nursery) -> dict[FeedName, Feed]:
        """The own feeds as they were stored. A disk that does not open the store, or fails while it
        is read, leaves a node without memory of earlier runs."""
        self._host.keep_memory()  # the program itself stays as well
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
        if self._writer is None:
            self._host.keep_memory()  # what was stored is taken up, and stays
        await trio.lowlevel.checkpoint()

    async def _own_feeds(self) -> dict[FeedName, Feed]:
        names = [FeedName(self._identity.peer, kind, part) for kind, part in all_parts()]
        for name in names:
            await self.replica.own_feed(name)  # where one is damaged, all are lost and begin anew
        return {name: await self.replica.own_feed(name) for name in names}

    async def _keep(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self._keeper.run(task_status=task_status)

    def _begin(self, feeds: Mapping[FeedName, Feed]) -> None:
        writer = self._writer = Writer(
            self._identity,
            feeds.__getitem__,
            lot=lambda below: int.from_bytes(self._host.entropy(8)) % below,
            held_until=self._host.now() + self.hold,
        )
        exchange = self.replication.exchange

        def takes(entry: Entry) -> bool:
            self._came_back = True
            return writer.takes(entry, self._host.now())

        def reported(peer: PeerId) -> None:
            """Peers compare feeds again and again: only what that brought is a reason to write."""
            if writer.reported(peer, len(list(exchange.peers))) or self._came_back:
                self._came_back = False
                self._due.set()

        self.replica.takes_own = takes
        self.replica.wants_own = True
        exchange.on_reported.append(reported)
        exchange.on_peer.append(lambda peer: self._met.set())

    def _lost(self, names: Sequence[FeedName] | None) -> None:
        authors = None if names is None else {name.author for name in names}
        self.replica.lost(authors)
        self._losses.set()
        if self._writer is not None and (authors is None or self._identity.peer in authors):
            self._writer.renew()
            self._due.set()

    # Tasks.

    async def _show(self) -> None:
        """Let the views say what was stored before this run; what a disk refuses to give, later."""
        while isinstance(self.replica.archive, KeptArchive):
            try:
                async for batch in self._keeper.load():
                    for stored in batch:
                        author = stored.name.author
                        with self._endpoint.guard.around(author):
                            async with self.replication.turn():
                                await self._shown(stored)
                        await trio.lowlevel.checkpoint()
                    self._host.keep_memory()
                break
            except StoreRefused:
                self.shown.set()
                await trio.sleep(defaults.REFUSED_PAUSE)
            except trio.ClosedResourceError:
                return  # this node is ending
        self.shown.set()

    async def _shown(self, stored: StoredFeed) -> None:
        key, plot = public_key_of(stored.name.author), (stored.name.kind, stored.name.part)
        feed = self.replica.feed(key, plot)
        if feed is None or feed.head is None:
            return
        if feed.head == stored.head:
            with suppress(BadEntry):  # it is read again, and found to be damaged
                feed.load(map(read_stored, stored.entries))
        await self._restored(feed, await self.replica.facts(key, plot))

    async def _restored(self, feed: Feed, facts: Mapping[str, bytes]) -> None:
        head, place = feed.head, (public_key_of(feed.name.author), plot_of(feed.name))
        for _ in self.views.restoring(feed.name, facts):
            await trio.lowlevel.checkpoint()
            if self.replica.head(*place) != head:
                return  # its author was dropped meanwhile

    def _regroup(self, before: Order) -> None:
        """What counts of some has changed with their place in the group."""
        if self.upkeep is None or self._writer is None:
            return  # nothing is shown yet
        group, own = self.upkeep.group, self._identity.peer
        peers = before.standings.keys() | before.revoked.keys()
        peers |= group.order.standings.keys() | group.order.revoked.keys()
        young = not before.knows(own)
        self._regrouped |= {
            public_key_of(peer): None
            for peer in peers
            if young or before.role(peer) != group.order.role(peer)
        }
        if young and not group.young:  # until now what anybody said counted
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
                        self._regrouped[key] = None  # the disk gives it later
                        break
                    await trio.lowlevel.checkpoint()
                await upkeep.decided()

    async def _show_anew(self, group: Group, key: bytes) -> bool:
        """Let the views say of an author what its place in the group lets count: whether they
        do."""
        peer = peer_id_of(key)
        hidden = [kind for kind in KINDS if not group.shows(peer, kind)]
        self.views.hide(peer, hidden)
        for plot in self.replica.plots(key):
            if plot[0] not in hidden and not await self._show_again(key, plot):
                return False
        return True

    async def _show_again(self, author: bytes, plot: Plot) -> bool:
        """Whether nothing is left to show of a feed: a disk that refuses may give it later."""
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

    async def _write(self) -> None:
        """Own facts become entries, together where several come at once."""
        assert self._writer is not None
        writer = self._writer
        while True:
            wait = writer.wake(self._host.now())
            with trio.move_on_after(inf if wait is None else max(wait, _LEAST_WAIT)):
                await self._due.wait()
            self._due = trio.Event()
            self._own_facts.settle(writer)  # peers may have brought what an earlier run said
            entries = writer.flush(self._host.now(), int(self._host.wall() * 1000))
            if not entries:
                await trio.sleep(_LEAST_WAIT)
                continue
            try:
                await self.replication.write(entries, writer.stored)
            except (StoreRefused, BadOrder):
                writer.failed(entries)
                await trio.sleep(defaults.REFUSED_PAUSE)

    def _settle(self) -> None:
        """Let the feeds say what this node says."""
        if self._writer is None:
            return
        self._trouble(OWN_FEEDS, self._own_facts.settle(self._writer))
        contested = self._host.now() < self._writer.contested_at + defaults.CONTESTED
        error = StateError(SAME_KEY, _CONTESTED, hint=_CONTESTED_HINT) if contested else None
        self._trouble(SAME_KEY, error)
        self._due.set()

    async def _stay_true(self) -> None:
        """What had no room may have some now."""
        while True:
            self._settle()
            await trio.sleep(defaults.SETTLE_AGAIN)

    async def _forget_lost(self) -> None:
        while True:
            await self._losses.wait()
            self._losses = trio.Event()
            await self.replica.forget_lost()
            self.replication.wake()

    async def _vouch(self) -> None:
        """Say whom this node has lasting links with, seldom: each change goes to everybody."""
        seen: dict[PeerId, float] = {}
        vouched: list[PeerId] = []
        pace = Bucket(Rate(*defaults.VOUCH_CHANGES), self._host.now())
        await trio.sleep(defaults.VOUCH_LOOK)  # those who start together all have news
        while True:
            await self._until_vouching()
            now = self._host.now()
            seen |= dict.fromkeys(self.replication.exchange.peers, now)
            seen = {peer: at for peer, at in seen.items() if now - at < defaults.VOUCH_KEPT}
            still = [peer for peer in vouched if peer in seen]
            lonely = [peer for peer, at in seen.items() if at == now and self._is_lonely(peer)]
            stale = len(still) * 2 < len(vouched)
            if (stale or not set(lonely) <= set(vouched)) and pace.take(now):
                latest = sorted(seen, key=seen.__getitem__)[-defaults.VOUCHED_ENOUGH :]
                some = list(dict.fromkeys([*lonely, *still, *latest]))[: defaults.AUTHOR_VOUCHED]
                with suppress(FeedFull):  # it has forked
                    self.set("member", VOUCHES, write_vouches(map(public_key_of, some)))
                    vouched = some
                await trio.sleep(defaults.VOUCH_PAUSE)  # meanwhile others may do so as well

    async def _until_vouching(self) -> None:
        """Soon after a link came up; the many peers of a node that is new look one after the other,
        so that only a few have to vouch for it."""
        with trio.move_on_after(defaults.VOUCH_LOOK):
            await self._met.wait()
            self._met = trio.Event()
            lot = int.from_bytes(self._host.entropy(2)) / 2**16
            await trio.sleep(lot * defaults.VOUCH_SOON * len(list(self.replication.exchange.peers)))

    async def _forget(self) -> None:
        """What this node has had no use for, for a while, goes."""
        while True:
            wait = self.interest.next_at() - self._host.now()
            with trio.move_on_after(max(wait, _LEAST_WAIT)):
                await self._unused.wait()
            self._unused = trio.Event()
            if gone := self.interest.expire(self._host.now()):
                async with self.replication.turn():
                    await self.replica.forget([plot for plot in gone if not self.interest(plot)])

    def _is_lonely(self, peer: PeerId) -> bool:
        """Whether those without a link to it may not hear what it says."""
        return self.replica.authors.vouchers(public_key_of(peer)) < defaults.VOUCHED_LEAST


OWN_FEEDS, SAME_KEY = "state", "same-key"
"""Conditions that `trouble` hears of, besides those of the keeper."""
_CONTESTED = "another node with this node's identity was seen"
_CONTESTED_HINT = "a data folder must run once: stop the copy, or give it another folder"
_LEAST_WAIT = 0.01  # seconds; a wait of a rounding error would never end on a stopped clock

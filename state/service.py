"""The swarm's state as one node has it: its own facts written, everybody's replicated and shown.

A fact goes one way: `set` → the writer makes it an entry → the store has it on disk → peers are
told → each replica checks it, keeps it, and its views change.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import trio

from ..transport.endpoint import Endpoint
from ..transport.host import Host
from ..transport.identity import Identity, PeerId, public_key_of
from . import defaults
from .archive import MemoryArchive
from .digest import Plot
from .entry import FeedName
from .errors import BadOrder, FeedFull, StoreRefused
from .feed import Feed
from .inspection import Inspection
from .keeper import DISK, Keeper, Trouble
from .kept import KeptArchive
from .kinds import all_parts
from .replica import VOUCHES, Replica, write_vouches
from .replication import Replication
from .views.views import Views
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
    ) -> None:
        self._host = host
        self._identity = identity
        self._trouble = trouble
        self._keeper = Keeper(host, folder, trouble=trouble, lost=self._lost)
        self.replica = Replica(identity.peer, KeptArchive(identity.peer, self._keeper))
        self.replication = Replication(host, endpoint, self.replica)
        self.inspection = Inspection(host, self.replica, self.replication, self._keeper, self._lost)
        self.views = Views()
        self.replica.watchers.append(self.views)
        self._writer: Writer | None = None
        self._due = trio.Event()  # something is to be written

    @property
    def contested(self) -> int:
        """Times that another process was seen to write with this node's key."""
        return 0 if self._writer is None else self._writer.contested

    def set(self, kind: str, key: str, value: Mapping[str, Any] | None, *, part: int = 0) -> None:
        """Let a fact of this node be `value`, or be no more (None). `run` must have started.

        Raises FeedFull.
        """
        assert self._writer is not None, "the state is not running"
        self._writer.set(kind, part, key, value)
        self._due.set()

    def keys(self, kind: str, *, part: int = 0) -> Collection[str]:
        """Of the facts that a feed of this node holds, or is about to."""
        assert self._writer is not None, "the state is not running"
        return self._writer.keys(kind, part)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started when what was stored is known and facts can be set."""
        async with trio.open_nursery() as nursery:
            self._begin(await self._open(nursery))
            await nursery.start(self.replication.run)
            task_status.started()
            nursery.start_soon(self._show)
            nursery.start_soon(self._write)
            nursery.start_soon(self._vouch)
            await trio.sleep_forever()

    async def _open(self, nursery: trio.Nursery) -> dict[FeedName, Feed]:
        """The own feeds as they were stored. A disk that does not open the store, or fails while it
        is read, leaves a node without memory of earlier runs."""
        try:
            await nursery.start(self._keep)
            await self.replica.restore()
            return await self._own_feeds()
        except StoreRefused as refused:
            self._trouble(DISK, refused)
            self.replica.restart(MemoryArchive())
            return await self._own_feeds()

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
            held_until=self._host.now() + defaults.WRITE_HOLD,
        )
        exchange = self.replication.exchange
        self.replica.takes_own = lambda entry: writer.takes(entry, self._host.now())
        self.replica.wants_own = True

        def reported(peer: PeerId) -> None:
            writer.reported(peer, len(list(exchange.peers)))
            self._due.set()

        exchange.on_reported.append(reported)

    def _lost(self, names: Sequence[FeedName] | None) -> None:
        authors = None if names is None else {name.author for name in names}
        self.replica.lost(authors)
        if self._writer is not None and (authors is None or self._identity.peer in authors):
            self._writer.renew()
            self._due.set()

    # Tasks.

    async def _show(self) -> None:
        """Let the views say what was stored before this run."""
        later = []
        for author in tuple(self.replica.authors.keys()):
            await trio.lowlevel.checkpoint()
            later += [(author, plot) for plot in all_parts() if not await self._shown(author, plot)]
        while later:
            await trio.sleep(defaults.REFUSED_PAUSE)
            later = [each for each in later if not await self._shown(*each)]

    async def _shown(self, author: bytes, plot: Plot) -> bool:
        """Whether nothing is left to show of a feed: a disk that refuses may give it later."""
        feed = self.replica.feed(author, plot)
        if feed is None or feed.head is None:
            return True
        async with self.replication.turn():
            try:
                facts = await self.replica.facts(author, plot)
            except StoreRefused:
                return False
            self.views.restored(feed.name, facts)
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
            entries = writer.flush(self._host.now(), int(self._host.wall() * 1000))
            if not entries:
                await trio.sleep(_LEAST_WAIT)
                continue
            try:
                await self.replication.write(entries, writer.stored)
            except (StoreRefused, BadOrder):
                writer.failed(entries)
                await trio.sleep(defaults.REFUSED_PAUSE)

    async def _vouch(self) -> None:
        """Say whom this node has lasting links with, seldom: each change goes to everybody."""
        seen: dict[PeerId, float] = {}
        vouched: set[PeerId] = set()
        while True:
            await trio.sleep(defaults.VOUCH_LOOK)
            now = self._host.now()
            seen |= dict.fromkeys(self.replication.exchange.peers, now)
            seen = {peer: at for peer, at in seen.items() if now - at < defaults.VOUCH_KEPT}
            stale = len(vouched & seen.keys()) * 2 < len(vouched)
            few = len(vouched) < defaults.VOUCHED_ENOUGH and not seen.keys() <= vouched
            if stale or few:
                some = set(sorted(seen, key=seen.__getitem__)[-defaults.AUTHOR_VOUCHED :])
                with suppress(FeedFull):  # it has forked
                    self.set("member", VOUCHES, write_vouches(map(public_key_of, some)))
                    vouched = some


_LEAST_WAIT = 0.01  # seconds; a wait of a rounding error would never end on a stopped clock

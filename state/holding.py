"""What a node keeps of the feeds: heads, documents, whose they are, and who is told of changes.

Nothing here knows of peers or of what they send; `replica.py` takes that in. A head stands in the
digest once its entries are in the archive, which is all that is waited for. One caller at a time
may change anything (`Network.turn`); whoever awaits may find an author gone.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence

from ..transport.identity import PeerId, peer_id_of, public_key_of
from . import defaults
from .archive import Archive, Stored
from .authors import Authors, Change
from .digest import Digest, Plot
from .documents import Documents
from .ends import Ends
from .entry import Entry, FeedName, Head
from .errors import BadEntry
from .feed import Feed, Outcome, Verdict
from .feeds import Feeds, plot_of
from .vouches import VOUCHES, read_vouches

Pause = Callable[[], Awaitable[None]]


async def at_once() -> None:
    """The pause of whoever need not let others run."""


class Watcher(ABC):
    """Derives something from the feeds."""

    @abstractmethod
    def changed(self, name: FeedName, verdict: Verdict) -> None:
        """Facts of a feed are other ones; where `verdict.fresh`, all that it does not name are
        gone, as they are where the feed has forked."""

    def steps(self, name: FeedName, verdict: Verdict) -> Iterator[None]:
        """Follow a change in steps, between which other tasks run. The caller abandons the rest if
        the author is dropped meanwhile."""
        self.changed(name, verdict)
        return iter(())

    @abstractmethod
    def dropped(self, author: PeerId) -> None:
        """An author is not kept any more."""


class Holding:
    """Of one node. `own` is this node."""

    def __init__(
        self,
        own: PeerId,
        archive: Archive,
        *,
        authors: Authors | None = None,
        documents: int = defaults.DOCUMENTS,
        pause: Pause = at_once,
    ) -> None:
        """Of `documents` that many at most are in memory; `pause` lets others run, wherever many
        feeds are gone through."""
        self.own = public_key_of(own)
        self.authors = authors or Authors(self.own)
        self.archive = archive
        self.digest = Digest()
        self.watchers: list[Watcher] = []
        self.newcomers: dict[bytes, None] = {}
        """Authors that are kept since a while ago; nobody has been asked for their feeds yet."""
        self._pause = pause
        self._ends = Ends()
        self._feeds = Feeds(self.digest, self._ends)
        self._documents = Documents(documents, defaults.DOCUMENTS_BYTES)
        self._lost: dict[bytes, None] = {}  # authors, until what they had is forgotten

    def feed(self, key: bytes, plot: Plot) -> Feed | None:
        """The feed of an author, where there is something of it."""
        return self._feeds.get(key, plot)

    def plots(self, key: bytes) -> Sequence[Plot]:
        """Of which kinds and parts there is a feed of this author."""
        return self._feeds.plots(key)

    def head(self, key: bytes, plot: Plot) -> Head | None:
        """What others may be told."""
        return self.digest.head(key, plot)

    async def facts(self, key: bytes, plot: Plot) -> dict[str, bytes]:
        """What a feed says now. As taking in: one caller at a time."""
        feed = self.feed(key, plot)
        if feed is None or feed.forked:
            return {}
        await self._load(feed)
        facts = feed.document.facts() if feed.document is not None else {}
        archived = feed.head == self.digest.head(key, plot)
        if archived and self._feeds.keep(key, plot, feed.size, feed.memory):
            await self._weigh(key)
        return facts if self._feeds.used(key, plot) is feed else {}

    def _remember(self, feed: Feed) -> None:
        """Its document was used now. Those of own feeds stay: their writer has them."""
        if public_key_of(feed.name.author) != self.own:
            self._documents.use(feed)

    async def _load(self, feed: Feed) -> None:
        """Have its document in memory. Where the archive is damaged, all that it has of the author
        is dropped: it will be fetched again."""
        seq = 0
        if feed.document is None:
            feed.unload()  # of what the last one to load it had not come to the end
        while feed.document is None and feed.head is not None and not feed.forked:
            entries = await self._entries_to(feed, seq)
            try:
                feed.load(entries)
            except BadEntry:
                entries = ()
            if not entries:
                await self._lose(public_key_of(feed.name.author))
                return
            seq += len(entries)
        self._remember(feed)

    async def _entries_to(self, feed: Feed, seq: int) -> Sequence[Entry]:
        """Some of its entries in the archive from that number on, none behind its head."""
        assert feed.head is not None
        epoch, limit = feed.head.epoch, defaults.LOADED_BYTES
        entries = await self.archive.entries(feed.name, epoch, seq, limit)
        return [entry for entry in entries if entry.seq <= feed.head.seq]

    # What changes.

    def resume(self, key: bytes, feeds: Iterable[Stored]) -> None:
        """Take up what the archive has of an author who is kept."""
        for name, head, size in feeds:
            self.digest.set(key, plot_of(name), head)
            self._feeds.keep(key, plot_of(name), size)

    async def _show(self, feed: Feed, verdict: Verdict) -> None:
        """Publish what the feed is now. Thousands of facts take some 20 ms, so other tasks run in
        between."""
        key, plot = public_key_of(feed.name.author), plot_of(feed.name)
        self.digest.set(key, plot, feed.head)
        if feed.head is not None:
            self._feeds.keep(key, plot, feed.size, feed.memory)
        for watcher in self.watchers:
            for _ in watcher.steps(feed.name, verdict):
                await self._pause()
                if self.digest.head(key, plot) != feed.head:
                    return  # its author was dropped meanwhile

    async def _heed(self, feed: Feed, verdict: Verdict) -> None:
        """What it weighs now, and for whom it vouches."""
        key = public_key_of(feed.name.author)
        if feed.name.kind == "member" and (verdict.fresh or VOUCHES in verdict.changed):
            value = verdict.changed.get(VOUCHES)
            await self._apply(self.authors.vouches(key, read_vouches(value)))
        await self._weigh(key)

    async def _put_back(self, feed: Feed, made: Feed | None) -> None:
        """This one in place of a feed, first for everybody, then in the archive."""
        self._leave(public_key_of(feed.name.author), plot_of(feed.name))
        facts: Mapping[str, bytes] = {}
        if made is not None and made.document is not None:
            self._feeds.use(made)
            facts = made.document.facts()
            self._remember(made)
        made = made or Feed(feed.name)
        verdict = Verdict(Outcome.NEWS, changed=facts, fresh=True)
        await self._show(made, verdict)
        await self.archive.cut(made.name, made.head)
        await self._heed(made, verdict)

    def _unlearn(self, feed: Feed) -> None:
        """It is more here than in the archive. An own one stays as it is, for its writer has it:
        nobody is told of it, and what is written next begins an epoch."""
        key, plot = public_key_of(feed.name.author), plot_of(feed.name)
        if key != self.own and self._feeds.used(key, plot) is feed:
            self._leave(key, plot)

    def _leave(self, key: bytes, plot: Plot) -> None:
        feed = self._feeds.used(key, plot)
        if feed is not None:
            self._documents.let_go(feed)
        self._feeds.drop(key, plot)
        self.digest.set(key, plot, None)

    # Whose feeds.

    async def linked(self, peer: PeerId) -> None:
        """There is a link to this peer: its feeds are kept."""
        await self._apply(self.authors.linked(public_key_of(peer)))

    async def unlinked(self, peer: PeerId) -> None:
        await self._apply(self.authors.unlinked(public_key_of(peer)))

    async def grouped(self, peers: Iterable[PeerId]) -> None:
        """Who is in this node's group from now on."""
        await self._apply(self.authors.grouped(map(public_key_of, peers)))

    async def refill(self) -> None:
        """Where there is room again, keep those who found none before."""
        for change in self.authors.refill():
            await self._apply(change)
            await self._pause()

    async def _apply(self, change: Change) -> None:
        """Whose feeds are kept has changed, and what follows of that."""
        await self._follow(change)
        while self.authors.unsettled:
            await self._pause()
            await self._follow(self.authors.settle())

    async def _follow(self, change: Change) -> None:
        self.newcomers |= dict.fromkeys(change.added)
        for start in range(0, len(change.dropped), defaults.DROPPED_AT_ONCE):
            some = change.dropped[start : start + defaults.DROPPED_AT_ONCE]
            for key in some:
                self.newcomers.pop(key, None)
                self._clear(key)
                await self._pause()
            await self.archive.drop([peer_id_of(key) for key in some])

    async def _weigh(self, key: bytes) -> None:
        await self._apply(self.authors.weigh(key, self._feeds.weight(key)))

    async def forget(self, plots: Collection[Plot]) -> None:
        """These are not kept any more: the feeds of others in them go."""
        keys = [key for key in self._feeds.authors() if key != self.own]
        for start in range(0, len(keys), defaults.DROPPED_AT_ONCE):
            names: list[FeedName] = []
            for key in keys[start : start + defaults.DROPPED_AT_ONCE]:
                for plot in self._feeds.plots(key):  # none where its author has gone meanwhile
                    if plot in plots:
                        self._leave(key, plot)
                        names.append(FeedName(peer_id_of(key), *plot))
                        for watcher in self.watchers:
                            watcher.changed(names[-1], Verdict(Outcome.NEWS, fresh=True))
                await self._weigh(key)
                await self._pause()
            await self.archive.forget(names)

    def _clear(self, key: bytes) -> None:
        self._lost.pop(key, None)
        for plot in self._feeds.plots(key):
            self._leave(key, plot)
        for watcher in self.watchers:
            watcher.dropped(peer_id_of(key))

    def lost(self, authors: Iterable[PeerId] | None) -> None:
        """The archive has lost feeds of these authors, or all that it had (None): `forget_lost`
        is to be called. Own feeds are the writer's to begin anew."""
        keys = self._feeds.authors() if authors is None else map(public_key_of, authors)
        self._lost |= {key: None for key in keys if key != self.own}

    async def forget_lost(self) -> None:
        """Let what others have of lost feeds be fetched again."""
        while self._lost:
            key, _ = self._lost.popitem()
            self._clear(key)  # had it been cleared meanwhile, it would not be lost any more
            self.newcomers[key] = None
            await self._pause()

    async def _lose(self, key: bytes) -> None:
        self._clear(key)
        self.newcomers[key] = None
        await self.archive.drop([peer_id_of(key)])

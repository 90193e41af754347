"""A node's copy of the feeds: heads, documents, the selected authors, and what peers are given.

A node stores up to fifty thousand feeds, of which a few dozen are in use at a time: those with a
document in memory, or with entries that are not in the archive yet. A feed that is not in use has
only its head in the digest and a row of a few bytes in `Feeds`. A `Feed` object is created from
these when it is needed.

This module knows nothing of peers; `replica.py` processes what peers send. A head enters the digest
once its entries are in the archive. Only one caller at a time may change anything
(`ReplicationPeers.turn`). During an await, an author may be dropped.
"""

import struct
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import Final
from weakref import WeakValueDictionary

from ...transport.identity import PeerId, peer_id_of, public_key_of
from .. import defaults
from ..errors import BadEntry
from ..feeds.archive import Archive, ArchivedFeed
from ..feeds.digest import HASH_BYTES, Digest, Plot
from ..feeds.entry import FORKED, Entry, FeedName, Head, read_stored
from ..feeds.feed import EntryOutcome, EntryVerdict, Feed
from ..feeds.kinds import all_parts
from .authors import Authors, AuthorsChange
from .ends import Ends
from .gossip import Item, Pulled, Told

Pause = Callable[[], Awaitable[None]]


async def at_once() -> None:
    """Return without letting other tasks run. Use this `Pause` where there is no event loop."""


class Watcher(ABC):
    """Observer of changes of feeds, which derives data from them."""

    @abstractmethod
    def changed(self, name: FeedName, verdict: EntryVerdict) -> None:
        """Handle a change of a feed's facts.

        If `verdict.fresh` is True, all facts that `verdict.changed` does not name are deleted. The
        verdict is also fresh when the feed has forked.
        """

    def steps(self, name: FeedName, verdict: EntryVerdict) -> Iterator[None]:
        """Handle a change of a feed's facts in steps, between which other tasks run.

        The caller does not take the remaining steps if the author is dropped in the meantime.
        """
        self.changed(name, verdict)
        return iter(())

    @abstractmethod
    def dropped(self, author: PeerId) -> None:
        """Handle the removal of all feeds of an author."""


_PLOTS: Final[tuple[Plot, ...]] = tuple(all_parts())
_NUMBERS: Final = {plot: number for number, plot in enumerate(_PLOTS)}
_ROW: Final = struct.Struct(">BII")
"""The number of the plot, the size of the feed's entries, and the size of its facts in the
views."""


class Feeds:
    """Feeds by author and plot (kind and part).

    `digest` has the heads of all archived feeds. `ends` has the ends of revoked members' feeds.
    """

    def __init__(self, digest: Digest, ends: Ends) -> None:
        self._digest = digest
        self._ends = ends
        self._rows: dict[bytes, bytes] = {}
        self._used: WeakValueDictionary[tuple[bytes, Plot], Feed] = WeakValueDictionary()
        self._own: dict[tuple[bytes, Plot], Feed] = {}

    def authors(self) -> Collection[bytes]:
        """Return the public keys of the authors with feeds in the archive."""
        return self._rows.keys()

    def plots(self, key: bytes) -> list[Plot]:
        """Return the plots of which this author has a feed."""
        kept = {number for number, _, _ in self._sizes(key)}
        used = self._used
        return [plot for at, plot in enumerate(_PLOTS) if at in kept or (key, plot) in used]

    def get(self, key: bytes, plot: Plot) -> Feed | None:
        """Return a feed, or None if there is none.

        Returns the same object as long as something refers to it.
        """
        feed = self._used.get((key, plot))
        if feed is None:
            for number, size, memory in self._sizes(key):
                if number == _NUMBERS[plot]:
                    name, head = FeedName(peer_id_of(key), *plot), self._digest.head(key, plot)
                    feed = Feed(name, head, size, self._ends.of(key, plot), memory)
                    self._used[key, plot] = feed
        return feed

    def used(self, key: bytes, plot: Plot) -> Feed | None:
        """Return a feed if it is in use, else None."""
        return self._used.get((key, plot))

    def head(self, key: bytes, plot: Plot) -> Head | None:
        """Return the head of a feed, even if its last entries are not in the archive yet."""
        feed = self._used.get((key, plot))
        return self._digest.head(key, plot) if feed is None else feed.head

    def weight(self, key: bytes) -> int:
        """Return the weight of an author's feeds in bytes.

        The weight is the size of their entries or of their facts in the views, whichever is larger.
        """
        entries = facts = 0
        for _, size, memory in self._sizes(key):
            entries, facts = entries + size, facts + memory
        return max(entries, facts)

    def use(self, feed: Feed) -> None:
        """Cache this object with a weak reference, so that `get` returns it while it is in use.

        Call `keep` once the feed is in the archive; without its row, the feed is lost with the
        object.
        """
        self._used[public_key_of(feed.name.author), plot_of(feed.name)] = feed

    def hold(self, feed: Feed) -> None:
        """Store this object, so that `get` always returns it.

        The writer needs this for this node's feeds.
        """
        self.use(feed)
        self._own[public_key_of(feed.name.author), plot_of(feed.name)] = feed

    def keep(self, key: bytes, plot: Plot, size: int, memory: int = 0) -> bool:
        """Store the row of a feed that is in the archive and whose head is in the digest.

        `size` is the size of its entries, and `memory` that of its facts in the views, in bytes.
        Returns whether the row has changed.
        """
        if (_NUMBERS[plot], size, memory) in self._sizes(key):
            return False
        self._set(key, plot, _ROW.pack(_NUMBERS[plot], size, memory))
        return True

    def drop(self, key: bytes, plot: Plot) -> None:
        """Remove a feed from the table."""
        self._used.pop((key, plot), None)
        self._own.pop((key, plot), None)
        self._set(key, plot, b"")

    def _sizes(self, key: bytes) -> Iterator[tuple[int, ...]]:
        """Return an iterator over the rows of an author: (number of the plot, size, memory)."""
        return _ROW.iter_unpack(self._rows.get(key, b""))

    def _set(self, key: bytes, plot: Plot, row: bytes) -> None:
        rows = self._rows.get(key, b"")
        numbers = rows[:: _ROW.size]
        at = numbers.find(_NUMBERS[plot]) % (len(numbers) + 1) * _ROW.size  # -1: append it
        self._rows[key] = rows[:at] + row + rows[at + _ROW.size :]
        if not self._rows[key]:
            del self._rows[key]


def plot_of(name: FeedName) -> Plot:
    """Return the plot (kind and part) of a feed. Equal plots share one object, to save memory."""
    return _PLOTS[_NUMBERS[name.kind, name.part]]


class Documents:
    """LRU cache of at most `most` documents, which take at most `most_bytes` of memory.

    The document that was used last stays in memory even if it alone exceeds the limit.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._used: OrderedDict[FeedName, tuple[Feed, int]] = OrderedDict()  # oldest use first
        self._size = 0

    def __len__(self) -> int:
        return len(self._used)

    def use(self, feed: Feed) -> None:
        """Mark a feed's document as the one used last, and unload others beyond the limits.

        If the document is not in memory, the feed is removed from the cache.
        """
        self._take_out(feed)
        if feed.document is None:
            return
        self._used[feed.name] = feed, feed.document.memory
        self._size += feed.document.memory
        while len(self._used) > 1 and (
            len(self._used) > self._most or self._size > self._most_bytes
        ):
            self.let_go(next(iter(self._used.values()))[0])

    def let_go(self, feed: Feed) -> None:
        """Unload a feed's document, and remove it from the cache.

        `Feed.load` builds the document again.
        """
        self._take_out(feed)
        feed.unload()

    def _take_out(self, feed: Feed) -> None:
        _, size = self._used.pop(feed.name, (feed, 0))
        self._size -= size


class ReplicaFeeds:
    """The feeds that one node, `own`, stores."""

    def __init__(
        self,
        own: PeerId,
        archive: Archive,
        *,
        authors: Authors | None = None,
        documents: int = defaults.DOCUMENTS,
        pause: Pause = at_once,
    ) -> None:
        """Create the copy without any feeds.

        `documents` is the maximum number of documents in memory. `pause` lets other tasks run while
        many feeds are processed.
        """
        self.own = public_key_of(own)
        self.authors = authors or Authors(self.own)
        self.archive = archive
        self.digest = Digest()
        self.watchers: list[Watcher] = []
        self.newcomers: dict[bytes, None] = {}
        """Authors that are stored from now on, and whose feeds no peer has been asked for yet."""
        self._pause = pause
        self._ends = Ends()
        self._feeds = Feeds(self.digest, self._ends)
        self._documents = Documents(documents, defaults.DOCUMENTS_BYTES)
        self._lost: dict[bytes, None] = {}  # authors with lost feeds, for `forget_lost`

    def feed(self, key: bytes, plot: Plot) -> Feed | None:
        """Return a feed of an author, or None if it is not stored."""
        return self._feeds.get(key, plot)

    def plots(self, key: bytes) -> Sequence[Plot]:
        """Return the plots (kinds and parts) of which this author has a feed."""
        return self._feeds.plots(key)

    def head(self, key: bytes, plot: Plot) -> Head | None:
        """Return the archived head of a feed, or None.

        Only archived heads may be sent to other nodes.
        """
        return self.digest.head(key, plot)

    async def facts(self, key: bytes, plot: Plot) -> dict[str, bytes]:
        """Return the current facts of a feed, by key.

        Returns {} if the feed is unknown, has forked, or turns out to be damaged. Only one caller
        at a time may call this, as for changes.
        """
        feed = self.feed(key, plot)
        if feed is None or feed.forked:
            return {}
        await self.load(feed)
        facts = feed.document.facts() if feed.document is not None else {}
        archived = feed.head == self.digest.head(key, plot)
        if archived and self._feeds.keep(key, plot, feed.size, feed.memory):
            await self._weigh(key)
        return facts if self._feeds.used(key, plot) is feed else {}

    async def give(self, wanted: Sequence[Told], limit: int = defaults.PULL_BYTES) -> Pulled:
        """Return the entries that follow these heads of a peer, up to about `limit` bytes.

        The last entry may exceed the limit.
        """
        items: list[Item] = []
        for asked in wanted:
            mine = self.head(asked.key, asked.plot)
            if mine is None or asked.same(mine):
                continue
            if limit <= 0 or len(items) >= defaults.PULL_ITEMS:
                return Pulled(items, more=True)
            name = FeedName(peer_id_of(asked.key), *asked.plot)
            if mine == FORKED:
                proof = await self.archive.proof(name)
                found: list[Item] = [] if proof is None else [proof.sealed]
            else:
                found = await self._following(name, asked, mine, limit)
            found = found[: defaults.PULL_ITEMS - len(items)]
            items += found
            limit -= sum(len(sealed) for item in found for sealed in item)
        return Pulled(items, more=limit <= 0)

    async def _following(self, name: FeedName, asked: Told, mine: Head, limit: int) -> list[Item]:
        """Return the entries that follow the peer's head `asked`.

        If this node has a different entry with the number of that head, returns only this entry.
        Together with the peer's own entry, it proves a fork.
        """
        if asked.epoch > mine.epoch or (asked.epoch == mine.epoch and asked.seq > mine.seq):
            return []
        first = 0
        if asked.epoch == mine.epoch:
            theirs = await self.archive.entries(name, mine.epoch, asked.seq, 0)
            if not theirs or read_stored(theirs[0]).hash[:HASH_BYTES] != asked.hash:
                return [(sealed,) for sealed in theirs]
            first = asked.seq + 1
        entries = await self.archive.entries(name, mine.epoch, first, limit)
        return [(sealed,) for sealed in entries[: mine.seq + 1 - first]]

    def _remember(self, feed: Feed) -> None:
        """Mark a feed's document as the one used last.

        Documents of this node's own feeds are not in the cache, because its writer needs them all
        the time.
        """
        if public_key_of(feed.name.author) != self.own:
            self._documents.use(feed)

    async def load(self, feed: Feed) -> None:
        """Load a feed's document into memory.

        If the feed is damaged in the archive, all feeds of its author are dropped and fetched
        again.
        """
        seq = 0
        if feed.document is None:
            feed.unload()  # a previous load may have been cancelled half-way
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
        """Return the next few archived entries of a feed from `seq` on, up to its head."""
        assert feed.head is not None
        epoch, limit = feed.head.epoch, defaults.LOADED_BYTES
        entries = await self.archive.entries(feed.name, epoch, seq, limit)
        return [read_stored(sealed) for sealed in entries[: feed.head.seq + 1 - seq]]

    # Changing.

    def resume(self, key: bytes, feeds: Iterable[ArchivedFeed]) -> None:
        """Add the archived feeds of a stored author to the digest and the table of feeds."""
        for name, head, size in feeds:
            self.digest.set(key, plot_of(name), head)
            self._feeds.keep(key, plot_of(name), size)

    def _unlearn(self, feed: Feed) -> None:
        """Remove a feed from memory, because it has entries there that the archive does not have.

        A feed of this node stays, because its writer uses it. Its unarchived entries are not
        announced, and its next entry begins an epoch.
        """
        key, plot = public_key_of(feed.name.author), plot_of(feed.name)
        if key != self.own and self._feeds.used(key, plot) is feed:
            self._leave(key, plot)

    def _leave(self, key: bytes, plot: Plot) -> None:
        feed = self._feeds.used(key, plot)
        if feed is not None:
            self._documents.let_go(feed)
        self._feeds.drop(key, plot)
        self.digest.set(key, plot, None)

    # Choosing the authors.

    async def linked(self, peer: PeerId) -> None:
        """Record a new link to this peer. Its feeds are stored from now on."""
        await self._apply(self.authors.linked(public_key_of(peer)))

    async def unlinked(self, peer: PeerId) -> None:
        await self._apply(self.authors.unlinked(public_key_of(peer)))

    async def grouped(self, peers: Iterable[PeerId]) -> None:
        """Set the members of this node's group."""
        await self._apply(self.authors.grouped(map(public_key_of, peers)))

    async def refill(self) -> None:
        """Add authors for which there was no space before, if there is space now."""
        for change in self.authors.refill():
            await self._apply(change)
            await self._pause()

    async def _apply(self, change: AuthorsChange) -> None:
        """Apply a change of the stored authors, and all its consequences."""
        await self._follow(change)
        while self.authors.unsettled:
            await self._pause()
            await self._follow(self.authors.settle())

    async def _follow(self, change: AuthorsChange) -> None:
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
        """Drop other authors' feeds of these plots."""
        keys = [key for key in self._feeds.authors() if key != self.own]
        for start in range(0, len(keys), defaults.DROPPED_AT_ONCE):
            names: list[FeedName] = []
            for key in keys[start : start + defaults.DROPPED_AT_ONCE]:
                for plot in self._feeds.plots(key):  # none if the author was dropped during a pause
                    if plot in plots:
                        self._leave(key, plot)
                        names.append(FeedName(peer_id_of(key), *plot))
                        for watcher in self.watchers:
                            watcher.changed(names[-1], EntryVerdict(EntryOutcome.NEWS, fresh=True))
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
        """Record that the archive has lost feeds of these authors. None means all authors.

        The caller then calls `forget_lost`. This node's own feeds are left out, because its writer
        begins new epochs of them.
        """
        keys = self._feeds.authors() if authors is None else map(public_key_of, authors)
        self._lost |= {key: None for key in keys if key != self.own}

    async def forget_lost(self) -> None:
        """Remove the feeds of authors with lost feeds, so that they are fetched from peers
        again."""
        while self._lost:
            key, _ = self._lost.popitem()
            self._clear(key)  # authors that others clear during a pause leave `_lost`
            self.newcomers[key] = None
            await self._pause()

    async def _lose(self, key: bytes) -> None:
        self._clear(key)
        self.newcomers[key] = None
        await self.archive.drop([peer_id_of(key)])

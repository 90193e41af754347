"""A node's replica of the feeds: admits entries, shows them to watchers, and finds missing ones.

The stored feeds are in `replicafeeds.py`, which also serves them to peers. New entries are
collected in a batch: they are admitted to their feeds, then written to the archive, and then
published to watchers and peers. This module knows nothing of links. Only one caller at a time may
add entries.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ...transport.identity import PeerId, peer_id_of, public_key_of
from .. import defaults
from ..errors import BadEntry, BadOrder, StateError
from ..feeds.archive import Archive, ArchivedFeed
from ..feeds.digest import Plot
from ..feeds.entry import (
    FORKED,
    Entry,
    FeedName,
    Head,
    UncheckedEntry,
    open_proof,
    parse_entry,
    read_stored,
)
from ..feeds.feed import OTHER_BRANCH, EntryOutcome, EntryVerdict, Feed, beyond
from ..feeds.kinds import all_parts
from .authors import Authors
from .ends import leads_on
from .gossip import Item, Told, told
from .interest import Interest
from .replicafeeds import Pause, ReplicaFeeds, at_once, plot_of
from .vouches import VOUCHES, read_vouches
from .wanted import Place

BLAMED: Final = frozenset(("too-large", "bad-envelope", "bad-signature", "bad-proof"))
"""Codes of entries that an honest peer does not forward."""
More = Callable[[], Awaitable[Collection[bytes]]]
"""Returns further authors to store, given the facts that are known so far. It is called until it
returns none."""
Admit = Callable[[Sequence[Entry]], Iterable[tuple[Entry, EntryVerdict]]]
"""Admits entries of this node's own feeds, once they are archived (`FeedWriter.stored`)."""


@dataclass(slots=True)
class Taken:
    """The result of adding entries and proofs from a peer."""

    news: dict[Place, Head] = field(default_factory=dict)
    bytes: dict[bytes, int] = field(default_factory=dict)  # processing cost by author
    blame: BadEntry | None = None  # set if the peer that sent the entries is to blame


def _follows(head: Head, mine: Head | None) -> bool:
    """Return whether an entry with this head may come next in a feed whose present head is
    `mine`."""
    if mine is None or head.epoch > mine.epoch:
        return head.seq == 0
    return head.seq == mine.seq + 1


@dataclass(slots=True)
class _Batch:
    """Entries and proofs that are admitted to their feeds, but not in the archive yet."""

    entries: list[Entry] = field(default_factory=list)
    verdicts: list[tuple[Feed, EntryVerdict]] = field(default_factory=list)
    size: int = 0
    looked_at: set[Place] = field(default_factory=set)  # feeds that had an item
    taken: Taken = field(default_factory=Taken)

    def count(self, key: bytes, size: int) -> None:
        """Charge the cost of processing `size` bytes to this author."""
        sizes = self.taken.bytes
        sizes[key] = sizes.get(key, 0) + size + defaults.ENTRY_COST


class OwnEntries(Protocol):
    """The rule for entries of this node's own feeds that peers have, from an earlier run of it."""

    @property
    def begun(self) -> bool:
        """Whether to pull such entries from peers."""

    def takes(self, entry: Entry) -> bool:
        """Return whether to admit a new entry that a peer sent."""


class _Nothing:
    """Rule of a replica that takes no entries of its own feeds from peers."""

    begun = False

    def takes(self, entry: Entry) -> bool:
        return False


class Replica(ReplicaFeeds):
    """The replica of one node, `own`."""

    checked: Callable[[UncheckedEntry], Entry] = staticmethod(UncheckedEntry.checked)
    """Checks the signature of an entry from a peer."""

    def __init__(
        self,
        own: PeerId,
        archive: Archive,
        *,
        authors: Authors | None = None,
        interest: Interest | None = None,
        own_entries: OwnEntries | None = None,
        documents: int = defaults.DOCUMENTS,
        pause: Pause = at_once,
    ) -> None:
        """Create the replica without any feeds; call `restore` next.

        `interest` selects the plots of which other authors' feeds are stored, by default all.
        Without `own_entries`, no entries of this node's own feeds are taken from peers.
        """
        super().__init__(own, archive, authors=authors, documents=documents, pause=pause)
        self.interest = interest or Interest()
        self._own_entries = own_entries or _Nothing()

    async def restore(self, more: More | None = None) -> None:
        """Restore the feeds from the archive.

        An author is restored if it is in `authors` already, if a restored author vouches for it, or
        if `more` returns it. All other authors are dropped, and so are feeds of plots that are not
        stored.
        """
        own = peer_id_of(self.own)
        found: dict[PeerId, list[ArchivedFeed]] = {}
        unused: list[FeedName] = []
        everything = await self.archive.load()
        for stored in everything:
            if stored.name.author == own:
                self.interest.wrote(plot_of(stored.name))
        for number, stored in enumerate(everything):
            if self.keeps(public_key_of(stored.name.author), plot_of(stored.name)):
                found.setdefault(stored.name.author, []).append(stored)
            else:
                unused.append(stored.name)
            if number % defaults.LOAD_FEEDS == 0:
                await self._pause()
        waiting = [self.own, *self.authors.keys()]
        while waiting:
            key = waiting.pop()
            if key not in self.authors:
                continue  # evicted because of the weight of others
            self.resume(key, found.pop(peer_id_of(key), ()))
            await self._end_feeds(key)
            value = (await self.facts(key, ("member", 0))).get(VOUCHES)
            change = self.authors.vouches(key, read_vouches(value))
            waiting += change.added
            await self._apply(change)
            await self._weigh(key)
            await self._pause()
            if not waiting and more is not None:
                waiting += await more()
        for plot in all_parts():
            self.digest.tree(plot).root()
            await self._pause()
        self.newcomers.clear()
        await self.archive.forget(unused)
        await self.archive.drop(list(found))

    def restart(self, archive: Archive) -> None:
        """Remove all feeds, and use another archive, after the first one failed while it was
        read."""
        for key in tuple(self._feeds.authors()):
            self._clear(key)
        self.newcomers.clear()
        self.archive = archive

    # Reading.

    def keeps(self, key: bytes, plot: Plot) -> bool:
        """Return whether feeds of this plot are stored for this author, if the author is stored.

        Returns True for this node's own feeds.
        """
        return key == self.own or self.interest(plot)

    def lacks(self, head: Told) -> bool:
        """Return whether a peer that reports this head has entries that are missing here.

        Returns False for feeds that this node does not store.
        """
        if head.key not in self.authors or not self.keeps(head.key, head.plot):
            return False
        mine = self._feeds.head(head.key, head.plot)
        if head.epoch == 0 or mine == FORKED or head.same(mine):
            return False
        end = self._ends.of(head.key, head.plot)
        if end is not None:
            return leads_on(mine, head, end)
        if head.epoch == FORKED.epoch:
            return head.same(FORKED)
        if head.key == self.own and not self._own_entries.begun:
            return False  # the writer answers that with another epoch
        return mine is None or head[3:5] >= mine[:2]

    def told(self, places: Iterable[Place]) -> list[Told]:
        """Return this node's heads of these feeds, in the form in which they are sent to peers."""
        return [told(key, plot, self.head(key, plot)) for key, plot in places]

    # Taking in.

    async def own_feed(self, name: FeedName) -> Feed:
        """Open one of this node's own feeds for its writer. Its document stays loaded in memory."""
        feed = self.feed(self.own, plot_of(name)) or Feed(name)
        self._feeds.hold(feed)
        await self.load(feed)
        # perhaps it was replaced during the load
        feed = self._feeds.used(self.own, plot_of(name)) or feed
        self._feeds.hold(feed)
        return feed

    async def write(self, entries: Sequence[Entry], admit: Admit | None = None) -> Taken:
        """Write entries of this node's own feeds, in order.

        The entries are in the archive on return.

        If `admit` is given, it admits the archived entries to their feeds. Without it, raises
        BadEntry if an entry does not fit. Also raises whatever the archive raises.
        """
        batch = _Batch()
        if admit is not None:
            await self.archive.put(entries)
            for entry, verdict in admit(entries):
                feed = await self.own_feed(entry.name)
                batch.verdicts.append((feed, verdict))
        else:
            for entry in entries:
                verdict = await self._admit(entry, batch)
                if verdict.outcome is not EntryOutcome.NEWS:
                    code = verdict.code or verdict.outcome.value
                    raise BadEntry(code, "an own entry does not fit")
        await self._commit(batch)
        return batch.taken

    async def take(self, items: Sequence[Item]) -> Taken:
        """Add entries and proofs from a peer, in order.

        Items of feeds that are not stored are skipped.

        Other tasks may run between two items, because checking a signature takes 0.1 ms.
        """
        batch = _Batch()
        for item in items:
            try:
                if len(item) == 2:
                    await self._take_proof(item[0], item[1], batch)
                else:
                    await self._take_entry(item[0], batch)
            except BadEntry as error:
                if error.code in BLAMED:
                    batch.taken.blame = error
                    break
            if batch.size > defaults.TAKEN_BYTES:
                await self._commit(batch)
            await self._pause()
        await self._commit(batch)
        return batch.taken

    async def _take_entry(self, sealed: bytes, batch: _Batch) -> None:
        """Check an entry from a peer and add it to the batch.

        Cheap checks come first, the signature last.
        """
        parsed = parse_entry(sealed)
        name, head = parsed.entry.name, parsed.entry.head
        key = public_key_of(name.author)
        if not self._keeps(key, plot_of(name)):
            return
        place = key, plot_of(name)
        first = place not in batch.looked_at
        batch.looked_at.add(place)
        if beyond(head, self._ends.of(*place)):
            return
        mine = self._feeds.head(*place)
        if mine is not None and (mine in (FORKED, head) or head.epoch < mine.epoch):
            return
        if not first and not _follows(head, mine):
            return  # one out-of-order entry can prove a fork; more prove nothing
        entry = self.checked(parsed)
        if key == self.own and not self._takes_back(entry, mine):
            return
        verdict = await self._admit(entry, batch)
        if verdict.outcome in (EntryOutcome.NEWS, EntryOutcome.FORK, EntryOutcome.REFUSED):
            batch.count(key, len(sealed))  # an author is not charged for old entries

    def _takes_back(self, entry: Entry, mine: Head | None) -> bool:
        """Return whether to admit an entry of this node's own feeds that a peer sent.

        An entry that is no newer than the head may prove a fork. The writer decides about newer
        ones.
        """
        return (mine is not None and entry.head[:2] <= mine[:2]) or self._own_entries.takes(entry)

    async def _take_proof(self, one: bytes, other: bytes, batch: _Batch) -> None:
        name = parse_entry(one).entry.name
        key = public_key_of(name.author)
        if not self._keeps(key, plot_of(name)):
            return
        feed = self.feed(key, plot_of(name))
        if (feed is not None and feed.forked) or self._ends.of(key, plot_of(name)) is not None:
            return
        feed = feed or Feed(name)
        self._note(feed, feed.fork(open_proof(one, other)), batch)
        batch.count(key, len(one) + len(other))

    def _keeps(self, key: bytes, plot: Plot) -> bool:
        return key in self.authors and self.keeps(key, plot)

    async def _admit(self, entry: Entry, batch: _Batch) -> EntryVerdict:
        name, key = entry.name, public_key_of(entry.name.author)
        end = self._ends.of(key, plot_of(name))
        feed = self.feed(key, plot_of(name)) or Feed(name, end=end)
        verdict = feed.admit(entry)
        if verdict.outcome is EntryOutcome.LOAD:
            await self._commit(batch)
            batch.count(key, feed.size)  # the author pays for reading its feed again
            await self.load(feed)
            verdict = feed.admit(entry) if feed.document is not None else verdict
        if verdict.outcome is EntryOutcome.CHECK:
            await self._commit(batch)
            stored = await self.archive.entries(name, entry.epoch, entry.seq, 0)
            there = read_stored(stored[0]) if stored else None
            verdict = self._compared(feed, there, entry) if there is not None else verdict
        if verdict.code == OTHER_BRANCH:
            await self._put_back(feed, None)
        self._note(feed, verdict, batch, entry)
        return verdict

    def _compared(self, feed: Feed, stored: Entry, entry: Entry) -> EntryVerdict:
        return feed.compare(stored, entry)

    def _note(
        self, feed: Feed, verdict: EntryVerdict, batch: _Batch, entry: Entry | None = None
    ) -> None:
        """Add a new entry or fork to the batch. Does nothing with other outcomes."""
        if verdict.outcome not in (EntryOutcome.NEWS, EntryOutcome.FORK):
            return
        self._feeds.use(feed)
        batch.verdicts.append((feed, verdict))
        if verdict.outcome is EntryOutcome.NEWS and entry is not None:
            batch.entries.append(entry)
            batch.size += entry.size
        self._remember(feed)

    async def _commit(self, batch: _Batch) -> None:
        """Store the batch in the archive, then publish its changes to the digest and the
        watchers."""
        entries, verdicts = batch.entries, batch.verdicts
        batch.entries, batch.verdicts, batch.size = [], [], 0
        if entries:
            try:
                await self._put(entries)
            except StateError:
                for feed, _ in verdicts:  # they have entries in memory that are not in the archive
                    self._unlearn(feed)
                raise
        for feed, verdict in verdicts:
            if verdict.proof is not None:
                await self.archive.put_proof(feed.name, verdict.proof)
        for feed, verdict in verdicts:
            key, plot = public_key_of(feed.name.author), plot_of(feed.name)
            if feed.head is None or self._feeds.used(key, plot) is not feed:
                continue  # the author was dropped in the meantime
            await self._show(feed, verdict)
            if self._feeds.used(key, plot) is not feed:
                continue
            batch.taken.news[key, plot] = feed.head
            await self._heed(feed, verdict)
            await self._pause()

    async def _put(self, entries: Sequence[Entry]) -> None:
        """Store entries in the archive.

        If entries do not follow the archived ones of their feed, only that feed's author is
        dropped, and fetched from peers again. Raises BadOrder if one of this node's own feeds is
        affected, because its writer must begin a new epoch.
        """
        try:
            await self.archive.put(entries)
            return
        except BadOrder:
            if any(public_key_of(entry.name.author) == self.own for entry in entries):
                raise
        for name in dict.fromkeys(entry.name for entry in entries):
            try:
                await self.archive.put([entry for entry in entries if entry.name == name])
            except BadOrder:
                await self._lose(public_key_of(name.author))

    async def _show(self, feed: Feed, verdict: EntryVerdict) -> None:
        """Publish a feed's new state to the digest and the watchers.

        Thousands of facts take some 20 ms, so other tasks run in between.
        """
        key, plot = public_key_of(feed.name.author), plot_of(feed.name)
        self.digest.set(key, plot, feed.head)
        if feed.head is not None:
            self._feeds.keep(key, plot, feed.size, feed.memory)
        for watcher in self.watchers:
            for _ in watcher.steps(feed.name, verdict):
                await self._pause()
                if self.digest.head(key, plot) != feed.head:
                    return  # the author was dropped between two steps

    async def _put_back(self, feed: Feed, made: Feed | None) -> None:
        """Replace a feed with `made`, or with an empty feed if `made` is None.

        The feed is replaced in memory first, and then in the archive.
        """
        self._leave(public_key_of(feed.name.author), plot_of(feed.name))
        facts: Mapping[str, bytes] = {}
        if made is not None and made.document is not None:
            self._feeds.use(made)
            facts = made.document.facts()
            self._remember(made)
        made = made or Feed(feed.name)
        verdict = EntryVerdict(EntryOutcome.NEWS, changed=facts, fresh=True)
        await self._show(made, verdict)
        await self.archive.cut(made.name, made.head)
        await self._heed(made, verdict)

    async def _heed(self, feed: Feed, verdict: EntryVerdict) -> None:
        """Update the weight of a feed's author after a change, and the authors that it vouches
        for."""
        key = public_key_of(feed.name.author)
        if feed.name.kind == "member" and (verdict.fresh or VOUCHES in verdict.changed):
            value = verdict.changed.get(VOUCHES)
            await self._apply(self.authors.vouches(key, read_vouches(value)))
        await self._weigh(key)

    # Ends of revoked feeds.

    async def cut(self, ends: Mapping[bytes, Mapping[Plot, Head]]) -> None:
        """Set the ends of the feeds of revoked authors, in place of all earlier ends.

        Entries after an end are deleted. If a feed does not lead to its end, it is emptied and
        fetched again.
        """
        for key in self._ends.replace({key: ends[key] for key in ends if key != self.own}):
            if key in self.authors:
                self.newcomers[key] = None
            await self._end_feeds(key)
            await self._pause()

    async def _end_feeds(self, key: bytes) -> None:
        for plot in self._feeds.plots(key):
            end = self._ends.of(key, plot)
            feed = self._feeds.used(key, plot) if end is None else self.feed(key, plot)
            if feed is None:
                continue
            feed.end = end
            if feed.head is not None and beyond(feed.head, end):
                await self._go_back(feed)

    async def _go_back(self, feed: Feed) -> None:
        """Cut a feed back to its end, or empty it if its archived entries do not lead to the
        end."""
        head, end = feed.head, feed.end
        assert head is not None and end is not None
        made, seq, size = Feed(feed.name, end, 0, end), 0, 0
        try:
            while head.epoch == end.epoch and made.document is None:
                entries = await self._entries_to(made, seq)
                seq, size = seq + len(entries), size + sum(entry.size for entry in entries)
                if not entries:
                    break
                made.load(entries)
        except StateError:  # the entries do not lead to the end, or cannot be read now
            made.unload()
        whole = None if made.document is None else made
        if whole is not None:
            whole.weigh(size)
        await self._put_back(feed, whole)

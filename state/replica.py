"""All feeds that a node keeps: what comes in, what it changes, what others may be told of it.

A head is told to others, and stands in the digest, once its entries are in the archive. Nothing
here knows of links; the archive is all that it waits for. One caller at a time may take in.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ..transport.identity import PeerId, peer_id_of, public_key_of
from . import defaults
from .archive import Archive, Stored
from .authors import Authors, Change
from .digest import HASH_BYTES, Digest, Plot
from .documents import Documents
from .ends import Ends, leads_on
from .entry import FORKED, Entry, FeedName, Head, open_entry, open_proof, peek_entry
from .errors import BadEntry, BadOrder, StateError
from .feed import OTHER_BRANCH, Feed, Outcome, Verdict, beyond
from .feeds import Feeds, plot_of
from .gossip import Item, Pulled, Told, told
from .interest import Interest
from .kinds import all_parts
from .vouches import VOUCHES, read_vouches
from .wanted import Place

BLAMED: Final = frozenset(("too-large", "bad-envelope", "bad-signature", "bad-proof"))
"""Codes of entries that nobody honest hands on."""
Pause = Callable[[], Awaitable[None]]
More = Callable[[], Awaitable[Collection[bytes]]]
"""Who else is kept, once what is said by those before is known; asked until it is nobody."""
Admit = Callable[[Sequence[Entry]], Iterable[tuple[Entry, Verdict]]]
"""`Writer.stored`: takes own entries that are in the archive into their feeds."""


class Watcher(Protocol):
    """Who derives something from the feeds."""

    def changed(self, name: FeedName, verdict: Verdict) -> None:
        """Facts of a feed are other ones; where `verdict.fresh`, all that it does not name are
        gone, as they are where the feed has forked."""
        ...

    def dropped(self, author: PeerId) -> None:
        """An author is not kept any more."""
        ...


@dataclass(slots=True)
class Taken:
    """What came of entries that were offered."""

    news: dict[Place, Head] = field(default_factory=dict)
    seen: set[Place] = field(default_factory=set)  # of which there was anything
    bytes: dict[bytes, int] = field(default_factory=dict)  # that were looked at, by author
    blame: BadEntry | None = None  # who handed them on is to blame


@dataclass(slots=True)
class _Batch:
    """Taken in, but not in the archive yet."""

    entries: list[Entry] = field(default_factory=list)
    verdicts: list[tuple[Feed, Verdict]] = field(default_factory=list)
    size: int = 0
    taken: Taken = field(default_factory=Taken)

    def count(self, key: bytes, size: int) -> None:
        """So many bytes by this author are looked at."""
        sizes = self.taken.bytes
        sizes[key] = sizes.get(key, 0) + size + defaults.ENTRY_COST


class Replica:
    """The feeds of one node. `own` is this node."""

    def __init__(
        self,
        own: PeerId,
        archive: Archive,
        *,
        authors: Authors | None = None,
        interest: Interest | None = None,
        documents: int = defaults.DOCUMENTS,
        documents_bytes: int = defaults.DOCUMENTS_BYTES,
        opened: Callable[[bytes], Entry] = open_entry,
    ) -> None:
        """`interest`: what is kept of others, else all; of `documents` that many at most are in
        memory; `opened` checks an entry's signature."""
        self.own = public_key_of(own)
        self.authors = authors or Authors(self.own)
        self.interest = interest or Interest()
        self.digest = Digest()
        self.watchers: list[Watcher] = []
        self.takes_own: Callable[[Entry], bool] = lambda entry: False
        """Whether an entry of this node's own that a peer has is to be taken back."""
        self.wants_own = False
        """Whether such entries are to be asked for."""
        self.newcomers: dict[bytes, None] = {}
        """Authors that are kept since a while ago; nobody has been asked for their feeds yet."""
        self.archive = archive
        self._opened = opened
        self._ends = Ends()
        self._feeds = Feeds(self.digest, self._ends)
        self._lost: dict[bytes, None] = {}  # authors, until what they had is forgotten
        self._documents = Documents(documents, documents_bytes)

    async def restore(self, pause: Pause, more: More | None = None) -> None:
        """Begin with what the archive has. Those who are kept are to be known by then, or are
        vouched for by those who are, or `more` names them; others are dropped, and so is what is
        not kept of any. `pause` is called now and then."""
        own = peer_id_of(self.own)
        found: dict[PeerId, list[Stored]] = {}
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
                await pause()
        waiting = [self.own, *self.authors.keys()]
        while waiting:
            key = waiting.pop()
            if key not in self.authors:
                continue  # the weight of others has left it no room
            self.resume(key, found.pop(peer_id_of(key), ()))
            await self._end_feeds(key)
            value = (await self.facts(key, ("member", 0))).get(VOUCHES)
            change = self.authors.vouches(key, read_vouches(value))
            waiting += change.added
            await self._apply(change)
            await self._weigh(key)
            await pause()
            if not waiting and more is not None:
                waiting += await more()
        for plot in all_parts():
            self.digest.tree(plot).root()
            await pause()
        self.newcomers.clear()
        await self.archive.forget(unused)
        await self.archive.drop(list(found))

    def restart(self, archive: Archive) -> None:
        """Begin with nothing, where an archive failed while it was read."""
        for key in tuple(self._feeds.authors()):
            self._clear(key)
        self.newcomers.clear()
        self.archive = archive

    def resume(self, key: bytes, feeds: Iterable[Stored]) -> None:
        """Take up what the archive has of an author who is kept."""
        for name, head, size, _ in feeds:
            self.digest.set(key, plot_of(name), head)
            self._feeds.keep(key, plot_of(name), size)

    # What is known.

    def feed(self, key: bytes, plot: Plot) -> Feed | None:
        """The feed of an author, where there is something of it."""
        return self._feeds.get(key, plot)

    def head(self, key: bytes, plot: Plot) -> Head | None:
        """What others may be told."""
        return self.digest.head(key, plot)

    def keeps(self, key: bytes, plot: Plot) -> bool:
        """Whether feeds of this kind and part are kept of a kept author: its own always are."""
        return key == self.own or self.interest(plot)

    def lacks(self, head: Told) -> bool:
        """Whether somebody has something of a kept feed that is lacking here."""
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
        if head.key == self.own and not self.wants_own:
            return False  # its writer answers that, by another epoch
        return mine is None or head[3:5] >= mine[:2]

    def surpasses(self, head: Told) -> bool:
        """Whether this node can give something that is lacking where that is the head."""
        mine = self.head(head.key, head.plot)
        return mine is not None and not head.same(mine) and mine[:2] >= head[3:5]

    def told(self, places: Iterable[Place]) -> list[Told]:
        """The heads of these feeds, as others may be told."""
        return [told(key, plot, self.head(key, plot)) for key, plot in places]

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

    # Giving.

    async def give(self, wanted: Sequence[Told], limit: int = defaults.PULL_BYTES) -> Pulled:
        """What follows on these heads, at most so many bytes and a little more."""
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
        """From where the asker is; the entry of its own number as well where that is another one:
        with its own it is the proof of a fork."""
        if asked.epoch > mine.epoch or (asked.epoch == mine.epoch and asked.seq > mine.seq):
            return []
        first = 0
        if asked.epoch == mine.epoch:
            theirs = await self.archive.entries(name, mine.epoch, asked.seq, 0)
            if not theirs or theirs[0].hash[:HASH_BYTES] != asked.hash:
                return [(entry.sealed,) for entry in theirs]
            first = asked.seq + 1
        entries = await self.archive.entries(name, mine.epoch, first, limit)
        return [(entry.sealed,) for entry in entries if entry.seq <= mine.seq]

    # Taking in.

    async def own_feed(self, name: FeedName) -> Feed:
        """A feed of this node's own, for its writer: its document stays in memory."""
        feed = self.feed(self.own, plot_of(name)) or Feed(name)
        self._feeds.hold(feed)
        await self._load(feed)
        feed = self._feeds.used(self.own, plot_of(name)) or feed  # it may have been lost meanwhile
        self._feeds.hold(feed)
        return feed

    async def write(self, entries: Sequence[Entry], admit: Admit | None = None) -> Taken:
        """Entries of this node's own feeds, in their order. They are in the archive when it
        returns; then `admit` takes them into their feeds. Raises BadEntry where one does not fit,
        without `admit`, and what the archive raises."""
        batch = _Batch()
        if admit is not None:
            await self.archive.put(entries)
            for entry, verdict in admit(entries):
                feed = await self.own_feed(entry.name)
                batch.verdicts.append((feed, verdict))
        else:
            for entry in entries:
                verdict = await self._admit(entry, batch)
                if verdict.outcome is not Outcome.NEWS:
                    code = verdict.code or verdict.outcome.value
                    raise BadEntry(code, "an own entry does not fit")
        await self._commit(batch)
        return batch.taken

    async def take(self, items: Sequence[Item], pause: Pause) -> Taken:
        """What a peer handed on, in its order; what nobody keeps here is passed over. `pause` is
        called between two of them: a signature takes 0.1 ms."""
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
            await pause()
        await self._commit(batch)
        return batch.taken

    async def _take_entry(self, sealed: bytes, batch: _Batch) -> None:
        """Cheap checks come first, the signature last."""
        name, head = peek_entry(sealed)
        key = public_key_of(name.author)
        if not self._keeps(key, plot_of(name)):
            return
        batch.taken.seen.add((key, plot_of(name)))
        if beyond(head, self._ends.of(key, plot_of(name))):
            return
        mine = self._feeds.head(key, plot_of(name))
        if mine is not None and (mine in (FORKED, head) or head.epoch < mine.epoch):
            return
        batch.count(key, len(sealed))
        entry = self._opened(sealed)
        if key != self.own or self._takes_back(entry, mine):
            await self._admit(entry, batch)

    def _takes_back(self, entry: Entry, mine: Head | None) -> bool:
        """What is as old as ours may prove a fork; what is later is the writer's to decide."""
        return (mine is not None and entry.head[:2] <= mine[:2]) or self.takes_own(entry)

    async def _take_proof(self, one: bytes, other: bytes, batch: _Batch) -> None:
        name, _ = peek_entry(one)
        key = public_key_of(name.author)
        if not self._keeps(key, plot_of(name)):
            return
        batch.taken.seen.add((key, plot_of(name)))
        feed = self.feed(key, plot_of(name))
        if (feed is not None and feed.forked) or self._ends.of(key, plot_of(name)) is not None:
            return
        batch.count(key, len(one) + len(other))
        feed = feed or Feed(name)
        self._note(feed, feed.fork(open_proof(one, other)), batch)

    def _keeps(self, key: bytes, plot: Plot) -> bool:
        return key in self.authors and self.keeps(key, plot)

    async def _admit(self, entry: Entry, batch: _Batch) -> Verdict:
        name, key = entry.name, public_key_of(entry.name.author)
        end = self._ends.of(key, plot_of(name))
        feed = self.feed(key, plot_of(name)) or Feed(name, end=end)
        verdict = feed.admit(entry)
        if verdict.outcome is Outcome.LOAD:
            await self._commit(batch)
            await self._load(feed)
            verdict = feed.admit(entry) if feed.document is not None else verdict
        if verdict.outcome is Outcome.CHECK:
            await self._commit(batch)
            stored = await self.archive.entries(name, entry.epoch, entry.seq, 0)
            verdict = self._compared(feed, stored[0], entry) if stored else verdict
        if verdict.code == OTHER_BRANCH:
            await self._put_back(feed, None)
        self._note(feed, verdict, batch, entry)
        return verdict

    def _compared(self, feed: Feed, stored: Entry, entry: Entry) -> Verdict:
        return feed.compare(stored, entry)

    def _note(
        self, feed: Feed, verdict: Verdict, batch: _Batch, entry: Entry | None = None
    ) -> None:
        """Keep what is new until it is committed."""
        if verdict.outcome not in (Outcome.NEWS, Outcome.FORK):
            return
        self._feeds.use(feed)
        batch.verdicts.append((feed, verdict))
        if verdict.outcome is Outcome.NEWS and entry is not None:
            batch.entries.append(entry)
            batch.size += entry.size
        self._remember(feed)

    async def _commit(self, batch: _Batch) -> None:
        """Into the archive, then to whoever wants to know."""
        entries, verdicts = batch.entries, batch.verdicts
        batch.entries, batch.verdicts, batch.size = [], [], 0
        if entries:
            try:
                await self._put(entries)
            except StateError:
                for feed, _ in verdicts:  # what is here is more than what is kept: again from there
                    self._unlearn(feed)
                raise
        for feed, verdict in verdicts:
            if verdict.proof is not None:
                await self.archive.put_proof(feed.name, verdict.proof)
        keys: dict[bytes, None] = {}
        for feed, verdict in verdicts:
            key, plot = public_key_of(feed.name.author), plot_of(feed.name)
            if feed.head is None or self._feeds.used(key, plot) is not feed:
                continue  # its author was dropped meanwhile
            keys[key] = None
            self.digest.set(key, plot, feed.head)
            self._feeds.keep(key, plot, feed.size, feed.memory)
            batch.taken.news[key, plot] = feed.head
            for watcher in self.watchers:
                watcher.changed(feed.name, verdict)
            if feed.name.kind == "member" and (verdict.fresh or VOUCHES in verdict.changed):
                value = verdict.changed.get(VOUCHES)
                await self._apply(self.authors.vouches(key, read_vouches(value)))
        for key in keys:
            await self._weigh(key)

    async def _put(self, entries: Sequence[Entry]) -> None:
        """A feed of which the archive has something else keeps out no other: what others have of
        its author counts. An own one is its writer's to begin anew: raises BadOrder."""
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

    # Whose feeds.

    async def linked(self, peer: PeerId) -> None:
        """There is a link to this peer: its feeds are kept."""
        await self._apply(self.authors.linked(public_key_of(peer)))

    async def unlinked(self, peer: PeerId) -> None:
        await self._apply(self.authors.unlinked(public_key_of(peer)))

    async def grouped(self, peers: Iterable[PeerId]) -> None:
        """Who is in this node's group from now on."""
        await self._apply(self.authors.grouped(map(public_key_of, peers)))

    async def cut(self, ends: Mapping[bytes, Mapping[Plot, Head]]) -> None:
        """From now on the feeds of these authors end there, and nobody else's: what came later is
        let go of, and what led there is fetched where something else is here."""
        for key in self._ends.replace({key: ends[key] for key in ends if key != self.own}):
            if key in self.authors:
                self.newcomers[key] = None
            await self._end_feeds(key)

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
        """Let it be what it was at its end; where that is not in the archive, nothing."""
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
        except StateError:  # it does not lead there, or cannot be read now
            made.unload()
        whole = None if made.document is None else made
        if whole is not None:
            whole.weigh(size)
        await self._put_back(feed, whole)

    async def _put_back(self, feed: Feed, made: Feed | None) -> None:
        """This one in place of a feed, first for everybody, then in the archive."""
        key, plot = public_key_of(feed.name.author), plot_of(feed.name)
        self._documents.let_go(feed)
        self._feeds.drop(key, plot)
        facts: Mapping[str, bytes] = {}
        if made is not None and made.document is not None:
            self._feeds.use(made)
            self._feeds.keep(key, plot, made.size, made.memory)
            facts = made.document.facts()
            self._remember(made)
        head = None if made is None else made.head
        self.digest.set(key, plot, head)
        for watcher in self.watchers:
            watcher.changed(feed.name, Verdict(Outcome.NEWS, changed=facts, fresh=True))
        await self.archive.cut(feed.name, head)
        if feed.name.kind == "member":
            value = facts.get(VOUCHES)
            await self._apply(self.authors.vouches(key, read_vouches(value)))
        await self._weigh(key)

    async def refill(self) -> None:
        """Where there is room again, keep those who found none before."""
        await self._apply(self.authors.refill())

    async def _apply(self, change: Change) -> None:
        self.newcomers |= dict.fromkeys(change.added)
        for start in range(0, len(change.dropped), defaults.DROPPED_AT_ONCE):
            some = change.dropped[start : start + defaults.DROPPED_AT_ONCE]
            for key in some:
                self.newcomers.pop(key, None)
                self._clear(key)
            await self.archive.drop([peer_id_of(key) for key in some])  # others run meanwhile

    def _leave(self, key: bytes, plot: Plot) -> None:
        feed = self._feeds.used(key, plot)
        if feed is not None:
            self._documents.let_go(feed)
        self._feeds.drop(key, plot)
        self.digest.set(key, plot, None)

    def _clear(self, key: bytes) -> None:
        self._lost.pop(key, None)
        for plot in self._feeds.plots(key):
            self._leave(key, plot)
        for watcher in self.watchers:
            watcher.dropped(peer_id_of(key))

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
            await self.archive.forget(names)

    # Documents.

    async def _load(self, feed: Feed) -> None:
        """Have its document in memory. Where the archive is damaged, all that it has of the author
        is dropped: it will be fetched again."""
        seq = 0
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

    def _unlearn(self, feed: Feed) -> None:
        """It is more here than in the archive. An own one stays as it is, for its writer has it:
        nobody is told of it, and what is written next begins an epoch."""
        key, plot = public_key_of(feed.name.author), plot_of(feed.name)
        if key != self.own and self._feeds.used(key, plot) is feed:
            self._leave(key, plot)

    def lost(self, authors: Iterable[PeerId] | None) -> None:
        """The archive has lost feeds of these authors, or all that it had (None): `forget_lost`
        is to be called. Own feeds are the writer's to begin anew."""
        keys = self._feeds.authors() if authors is None else map(public_key_of, authors)
        self._lost |= {key: None for key in keys if key != self.own}

    async def forget_lost(self, pause: Pause) -> None:
        """Let what others have of lost feeds be fetched again. `pause` is called between two
        authors: ten thousand take a tenth of a second."""
        while self._lost:
            key, _ = self._lost.popitem()
            self._clear(key)  # had it been cleared meanwhile, it would not be lost any more
            self.newcomers[key] = None
            await pause()

    async def _lose(self, key: bytes) -> None:
        self._clear(key)
        self.newcomers[key] = None
        await self.archive.drop([peer_id_of(key)])

    def _remember(self, feed: Feed) -> None:
        """Its document was used now. Those of own feeds stay: their writer has them."""
        if public_key_of(feed.name.author) != self.own:
            self._documents.use(feed)

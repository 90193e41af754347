"""How a replica takes in entries, what they change, and what it tells peers."""

from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any

import pytest

from shoal.state import defaults
from shoal.state.errors import BadEntry, BadOrder, StateError
from shoal.state.feeds.archive import MemoryArchive
from shoal.state.feeds.entry import FORKED, Entry, FeedName, UncheckedEntry
from shoal.state.feeds.feed import EntryOutcome, EntryVerdict, Feed
from shoal.state.feeds.kinds import all_parts
from shoal.state.replication.authors import Authors, AuthorsChange
from shoal.state.replication.gossip import Item, told
from shoal.state.replication.interest import Interest
from shoal.state.replication.replica import Replica, Taken
from shoal.state.replication.replicafeeds import Watcher
from shoal.state.replication.vouches import VOUCHES, write_vouches
from shoal.state.views.views import Views
from shoal.transport.identity import PeerId, peer_id_of
from tests.state.fake_feeds import MEMBER, TakesAll, Writer, at_once, facts_of

A, B, C = (Writer(number) for number in (11, 12, 13))


class Seen(Watcher):
    def __init__(self) -> None:
        self.changes: list[tuple[FeedName, dict[str, Any], bool]] = []
        self.gone: list[PeerId] = []

    def changed(self, name: FeedName, verdict: EntryVerdict) -> None:
        facts = {key: value for key, value in verdict.changed.items() if value is not None}
        self.changes.append((name, facts_of(facts), verdict.fresh))

    def dropped(self, author: PeerId) -> None:
        self.gone.append(author)


def replica(**more: Any) -> Replica:
    return Replica(Writer(1).peer, MemoryArchive(), **more)


def keeping(*writers: Writer, **more: Any) -> Replica:
    made = replica(**more)
    for writer in writers:
        at_once(made.linked(writer.peer))
    return made


class Pauses:
    """Counts the pauses for other tasks, and runs `then` in them."""

    def __init__(self) -> None:
        self.count = 0
        self.then: Callable[[], None] = lambda: None

    async def __call__(self) -> None:
        self.count += 1
        self.then()


def take(it: Replica, *entries: Entry | tuple[Entry, Entry]) -> Taken:
    items: list[Item] = [
        (each.sealed,) if isinstance(each, Entry) else (each[0].sealed, each[1].sealed)
        for each in entries
    ]
    return give(it, items)


def give(it: Replica, items: Sequence[Item]) -> Taken:
    taken = at_once(it.take(items))
    assert isinstance(taken, Taken)
    return taken


def fresh(number: int) -> Writer:
    return Writer(number)


def test_entries_become_facts_and_heads() -> None:
    writer = fresh(11)
    it, seen = keeping(writer), Seen()
    it.watchers.append(seen)
    one, two = writer.write(a={"v": 1}), writer.write(b={"v": 2})
    taken = take(it, one, two, one)
    assert taken.news == {(writer.key, MEMBER): two.head}
    assert it.head(writer.key, MEMBER) == two.head
    assert facts_of(at_once(it.facts(writer.key, MEMBER))) == {"a": {"v": 1}, "b": {"v": 2}}
    assert [(facts, is_fresh) for _, facts, is_fresh in seen.changes] == [
        ({"a": {"v": 1}}, True),
        ({"b": {"v": 2}}, False),
    ]


def test_entries_of_authors_that_are_not_kept_are_skipped_unread() -> None:
    it, stranger = replica(), fresh(12)
    checked: list[UncheckedEntry] = []
    it.checked = lambda parsed: checked.append(parsed)  # type: ignore[assignment,return-value]
    taken = take(it, stranger.write(a={"v": 1}))
    assert (taken.news, taken.bytes, checked) == ({}, {}, [])


def test_interest_bounds_what_is_kept() -> None:
    writer = fresh(11)
    it = keeping(writer, interest=Interest([]))
    jobs = writer.write(("jobs", 0), a={"v": 1})
    assert take(it, jobs).news == {}
    assert not it.lacks(told(writer.key, ("jobs", 0), jobs.head))
    assert take(it, writer.write(a={"v": 1})).news


def test_feeds_that_are_no_longer_kept_are_dropped_except_own_ones() -> None:
    writer, seen = fresh(12), Seen()
    it = keeping(writer, interest=Interest([("jobs", 0)]))
    it.watchers.append(seen)
    take(it, writer.write(("jobs", 0), a={"v": 1}), writer.write(a={"v": 1}))
    weight = it.authors.total
    take(it, writer.write(("jobs", 0), b={"v": bytes(12_000)}))
    take(it, writer.write(("jobs", 0), c={"v": bytes(12_000)}))
    take(it, writer.write(("jobs", 0), d={"v": bytes(12_000)}))
    assert it.authors.total > weight
    it.interest.need([], 0.0)
    at_once(it.forget(it.interest.expire(inf)))
    assert seen.changes[-1] == (FeedName(writer.peer, "jobs", 0), {}, True)
    assert it.head(writer.key, ("jobs", 0)) is None and it.head(writer.key, MEMBER)
    assert at_once(it.facts(writer.key, ("jobs", 0))) == {} and it.authors.total == weight
    assert {stored.name.kind for stored in at_once(it.archive.load())} == {"member"}


def test_stored_feeds_that_are_no_longer_kept_are_not_restored() -> None:
    writer, own = fresh(13), fresh(1)
    it = keeping(writer)
    take(it, writer.write(("usage", 0), a={"v": 1}), writer.write(a={"v": 1}))
    at_once(it.write([own.write(("usage", 0), b={"v": 1})]))
    again = Replica(own.peer, it.archive, interest=Interest([]))
    at_once(again.linked(writer.peer))
    at_once(again.restore())
    assert again.head(writer.key, ("usage", 0)) is None and again.head(writer.key, MEMBER)
    assert again.head(own.key, ("usage", 0))
    assert len(at_once(it.archive.load())) == 2


def test_a_wrong_signature_blames_the_sender() -> None:
    writer = fresh(11)
    it, sealed = keeping(writer), writer.write(a={"v": 1}).sealed
    forged = sealed[:60] + bytes((sealed[60] ^ 1,)) + sealed[61:]
    taken = give(it, [(forged,), (sealed,)])
    assert taken.blame is not None
    assert taken.blame.code == "bad-signature"
    assert taken.news == {}
    assert take(it, writer.write(b={"v": 1})).blame is None


def test_invalid_entries_of_an_author_are_refused_without_blame() -> None:
    writer = fresh(11)
    it = keeping(writer)
    first = writer.write(a={"v": 1})
    bent = fresh(11)
    bent.write(a={"v": 1})
    other = bent.write(b={"v": 2})
    late = bent.write(b={"v": 3})
    assert take(it, first, late).blame is None  # a gap
    assert it.head(writer.key, MEMBER) == first.head
    assert take(it, other, late).news == {(writer.key, MEMBER): late.head}


def forked() -> tuple[Writer, Entry, Entry, Entry]:
    """Return a writer, its first entry, and two entries that both follow it."""
    one, other = fresh(11), fresh(11)
    first = one.write(a={"v": 1})
    other.write(a={"v": 1})
    return one, first, one.write(b={"v": 1}), other.write(b={"v": 2})


def test_two_entries_of_one_number_empty_the_feed() -> None:
    writer, first, left, right = forked()
    it, seen = keeping(writer), Seen()
    take(it, first, left)
    it.watchers.append(seen)
    taken = take(it, right)
    assert taken.news == {(writer.key, MEMBER): FORKED}
    assert at_once(it.facts(writer.key, MEMBER)) == {}
    assert seen.changes[-1][1:] == ({}, True)
    assert take(it, first, left, writer.write(c={"v": 3})).news == {}
    (item,) = at_once(it.give([told(writer.key, MEMBER, first.head)])).items
    assert len(item) == 2
    elsewhere = keeping(writer)
    assert give(elsewhere, [item]).news == {(writer.key, MEMBER): FORKED}
    assert elsewhere.digest.top() == it.digest.top()


def test_a_forked_feed_weighs_its_proof_also_after_a_start() -> None:
    one, other, plot = fresh(11), fresh(11), ("jobs", 0)
    first = one.write(plot, **{f"a{number}": {"v": "x" * 3_000} for number in range(10)})
    rival = other.write(plot, **{f"a{number}": {"v": "y" * 3_000} for number in range(10)})
    it = keeping(one)
    take(it, first)
    take(it, rival)
    assert it.head(one.key, plot) == FORKED
    assert it.authors.total >= first.size + rival.size
    again = Replica(Writer(1).peer, it.archive)
    at_once(again.linked(one.peer))
    at_once(again.restore())
    assert again.authors.total == it.authors.total


def test_digests_are_equal_whichever_entries_prove_a_fork() -> None:
    writer, first, left, right = forked()
    more = writer.write(d={"v": 9})
    one, two = keeping(writer), keeping(writer)
    take(one, first, left, more)
    take(one, right)
    take(two, first, right)
    take(two, left)
    assert one.digest.top() == two.digest.top()


def test_without_the_comparison_replicas_stay_different(monkeypatch: pytest.MonkeyPatch) -> None:
    def believed(self: Replica, feed: Feed, stored: Entry, entry: Entry) -> EntryVerdict:
        return EntryVerdict(EntryOutcome.KNOWN)

    monkeypatch.setattr(Replica, "_compared", believed)
    writer, first, left, right = forked()
    one, two = keeping(writer), keeping(writer)
    take(one, first, left)
    take(one, right)
    take(two, first, right)
    take(two, left)
    assert one.digest.top() != two.digest.top()


def test_two_entries_that_prove_nothing_blame_the_sender() -> None:
    writer, first, left, _ = forked()
    taken = take(keeping(writer), (first, left))
    assert taken.blame is not None
    assert taken.blame.code == "bad-proof"


def test_missing_entries_are_recognised() -> None:
    writer = fresh(11)
    it = keeping(writer)
    one, two = writer.write(a={"v": 1}), writer.write(a={"v": 2})
    rival = fresh(11).write(z={"v": 9})
    take(it, one)
    assert it.lacks(told(writer.key, MEMBER, two.head))
    assert it.lacks(told(writer.key, MEMBER, rival.head))  # the same number: the proof of a fork
    assert it.lacks(told(writer.key, MEMBER, FORKED))
    assert not it.lacks(told(writer.key, MEMBER, one.head))
    assert not it.lacks(told(writer.key, MEMBER, None))
    assert not it.lacks(told(fresh(13).key, MEMBER, two.head))
    assert not it.lacks(told(writer.key, MEMBER, FORKED)._replace(hash=bytes(16)))


def test_entries_are_given_from_the_askers_head_on() -> None:
    writer = fresh(11)
    it = keeping(writer)
    entries = [writer.write(a={"v": number}) for number in range(6)]
    take(it, *entries)
    key = writer.key

    def given(head: Any, **more: int) -> list[Item]:
        return list(at_once(it.give([told(key, MEMBER, head)], **more)).items)

    assert given(None) == [(entry.sealed,) for entry in entries]
    assert given(entries[3].head) == [(entry.sealed,) for entry in entries[4:]]
    assert given(entries[5].head) == []
    rival = fresh(11)
    rival.write(a={"v": 0})
    other = rival.write(a={"v": "other"})
    assert given(other.head) == [(entries[1].sealed,)]  # the proof, together with its own
    assert given(entries[0].head, limit=1) == [(entries[1].sealed,)]
    assert given(other.head._replace(epoch=9)) == []
    assert given(None, limit=1) == [(entries[0].sealed,)]
    assert at_once(it.give([told(key, MEMBER, None)], limit=1)).more


def test_entries_are_given_as_they_are_stored() -> None:
    """A node does not parse what it only passes on."""

    class Unread(MemoryArchive):
        async def entries(
            self, name: FeedName, epoch: int, from_seq: int, limit: int
        ) -> Sequence[bytes]:
            return [b"not parsed"] * len(await super().entries(name, epoch, from_seq, limit))

    writer, archive = fresh(11), Unread()
    it = Replica(Writer(1).peer, archive)
    at_once(it.linked(writer.peer))
    take(it, writer.write(a={"v": 1}), writer.write(a={"v": 2}))
    given = at_once(it.give([told(writer.key, MEMBER, None)])).items
    assert given == [(b"not parsed",)] * 2


def test_vouches_add_authors_and_their_withdrawal_drops_them() -> None:
    voucher, friend = fresh(11), fresh(12)
    it, seen = keeping(voucher), Seen()
    it.watchers.append(seen)
    take(it, voucher.write(MEMBER, **{VOUCHES: write_vouches([friend.key])}))
    assert friend.key in it.authors
    assert friend.key in it.newcomers
    entry = friend.write(a={"v": 1})
    assert take(it, entry).news
    take(it, voucher.write(MEMBER, **{VOUCHES: write_vouches([])}))
    assert seen.gone == [friend.peer]
    assert it.head(friend.key, MEMBER) is None
    assert it.feed(friend.key, MEMBER) is None
    assert at_once(it.archive.entries(entry.name, 1, 0, 10**6)) == []


def test_a_budget_bounds_the_archive() -> None:
    writers = [fresh(20 + number) for number in range(8)]
    voucher = fresh(11)
    authors = Authors(Writer(1).key, budget=6 * defaults.AUTHOR_LEAST)
    it = keeping(voucher, authors=authors)
    take(it, voucher.write(MEMBER, **{VOUCHES: write_vouches([each.key for each in writers])}))
    for each in writers:
        take(it, each.write(a={"v": 1}))
    assert it.authors.total <= 6 * defaults.AUTHOR_LEAST
    assert isinstance(it.archive, MemoryArchive)
    assert len(it.archive.sizes()) == len(it.authors) - 1  # all but this node


def test_documents_beyond_the_limit_are_rebuilt() -> None:
    writers = [fresh(20 + number) for number in range(6)]
    it = keeping(*writers, documents=2)
    for turn in range(3):
        for each in writers:
            assert take(it, each.write(MEMBER, **{f"k{turn}": {"v": turn}})).news
    held = [feed for each in writers if (feed := it.feed(each.key, MEMBER)) and feed.document]
    assert len(held) == 2
    assert len(at_once(it.facts(writers[0].key, MEMBER))) == 3


def test_a_restart_restores_stored_feeds() -> None:
    me, friend, far = Writer(1), fresh(12), fresh(13)
    it = replica()
    at_once(it.write([me.write(MEMBER, **{VOUCHES: write_vouches([friend.key])})]))
    take(it, friend.write(MEMBER, **{VOUCHES: write_vouches([far.key])}))
    assert take(it, far.write(a={"v": 1})).news
    stranger = fresh(14).write(a={"v": 1})
    at_once(it.archive.put([stranger]))
    again = Replica(me.peer, it.archive)
    at_once(again.restore())
    assert again.digest.top() == it.digest.top()
    assert set(again.authors.keys()) == set(it.authors.keys())
    assert again.authors.total == it.authors.total
    assert at_once(it.archive.entries(stranger.name, 1, 0, 10**6)) == []
    assert take(again, far.write(b={"v": 2})).news


def test_a_damaged_feed_is_dropped_to_be_fetched_again() -> None:
    writer = fresh(11)
    it = keeping(writer, documents=1)
    entries = [writer.write(MEMBER, **{f"k{number}": {"v": number}}) for number in range(3)]
    take(it, *entries)
    other = fresh(12)
    at_once(it.linked(other.peer))
    take(it, other.write(a={"v": 1}))  # so that the first document is unloaded
    assert isinstance(it.archive, MemoryArchive)
    it.archive._entries[entries[0].name].pop(1)
    it.newcomers.clear()
    assert take(it, writer.write(more={"v": 1})).news == {}
    assert it.head(writer.key, MEMBER) is None
    assert writer.key in it.newcomers
    assert take(it, *entries).news


def test_own_entries_come_from_the_writer_only() -> None:
    me = Writer(1)
    taken = TakesAll()
    it = replica(own_entries=taken)
    first, second = me.write(a={"v": 1}), me.write(a={"v": 2})
    at_once(it.write([first]))
    assert take(it, second).news == {}
    assert not it.lacks(told(me.key, MEMBER, second.head))
    taken.begun = True
    assert it.lacks(told(me.key, MEMBER, second.head))
    assert take(it, second).news
    with pytest.raises(BadEntry):
        at_once(it.write([first]))


def test_a_fork_of_an_own_feed_counts() -> None:
    me, it = Writer(1), replica()
    at_once(it.write([me.write(a={"v": 1})]))
    assert take(it, Writer(1).write(a={"v": 2})).news == {(me.key, MEMBER): FORKED}


def test_a_writer_admits_stored_entries() -> None:
    me, it = Writer(1), replica()
    entry = me.write(a={"v": 1})
    feed = at_once(it.own_feed(entry.name))
    assert it.head(me.key, MEMBER) is None

    def admit(entries: Sequence[Entry]) -> list[tuple[Entry, EntryVerdict]]:
        assert at_once(it.archive.entries(entry.name, 1, 0, 1)) == [entry.sealed]
        return [(each, feed.admit(each)) for each in entries]

    assert at_once(it.write([entry], admit)).news == {(me.key, MEMBER): entry.head}


class _Drops(MemoryArchive):
    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[int] = []

    async def drop(self, authors: Collection[PeerId]) -> None:
        self.dropped.append(len(authors))
        await super().drop(authors)


def test_many_authors_are_dropped_in_steps() -> None:
    """Other tasks run in between, even if an author withdraws thousands of vouches at once."""
    archive = _Drops()
    pauses = Pauses()
    it = Replica(Writer(1).peer, archive, pause=pauses)
    count = 2 * defaults.DROPPED_AT_ONCE + 1
    change = AuthorsChange(dropped=tuple(number.to_bytes(32) for number in range(count)))
    at_once(it._apply(change))
    assert archive.dropped == [defaults.DROPPED_AT_ONCE] * 2 + [1]
    assert pauses.count == count


class _Refuses(MemoryArchive):
    """An archive that refuses reads from a certain number on."""

    refused_from: int | None = None

    async def entries(
        self, name: FeedName, epoch: int, from_seq: int, limit: int
    ) -> Sequence[bytes]:
        if self.refused_from is not None and from_seq >= self.refused_from:
            raise StateError("disk", "the disk refuses")
        return await super().entries(name, epoch, from_seq, limit)


class _Other(MemoryArchive):
    """An archive with other entries of an author, until that author is dropped."""

    def __init__(self, author: PeerId) -> None:
        super().__init__()
        self.other: set[PeerId] = {author}

    async def put(self, entries: Sequence[Entry]) -> None:
        if any(entry.name.author in self.other for entry in entries):
            raise BadOrder("does not follow the stored entries")
        await super().put(entries)

    async def drop(self, authors: Collection[PeerId]) -> None:
        self.other -= set(authors)
        await super().drop(authors)


def test_a_feed_that_differs_from_the_archive_blocks_no_other() -> None:
    it = Replica(Writer(1).peer, _Other(A.peer))
    one, two = Writer(11), Writer(12)
    for writer in (one, two):
        at_once(it.linked(writer.peer))
    entries = one.write(a={"v": 1}), two.write(a={"v": 1})
    take(it, *entries)
    assert it.head(two.key, MEMBER) == entries[1].head
    assert it.head(one.key, MEMBER) is None
    take(it, *entries)
    assert it.head(one.key, MEMBER) == entries[0].head, "the entries of peers count"


def crowd(it: Replica, count: int) -> None:
    """Let `count` linked authors each write as many small facts as one entry holds."""
    for number in range(count):
        writer = Writer(500 + number)
        at_once(it.linked(writer.peer))
        at_once(it.unlinked(writer.peer))
        said = {f"{number:x}-{n:060x}": {"attempt": 1} for n in range(2_000)}
        take(it, writer.write(("claims", 0), **said))


def test_many_small_facts_weigh_their_memory() -> None:
    """By their entries alone, all authors would fit."""
    it, budget = replica(), 4 * 2**20
    it.authors = Authors(it.own, budget=budget)
    crowd(it, 8)
    assert it.authors.total <= budget
    held = [*it.authors.keys()]
    feeds = (it.feed(key, plot) for key in held for plot in all_parts())
    kept = [feed for feed in feeds if feed is not None]
    assert sum(feed.memory for feed in kept) <= budget
    assert 1 <= len(kept) < 4 and 8 * kept[0].size < budget


def test_after_a_start_feeds_weigh_the_same_once_they_are_read() -> None:
    it = replica()
    crowd(it, 3)
    authors = [*it.authors.keys()]
    again = Replica(Writer(1).peer, it.archive)
    again.authors = Authors(again.own, budget=3 * 2**20)
    for key in authors:
        again.authors.linked(key)
        again.authors.unlinked(key)
    at_once(again.restore())
    for key in authors:
        at_once(again.facts(key, ("claims", 0)))
    assert again.authors.total <= 3 * 2**20
    assert len([key for key in authors if again.head(key, ("claims", 0))]) < 3


def test_restoring_feeds_lets_other_tasks_run() -> None:
    it = keeping(*(Writer(600 + number) for number in range(20)))
    for number in range(20):
        take(it, Writer(600 + number).write(a={"v": 1}))
    pauses = Pauses()
    again = Replica(Writer(1).peer, it.archive, pause=pauses)
    for key in it.authors.keys():  # noqa: SIM118
        at_once(again.linked(peer_id_of(key)))
    at_once(again.restore())
    assert pauses.count > 20 and again.digest.top() == it.digest.top()


def test_many_authors_of_an_evicted_voucher_are_removed_completely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defaults, "SETTLED_AT_ONCE", 4)
    pauses = Pauses()
    it = keeping(A, pause=pauses)
    others = [Writer(600 + number) for number in range(40)]
    take(it, A.write(MEMBER, **{VOUCHES: write_vouches([other.key for other in others])}))
    take(it, *(other.write(a={"v": 1}) for other in others))
    assert len(it.authors) == 2 + len(others)
    pauses.count = 0
    take(it, A.write(MEMBER, **{VOUCHES: write_vouches([])}))
    assert len(it.authors) == 2 and pauses.count > len(others)
    assert all(it.head(other.key, MEMBER) is None for other in others)


def test_taken_entries_are_shown_with_pauses() -> None:
    """Showing a snapshot of thousands of facts takes some 20 ms."""
    counts: list[int] = []
    writer = fresh(11)
    it = keeping(writer, pause=(pauses := Pauses()))

    class Watching(Seen):
        def changed(self, name: FeedName, verdict: EntryVerdict) -> None:
            counts.append(pauses.count)

    it.watchers.append(Watching())
    one = writer.write(MEMBER, a={"x": 1})
    writer.next_epoch()
    take(it, one, writer.write(MEMBER, a={"x": 2}))
    assert len(counts) == 2 and counts[0] < counts[1]


def test_an_author_dropped_while_it_is_shown_is_shown_no_further() -> None:
    writer, pauses = fresh(11), Pauses()
    it = keeping(writer, pause=pauses)
    views = Views()
    it.watchers.append(views)
    many = {f"m{number}": b"\x80" for number in range(4 * defaults.SHOWN_AT_ONCE)}
    entry = writer.write_raw(("models", 0), many)

    def meanwhile() -> None:
        if views.bad:
            pauses.then = lambda: None
            at_once(it._lose(writer.key))

    pauses.then = meanwhile
    taken = take(it, entry)
    assert views.bad == defaults.SHOWN_AT_ONCE and not taken.news
    assert it.head(writer.key, ("models", 0)) is None


def test_a_partly_read_document_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk that refuses in between leaves no partial state."""
    monkeypatch.setattr(defaults, "LOADED_BYTES", 1)
    archive, writer = _Refuses(), fresh(11)
    it = Replica(Writer(1).peer, archive, documents=1)
    at_once(it.linked(writer.peer))
    take(it, *(writer.write(a={"v": number}) for number in range(4)))
    feed = it.feed(writer.key, MEMBER)
    assert feed is not None
    feed.unload()
    archive.refused_from = 2
    with pytest.raises(StateError):
        at_once(it.facts(writer.key, MEMBER))
    archive.refused_from = None
    assert at_once(it.facts(writer.key, MEMBER)) and it.head(writer.key, MEMBER) is not None


def test_processing_many_authors_lets_other_tasks_run_after_each() -> None:
    pauses = Pauses()
    writers = [Writer(600 + number) for number in range(20)]
    it = keeping(*writers, pause=pauses)
    for writer in writers:
        take(it, writer.write(a={"v": 1}))
    pauses.count = 0
    at_once(it.forget([("jobs", 0)]))  # no author has such a feed
    assert pauses.count == 20
    at_once(it.cut({writer.key: {} for writer in writers}))
    assert pauses.count == 40
    at_once(it.cut({}))
    for writer in writers:
        writer.next_epoch()
        take(it, writer.write(a={"v": 1}))
    it.lost(None)
    pauses.count = 0
    at_once(it.forget_lost())
    assert pauses.count == 20


def test_feeds_that_the_archive_lost_are_dropped_author_by_author() -> None:
    """Other tasks run in between, and feeds that arrived again meanwhile stay."""
    pauses = Pauses()
    it = keeping(A, B, C, pause=pauses)
    seen = Seen()
    it.watchers.append(seen)
    take(it, A.write(MEMBER, a={"x": 1}), B.write(MEMBER, a={"x": 1}), C.write(MEMBER, a={"x": 1}))
    it.newcomers.clear()
    it.lost(None)
    assert seen.gone == [], "nothing yet: ten thousand take a tenth of a second"

    def meanwhile() -> None:
        assert len(seen.gone) == 1, "the last one noted went first"
        pauses.then = lambda: None
        at_once(it._lose(A.key))
        it.newcomers.pop(A.key)
        A.next_epoch()
        take(it, A.write(MEMBER, a={"x": 2}))

    pauses.then = meanwhile
    at_once(it.forget_lost())
    assert it.newcomers.keys() == {B.key, C.key}
    assert it.feed(A.key, MEMBER) is not None and it.feed(B.key, MEMBER) is None


def test_an_own_feed_is_not_dropped() -> None:
    it = keeping(A)
    own = Writer(1)
    at_once(it.write([own.write(MEMBER, a={"x": 1})]))
    take(it, A.write(MEMBER, a={"x": 1}))
    it.lost(None)
    at_once(it.forget_lost())
    assert it.feed(own.key, MEMBER) is not None and it.feed(A.key, MEMBER) is None
    A.next_epoch()
    take(it, A.write(MEMBER, a={"x": 2}))
    it.lost([A.peer, own.peer])
    at_once(it.forget_lost())
    assert it.feed(own.key, MEMBER) is not None and it.feed(A.key, MEMBER) is None

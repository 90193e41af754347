"""Changes in memory while the disk refuses are bounded, ordered and readable."""

from random import Random

import pytest

from shoal.state import defaults
from shoal.state.feeds.entry import Proof
from shoal.state.feeds.pending import PendingChanges
from shoal.state.feeds.store import DeleteFeeds, Drop, FeedCut, Put, Store, Work

from ..chains import chain, identity, name, sealed
from .test_store import Place


def test_pending_entries_follow_stored_ones() -> None:
    entries, held = chain(1, 5), PendingChanges(10**6)
    stored = sealed(entries[:2])
    assert held.after(stored, name(1), 1, 0, 10**6) == stored
    held.add(Put(entries[2:4]))
    held.add(Put(entries[4:]))
    assert held.after(stored, name(1), 1, 0, 10**6) == sealed(entries)
    assert held.after([], name(1), 1, 3, 10**6) == sealed(entries[3:])
    assert held.after([], name(1), 1, 3, 1) == sealed(entries[3:4])
    assert held.after([], name(1), 2, 3, 10**6) == []
    assert held.after([], name(2), 1, 3, 10**6) == []
    room = sum(entry.size for entry in entries[:3])
    assert held.after(stored, name(1), 1, 0, room) == sealed(entries[:3])


def test_changes_leave_in_order() -> None:
    entries, held = chain(1, 2), PendingChanges(10**6)
    proof = Proof.of(chain(2, 1)[0], chain(2, 1, salt=b"x")[0])
    works: list[Work] = [Put(entries), proof, Drop([identity(3).peer])]
    for work in works:
        assert held.add(work)
    assert held.proof(name(2)) == proof
    assert held.first(1) == works[:1]
    assert held.first(10**6) == works
    held.forget(1)
    assert held.first(10**6) == works[1:]
    assert held.after([], name(1), 1, 0, 10**6) == []
    held.forget(2)
    assert not held and held.proof(name(2)) is None


def test_memory_is_bounded() -> None:
    entries = chain(1, 20, size=1000)
    held = PendingChanges(limit=5000 + 5 * defaults.HELD_WORK)
    taken = [held.add(Put([entry])) for entry in entries]
    assert taken == [True] * 4 + [False] * 16
    held.forget(1)
    assert held.add(Put(entries[4:5]))
    few = PendingChanges(limit=10 * defaults.HELD_WORK)
    assert sum(few.add(Drop([identity(1).peer])) for _ in range(20)) == 10
    assert not PendingChanges(limit=5000).add(
        DeleteFeeds([name(number) for number in range(1, 100)])
    )


def test_removed_entries_are_not_read() -> None:
    """Fails if only new entries are looked up: removed stored entries would be read in their
    place."""
    old, new, held = chain(1, 4), chain(1, 3, salt=b"x"), PendingChanges(10**6)
    away: list[Work] = [DeleteFeeds([name(1)]), Drop([identity(1).peer])]
    for work in away:
        held.add(work)
        assert held.removes(name(1)) and not held.removes(name(2))
        assert held.after(sealed(old), name(1), 1, 0, 10**6) == []
        assert held.after(sealed(old), name(2), 1, 0, 10**6) == sealed(old)
        held.add(Put(new))
        assert held.after(sealed(old), name(1), 1, 0, 10**6) == sealed(new)
        assert held.after(sealed(old)[2:], name(1), 1, 2, 10**6) == sealed(new)[2:]
        held.forget(1)
        assert not held.removes(name(1))
        held.forget(1)
        assert held.after(sealed(old), name(1), 1, 0, 10**6) == sealed(old)
    for work in away:
        held.add(Proof.of(old[0], new[0]))
        held.add(work)
        assert held.proof(name(1)) is None and held.removes(name(1))


def test_a_cut_leaves_the_entries_up_to_it() -> None:
    stored, held = chain(1, 4), PendingChanges(10**6)
    more, other = chain(1, 3, after=stored), chain(1, 3, after=stored, salt=b"x")
    held.add(Put(more))
    held.add(FeedCut(name(1), more[1].head))
    held.add(Put(chain(1, 1, after=[*stored, *more[:2]], salt=b"y")))
    assert len(held.after(sealed(stored), name(1), 1, 0, 10**6)) == 7
    held.add(FeedCut(name(1), stored[1].head))
    assert held.after(sealed(stored), name(1), 1, 0, 10**6) == sealed(stored[:2])
    assert held.after(sealed(stored[2:]), name(1), 1, 2, 10**6) == []
    held.add(FeedCut(name(1), other[1].head))
    assert held.after(sealed(stored), name(1), 1, 0, 10**6) == sealed(stored[:2])
    held = PendingChanges(10**6)
    held.add(Put(more))
    held.add(FeedCut(name(1), other[1].head))
    assert held.after(sealed(stored), name(1), 1, 0, 10**6) == [], "it does not lead there"


LIMITS = (1, 350, 10**6)


@pytest.mark.parametrize("seed", range(20))
def test_reads_are_the_same_as_if_all_changes_were_stored(seed: int) -> None:
    """Holds for any changes, and for any number of them on the disk."""
    draw, held, taken = Random(seed), PendingChanges(10**6), 0
    with Place().opened() as disk, Place().opened() as whole:
        for _ in range(100):
            work = a_change(draw, whole)
            if whole.commit([work]) != [None]:
                continue
            assert held.add(work)
            taken += 1
            if draw.random() < 0.3:
                some = held.first(10**6)[: draw.randrange(1, 4)]
                disk.commit(some)
                held.forget(len(some))
            for feed in FEEDS:
                proof = held.proof(feed) or (None if held.removes(feed) else disk.proof(feed))
                assert proof == whole.proof(feed)
                epoch, seq, limit = draw.choice((1, 2)), draw.choice((0, 0, 2)), draw.choice(LIMITS)
                stored = disk.entries(feed, epoch, seq, limit)
                found = held.after(stored, feed, epoch, seq, limit)
                assert found == whole.entries(feed, epoch, seq, limit)
    assert taken > 20


FEEDS = (name(1), name(1, "jobs"), name(2))
BRANCHES = {
    (feed, epoch, salt): chain(number, 5, kind=feed.kind, epoch=epoch, salt=salt)
    for feed, number in zip(FEEDS, (1, 1, 2), strict=True)
    for epoch in (1, 2)
    for salt in (b"x", b"y")
}
HEADS = {entry.sealed: entry.head for branch in BRANCHES.values() for entry in branch}


def a_change(draw: Random, store: Store) -> Work:
    """Return a random change that this store may accept."""
    feed = draw.choice(FEEDS)
    there = [HEADS[each] for epoch in (1, 2) for each in store.entries(feed, epoch, 0, 10**6)]
    does = draw.randrange(10)
    if does == 0:
        return Drop([feed.author])
    if does == 1:
        return DeleteFeeds([feed])
    if does == 2 and there:
        return FeedCut(feed, draw.choice(there))
    epoch = draw.choice((1, 2))
    one, other = (BRANCHES[feed, epoch, salt] for salt in (b"x", b"y"))
    if does == 3 and store.proof(feed) is None:
        return Proof.of(one[0], other[0])
    first = len(there) if there and there[0].epoch == epoch else 0
    return Put(draw.choice((one, other))[first : first + draw.randrange(1, 3)])

"""Unused feeds take only a few bytes, and are restored when they are needed."""

import gc

import pytest

from shoal.state.feeds.digest import Digest
from shoal.state.feeds.entry import FeedName, Head
from shoal.state.feeds.feed import NOWHERE, Feed
from shoal.state.replication.ends import Ends
from shoal.state.replication.replicafeeds import Feeds
from tests.state.fake_feeds import MEMBER, Writer

A = Writer(2)
NAME = FeedName(A.peer, *MEMBER)
HEAD = Head(3, 4, b"h" * 32)
JOBS = ("jobs", 0)


def kept() -> tuple[Feeds, Digest, Ends]:
    """Return a table with one archived feed."""
    digest, ends = Digest(), Ends()
    feeds = Feeds(digest, ends)
    digest.set(A.key, MEMBER, HEAD)
    assert feeds.keep(A.key, MEMBER, 500, 900)
    return feeds, digest, ends


@pytest.mark.usefixtures("own_garbage")
def test_a_feed_is_one_object_while_it_is_in_use() -> None:
    feeds, _, _ = kept()
    assert feeds.used(A.key, MEMBER) is None
    feed = feeds.get(A.key, MEMBER)
    assert feed is not None and feed is feeds.get(A.key, MEMBER) is feeds.used(A.key, MEMBER)
    assert (feed.name, feed.head, feed.size, feed.memory) == (NAME, HEAD, 500, 900)
    del feed
    gc.collect()
    assert feeds.used(A.key, MEMBER) is None and feeds.head(A.key, MEMBER) == HEAD


@pytest.mark.usefixtures("own_garbage")
def test_an_unarchived_feed_exists_while_it_is_in_use() -> None:
    feeds, digest, _ = kept()
    later = Feed(NAME, Head(4, 0, b"l" * 32), 70)
    feeds.use(later)
    assert feeds.head(A.key, MEMBER) == later.head and digest.head(A.key, MEMBER) == HEAD
    del later
    gc.collect()
    assert feeds.head(A.key, MEMBER) == HEAD


def test_the_size_of_a_feed_counts_once() -> None:
    feeds, _, _ = kept()
    assert not feeds.keep(A.key, MEMBER, 500, 900), "no news"
    assert feeds.keep(A.key, JOBS, 1_000, 10) and feeds.weight(A.key) == 1_500
    assert feeds.keep(A.key, MEMBER, 500, 9_000) and feeds.weight(A.key) == 9_010
    assert feeds.plots(A.key) == [MEMBER, JOBS] and list(feeds.authors()) == [A.key]


def test_a_restored_feed_has_its_end() -> None:
    feeds, _, ends = kept()
    ends.replace({A.key: {}})
    feed = feeds.get(A.key, MEMBER)
    assert feed is not None and feed.end == NOWHERE


def test_a_dropped_feed_is_removed_completely() -> None:
    feeds, digest, _ = kept()
    held = Feed(FeedName(A.peer, *JOBS))
    feeds.hold(held)
    assert feeds.plots(A.key) == [MEMBER, JOBS]
    for plot in (MEMBER, JOBS):
        feeds.drop(A.key, plot)
        digest.set(A.key, plot, None)
    assert not feeds.plots(A.key) and not feeds.authors() and feeds.weight(A.key) == 0
    assert feeds.get(A.key, MEMBER) is None is feeds.used(A.key, JOBS)


@pytest.mark.usefixtures("own_garbage")
def test_own_feeds_stay_in_memory() -> None:
    feeds, _, _ = kept()
    feeds.hold(Feed(FeedName(A.peer, *JOBS)))
    gc.collect()
    assert feeds.used(A.key, JOBS) is not None

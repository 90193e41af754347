"""Limits on what one peer's replies can cost other tasks, an author's rate, or memory."""

from collections.abc import Sequence
from typing import Any

import pytest

from shoal.state import defaults
from shoal.state.feeds.entry import Entry, UncheckedEntry
from shoal.state.replication.exchange import FeedExchange
from shoal.state.replication.gossip import HAVE, PULL, Item, Pulled, Told, encode_heads
from shoal.state.replication.interest import Interest
from shoal.transport.identity import PeerId
from tests.state.fake_feeds import MEMBER, FakeNetwork, FakeNode, Writer, at_once, link


async def asked(one: FakeNode, two: FakeNode, items: Sequence[Item]) -> None:
    """Let `one` pull from `two`, which replies with these items."""

    async def answer(peer: PeerId, method: str, payload: bytes) -> bytes:
        if method == PULL:
            return Pulled(items).encode()
        return await FeedExchange.answer(two.exchange, peer, method, payload)

    two.exchange.answer = answer  # type: ignore[method-assign]
    for pull in one.exchange.next_pulls():
        await one.exchange.pull(pull)


async def pair(*writers: Writer) -> tuple[FakeNetwork, FakeNode, FakeNode]:
    net = FakeNetwork()
    one, two = FakeNode(net, 1), FakeNode(net, 2)
    await link(one, two)
    for node in (one, two):
        await node.replica.grouped([writer.peer for writer in writers])
    return net, one, two


def sealed(entries: Sequence[Entry]) -> list[Item]:
    return [(entry.sealed,) for entry in entries]


async def replayed() -> None:
    """Old entries of an author that are sent many times do not count against its rate."""
    author = Writer(9)
    _, one, two = await pair(author)
    entries = [author.write(a={"v": number}) for number in range(4)]
    await one.replica.take(sealed(entries[:3]))
    await two.replica.take(sealed(entries))
    looked: list[UncheckedEntry] = []
    checked = one.replica.checked
    one.replica.checked = lambda each: looked.append(each) or checked(each)  # type: ignore[func-returns-value]
    await two.exchange.compare(one.peer)
    await one.exchange.compare(two.peer)
    await asked(one, two, sealed([*entries[:2] * 500, entries[3], *entries[:2] * 500]))
    assert one.replica.head(author.key, MEMBER) == entries[3].head
    assert len(looked) == 2, "the first, which might have proved a fork, and the next"
    counted = one.exchange.wanted.free_at[author.key] * defaults.AUTHOR_RATE
    assert counted == len(entries[3].sealed) + defaults.ENTRY_COST


def test_forwarded_old_entries_do_not_count_against_their_author() -> None:
    at_once(replayed())


async def out_of_turn() -> None:
    """Entries with later numbers are not checked one by one either."""
    author = Writer(9)
    _, one, two = await pair(author)
    entries = [author.write(a={"v": number}) for number in range(20)]
    await two.replica.take(sealed(entries))
    await one.exchange.compare(two.peer)
    await asked(one, two, sealed(entries[10:] * 20))
    assert one.replica.head(author.key, MEMBER) is None
    assert author.key not in one.exchange.wanted.free_at


def test_entries_that_do_not_follow_do_not_count() -> None:
    at_once(out_of_turn())


async def unasked() -> None:
    """Items that were not asked for are skipped."""
    author, liar = Writer(9), Writer(10)
    _, one, two = await pair(author, liar)
    asked_for = author.write(a={"v": 1})
    await two.replica.take(sealed([asked_for]))
    await one.exchange.compare(two.peer)
    other = liar.write(a={"v": 1})
    await asked(one, two, sealed([other, asked_for]))
    assert one.replica.head(author.key, MEMBER) == asked_for.head
    assert one.replica.head(liar.key, MEMBER) is None and one.blamed == []


def test_unrequested_items_are_skipped() -> None:
    at_once(unasked())


async def interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that alternates between feeds loads each document once, and other tasks run in
    between."""
    authors = [Writer(number) for number in range(10, 14)]
    net = FakeNetwork()
    one, two = FakeNode(net, 1, documents=1), FakeNode(net, 2)
    await link(one, two)
    for node in (one, two):
        await node.replica.grouped([author.peer for author in authors])
    first = [author.write(a={"v": 1}) for author in authors]
    later = [[author.write(a={"v": number}) for author in authors] for number in range(2, 8)]
    await one.replica.take(sealed(first))
    await two.replica.take(sealed(first))
    for entries in later:
        await two.replica.take(sealed(entries))
    await one.exchange.compare(two.peer)
    loads: list[Any] = []
    load = one.replica.load

    async def counted(feed: Any) -> None:
        loads.append(feed.document is None)
        await load(feed)

    turns = 0

    class Turn:
        async def __aenter__(self) -> None:
            nonlocal turns
            turns += 1

        async def __aexit__(self, *_: object) -> None: ...

    monkeypatch.setattr(one.replica, "load", counted)
    monkeypatch.setattr(one, "turn", Turn)
    monkeypatch.setattr(defaults, "TURN_BYTES", 1)  # no feed is small
    await asked(one, two, [item for entries in later for item in sealed(entries)])
    for author, last in zip(authors, later[-1], strict=True):
        assert one.replica.head(author.key, MEMBER) == last.head
    assert sum(loads) <= len(authors) and turns == len(authors)
    new = sum(entries[0].size + defaults.ENTRY_COST for entries in later)
    again = first[0].size + defaults.ENTRY_COST
    counted_bytes = one.exchange.wanted.free_at[authors[0].key] * defaults.AUTHOR_RATE
    assert counted_bytes == new + again, "reading a feed again counts as well"


def test_a_reply_with_mixed_feeds_is_taken_in_feed_by_feed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once(interleaved(monkeypatch))


async def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that disconnects while it is asked for own feeds leaves no state behind."""
    net = FakeNetwork()
    one, two = FakeNode(net, 1, interest=Interest([])), FakeNode(net, 2)
    await link(one, two)
    await one.write(("jobs", 0), a={"v": 1})
    one.replica.interest.wrote(("jobs", 0))
    one.own_entries.begun = True
    real = one.call
    asked_own: list[str] = []

    async def call(peer: PeerId, method: str, payload: bytes) -> bytes:
        if method != HAVE:
            return await real(peer, method, payload)
        asked_own.append(method)
        one.exchange.link_lost(peer)
        return encode_heads([Told(one.key, "jobs", 0, 9, 9, bytes(16))])

    monkeypatch.setattr(one, "call", call)
    await one.exchange.compare(two.peer)
    assert asked_own
    assert not one.exchange.next_pulls() and not one.exchange.wanted.all_tellers


def test_a_peer_that_leaves_while_asked_for_own_feeds_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once(gone(monkeypatch))

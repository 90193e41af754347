"""Nodes send news, compare and pull until they have the same feeds."""

from hashlib import sha256
from itertools import islice
from typing import Any

import pytest

from shoal.state import defaults
from shoal.state.errors import BadMessage, StateError
from shoal.state.feeds.digest import HASH_BYTES, bucket_of
from shoal.state.feeds.entry import FORKED, Entry, Head
from shoal.state.feeds.kinds import all_parts
from shoal.state.replication.exchange import FeedExchange
from shoal.state.replication.gossip import (
    DIGEST,
    HAVE,
    HEADS,
    NEWS,
    PULL,
    Compare,
    HeadsQuestion,
    HeadsReply,
    Pulled,
    Told,
    encode_heads,
)
from shoal.state.replication.interest import Interest
from shoal.state.replication.vouches import VOUCHES, write_vouches
from shoal.transport.identity import PeerId
from tests.state.fake_feeds import MEMBER, FakeNetwork, FakeNode, Writer, at_once, facts_of, link

JOBS = ("jobs", 0)


async def linked(count: int, **replica: Any) -> tuple[FakeNetwork, list[FakeNode]]:
    net = FakeNetwork()
    nodes = [FakeNode(net, number + 1, **replica) for number in range(count)]
    for index, node in enumerate(nodes):
        for other in nodes[:index]:
            await link(node, other)
    for node in nodes:
        node.replica.newcomers.clear()
    return net, nodes


async def spread(nodes: list[FakeNode]) -> None:
    """Send news and pull until nothing is left to do."""
    for _ in range(20):
        nodes[0].net.time += defaults.NEWS_PAUSE
        for node in nodes:
            node.exchange.tell()
        for node in nodes:
            await node.pull()


def same(*nodes: FakeNode) -> bool:
    return len({node.replica.digest.top() for node in nodes}) == 1


async def compared() -> None:
    _, (one, two) = await linked(2)
    for node in (one, two):
        for number in range(5):
            await node.write(a={"v": number})
        await node.write(JOBS, b={"v": 1})
    assert not same(one, two)
    await one.exchange.compare(two.peer)
    await one.pull()
    await two.pull()
    assert same(one, two)
    assert facts_of(await two.replica.facts(one.key, JOBS)) == {"b": {"v": 1}}


def test_a_comparison_finds_missing_entries_of_both() -> None:
    at_once(compared())


async def off_for_a_month() -> None:
    net, nodes = await linked(4)
    *awake, asleep = nodes
    for node in nodes:
        await node.write(a={"v": 0}, gone={"v": 0})
    await spread(nodes)
    assert same(*nodes)
    for node in awake:
        node.exchange.link_lost(asleep.peer)
        asleep.exchange.link_lost(node.peer)
        await node.replica.unlinked(asleep.peer)
        await asleep.replica.unlinked(node.peer)
    for day in range(1, 31):
        net.time += 86_400.0
        for node in awake:
            if day % 4 == 0:  # most of it is overwritten
                node.writer.next_epoch()
            await node.write(MEMBER, a={"v": day}, **{f"day{day}": {"v": day}})
            await node.write(JOBS, b={"v": day})
        await spread(awake)
    assert same(*awake) and not same(asleep, *awake)
    net.calls.clear()
    await link(asleep, awake[0])
    await asleep.exchange.compare(awake[0].peer)
    await asleep.pull()
    assert same(*nodes) and len(net.calls) < 12
    for node in awake:
        facts = facts_of(await asleep.replica.facts(node.key, MEMBER))
        assert facts == facts_of(await node.replica.facts(node.key, MEMBER))
        assert facts["a"] == {"v": 30} and "gone" not in facts and len(facts) == 4


def test_a_node_off_for_a_month_catches_up_in_a_few_calls() -> None:
    at_once(off_for_a_month())


async def equal() -> None:
    net, (one, two) = await linked(2)
    await one.write(a={"v": 1})
    await one.exchange.compare(two.peer)
    await two.pull()
    await one.exchange.compare(two.peer)
    net.calls.clear()
    await one.exchange.compare(two.peer)
    assert net.calls == [DIGEST]


def test_equal_nodes_compare_in_one_call() -> None:
    at_once(equal())


async def by_news() -> None:
    net, nodes = await linked(5)
    await nodes[0].write(a={"v": 1})
    await spread(nodes)
    assert same(*nodes)
    assert net.calls.count(PULL) == 4
    told_once = {(one, two) for one, two, method in net.posts if method == NEWS}
    assert len(net.posts) == len(told_once)


def test_news_reaches_all_nodes_and_each_pulls_once() -> None:
    at_once(by_news())


async def paced() -> None:
    net, (one, two) = await linked(2)
    await one.write(a={"v": 1})
    one.exchange.tell()
    await one.write(a={"v": 2})
    await one.write(a={"v": 3})
    one.exchange.tell()
    assert len(net.posts) == 1
    assert one.exchange.due_at() == defaults.NEWS_PAUSE
    net.time += defaults.NEWS_PAUSE
    one.exchange.tell()
    assert len(net.posts) == 2
    await two.pull()
    assert same(one, two)


def test_news_goes_at_once_and_then_in_batches() -> None:
    at_once(paced())


async def next_teller() -> None:
    _, (one, two, three) = await linked(3)
    await one.write(a={"v": 1})
    await two.exchange.compare(one.peer)
    await two.pull()
    for peer in (one, two):
        heads = peer.replica.told([(one.key, MEMBER)])
        three.exchange.heard(peer.peer, encode_heads(heads))
    one.deaf = True
    await three.pull()
    assert same(two, three)


def test_if_one_peer_does_not_answer_the_next_is_asked() -> None:
    at_once(next_teller())


async def cut_short() -> None:
    """A reply ends after the first feed, whose entries are known by then. The second feed is asked
    for again at once."""
    _, (one, two) = await linked(2)
    writers = [Writer(number) for number in (41, 42)]
    for writer in writers:
        for node in (one, two):
            await node.replica.linked(writer.peer)
        first = writer.write(a={"v": 1})
        for node in (one, two):
            await node.replica.take([(first.sealed,)])
    seconds = [writer.write(b={"v": b"x" * 8_000}) for writer in writers]
    for writer, second in zip(writers, seconds, strict=True):
        thirds = [writer.write(MEMBER, **{f"c{n}": {"v": b"x" * 1_000}}) for n in range(4)]
        await two.replica.take([(each.sealed,) for each in (second, *thirds)])
    places = [(writer.key, MEMBER) for writer in writers]
    one.exchange.heard(two.peer, encode_heads(two.replica.told(places)))
    (pull,) = one.exchange.next_pulls()
    answer = await two.replica.give(one.replica.told(places[:1]), limit=1)

    async def late(peer: object, method: str, payload: bytes) -> bytes:
        await one.replica.take(answer.items)  # from another peer
        return Pulled(answer.items, more=True).encode()

    whole, one.call = one.call, late  # type: ignore[method-assign]
    await one.exchange.pull(pull)
    one.call = whole  # type: ignore[method-assign]
    await one.pull()
    assert same(one, two)


def test_feeds_that_did_not_fit_into_a_reply_are_asked_for_again() -> None:
    at_once(cut_short())


async def forks() -> None:
    """An author sends two nodes two histories of different lengths."""
    _, (one, two, _) = await linked(3)
    author = Writer(50)
    left, right = Writer(50), Writer(50)
    for node in (one, two):
        await node.replica.linked(author.peer)
    lefts = [left.write(a={"v": number}) for number in range(3)]
    rights = [right.write(a={"v": 0})] + [right.write(a={"v": n, "w": 1}) for n in range(6)]
    await one.replica.take([(entry.sealed,) for entry in lefts])
    await two.replica.take([(entry.sealed,) for entry in rights])
    for _ in range(3):
        await one.exchange.compare(two.peer)
        await two.exchange.compare(one.peer)
        await spread([one, two])
    assert one.replica.head(author.key, MEMBER) == two.replica.head(author.key, MEMBER) == FORKED
    assert one.blamed == two.blamed == []


def test_two_histories_of_one_feed_prove_a_fork() -> None:
    at_once(forks())


async def newcomers() -> None:
    """A node learns of an author that is vouched for, and gets its feed from the peer that told
    it."""
    _, (one, two) = await linked(2)
    friend = Writer(60)
    await one.replica.linked(friend.peer)
    await one.replica.take([(friend.write(a={"v": 1}).sealed,)])
    await one.write(MEMBER, **{VOUCHES: write_vouches([friend.key])})
    await two.exchange.compare(one.peer)
    await two.pull()
    assert friend.key in two.replica.authors
    assert two.replica.head(friend.key, MEMBER) is None
    two.net.time += defaults.RECHECK
    assert two.exchange.due_rechecks() == [one.peer]
    await two.exchange.compare(one.peer)
    await two.pull()
    assert same(one, two)


def test_the_feed_of_a_new_author_comes_from_the_peer_that_told_it() -> None:
    at_once(newcomers())


async def strangers() -> None:
    """Feeds that only the other node keeps are compared once, not in every round."""
    net, (one, two) = await linked(2)
    for number in range(70, 90):
        stranger = Writer(number)
        await one.replica.linked(stranger.peer)
        await one.replica.take([(stranger.write(a={"v": 1}).sealed,)])
    await two.exchange.compare(one.peer)
    net.calls.clear()
    await two.exchange.compare(one.peer)
    assert HEADS not in net.calls
    mine = Writer(70)
    await two.replica.linked(mine.peer)
    net.time += defaults.RECHECK
    assert two.exchange.due_at() <= net.time  # though nothing else happens
    for peer in two.exchange.due_rechecks():
        await two.exchange.compare(peer)
    await two.pull()
    assert two.replica.head(mine.key, MEMBER) is not None
    net.calls.clear()
    await two.exchange.compare(one.peer)
    assert HEADS not in net.calls


def test_feeds_that_are_not_kept_are_compared_once() -> None:
    at_once(strangers())


async def much(count: int) -> int:
    """Return how many of `count` feeds a node gets from its only peer."""
    net, (one, two) = await linked(2)
    writers = [Writer(number) for number in range(100, 100 + count)]
    for node in (one, two):
        await node.replica.grouped(writer.peer for writer in writers)
    await one.replica.take([(writer.write(a={"v": 1}).sealed,) for writer in writers])
    for _ in range(count):
        net.time += defaults.VAIN_S
        await two.exchange.compare(one.peer)
        await two.pull()
    return sum(two.replica.head(writer.key, MEMBER) is not None for writer in writers)


def test_feeds_beyond_one_comparison_come_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defaults, "HEADS", 8)
    monkeypatch.setattr(defaults, "TOLD", 4)
    assert at_once(much(60)) == 60


async def reported(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    _, (one, two) = await linked(2)
    reports: list[Any] = []
    one.exchange.on_reported.append(reports.append)
    # Its own feed is in a bucket after those that fit into the first reply.
    numbers = (n for n in range(100, 900) if bucket_of(Writer(n).key) < bucket_of(one.key))
    others = [Writer(number) for number in islice(numbers, 20)]
    await one.replica.grouped(writer.peer for writer in others)
    await two.replica.grouped(writer.peer for writer in (*others, one.writer))
    entries = [writer.write(a={"v": 1}) for writer in (*others, Writer(1))]
    await two.replica.take([(entry.sealed,) for entry in entries])
    one.own_entries.begun = True
    monkeypatch.setattr(defaults, "HEADS", 8)
    monkeypatch.setattr(defaults, "TOLD", 4)
    for _ in range(20):
        one.net.time += defaults.VAIN_S
        await one.exchange.compare(two.peer)
        if one.replica.head(one.key, MEMBER) is None:
            assert not reports
        await one.pull()
    return reports


def test_a_peer_reports_once_it_was_asked_for_own_feeds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert at_once(reported(monkeypatch))


async def liar(answer: dict[str, bytes]) -> FakeNode:
    """Return a node that has called a peer which sends this answer."""
    _, (one, two) = await linked(2)
    await one.write(a={"v": 1})

    async def bent(peer: object, method: str, payload: bytes) -> bytes:
        if method in answer:
            return answer[method]
        return await FeedExchange.answer(two.exchange, one.peer, method, payload)

    two.exchange.answer = bent  # type: ignore[method-assign]
    await two.write(a={"v": 2})
    await one.exchange.compare(two.peer)
    await one.pull()
    return one


@pytest.mark.parametrize("method", [DIGEST, HEADS, PULL])
def test_malformed_messages_end_the_link(method: str) -> None:
    one = at_once(liar({method: b"nonsense"}))
    assert [code for _, code in one.blamed] == ["bad-message"]


def test_a_forged_entry_ends_the_link() -> None:
    sealed = bytearray(Writer(2).write(a={"v": 7}).sealed)
    sealed[60] ^= 1
    one = at_once(liar({PULL: Pulled([(bytes(sealed),)]).encode()}))
    assert [code for _, code in one.blamed] == ["bad-signature"]


def test_false_offers_and_empty_replies_delay_no_other_peer() -> None:
    one = at_once(liar({PULL: Pulled([], more=True).encode()}))
    assert one.blamed == []
    high = HeadsReply([Told(Writer(2).key, *MEMBER, 7, 7, bytes(HASH_BYTES))]).encode()
    assert at_once(liar({HEADS: high})).blamed == []


async def own() -> None:
    _, (one, two, three) = await linked(3)
    reports: list[Any] = []
    one.exchange.on_reported.append(reports.append)
    again = Writer(1)
    entries: list[Entry] = [again.write(a={"v": number}) for number in range(2)]
    await two.replica.take([(entry.sealed,) for entry in entries])
    await one.exchange.compare(two.peer)
    await one.pull()
    assert one.replica.head(one.key, MEMBER) is None
    assert reports == [two.peer]  # it does not want its own missing entries
    one.own_entries.begun = True
    await three.replica.take([(entry.sealed,) for entry in entries])
    await one.exchange.compare(three.peer)
    assert reports == [two.peer]  # now it does
    await one.pull()
    assert one.replica.head(one.key, MEMBER) == entries[-1].head
    await one.exchange.compare(three.peer)
    assert reports == [two.peer, three.peer]


def test_own_entries_at_peers_are_reported() -> None:
    at_once(own())


async def too_often() -> None:
    _, (one, two) = await linked(2)
    with pytest.raises(BadMessage):
        await one.exchange.answer(two.peer, PULL, b"nonsense")
    digest, heads = Compare(bytes(HASH_BYTES)).encode(), encode_heads([])
    for method, ask in ((DIGEST, digest), (PULL, heads), (HAVE, heads)):
        answered = 0
        with pytest.raises(StateError, match="too often"):
            for answered in range(1_000):  # noqa: B007
                await one.exchange.answer(two.peer, method, ask)
        assert answered <= max(defaults.FEED_ASKS[0], defaults.FEED_PULLS[0])


def test_calls_are_rate_limited_and_checked() -> None:
    at_once(too_often())


async def crowded() -> None:
    """One bucket has more authors than a reply holds, as an attacker that grinds keys can cause."""
    _, (one, _) = await linked(2)
    tree = one.replica.digest
    keys = [number.to_bytes(32) for number in range(3 * defaults.HEADS)]
    crowd = [key for key in keys if bucket_of(key) < 2]
    for key in keys:
        tree.set(key, MEMBER, Head(1, 1, b"h" * 32))
    found: set[bytes] = set()
    ask = HeadsQuestion({MEMBER: bytes(range(256))})
    answers = 0
    while any(ask.buckets.values()):
        answer = one.exchange._heads(ask)
        answers += 1
        found |= {head.key for head in answer.heads}
        if not answer.more:
            break
        ask = ask.rest(answer.heads[-1], bucket_of(answer.heads[-1].key))
    assert found == set(keys) and crowd
    assert answers == 3


def test_a_truncated_reply_is_continued() -> None:
    at_once(crowded())


async def neighbours() -> None:
    net, nodes = await linked(2 * defaults.NEIGHBOURS)
    await nodes[0].write(a={"v": 1})
    nodes[0].exchange.tell()
    first = {two for one, two, _ in net.posts if one == nodes[0].peer}
    assert len(first) == defaults.NEIGHBOURS
    net.time += defaults.NEIGHBOUR_TURN + 1
    net.posts.clear()
    await nodes[0].write(a={"v": 2})
    nodes[0].exchange.tell()
    second = {two for one, two, _ in net.posts if one == nodes[0].peer}
    assert len(second) == defaults.NEIGHBOURS
    assert len(first - second) <= 1


def test_few_peers_get_news_and_change_slowly() -> None:
    at_once(neighbours())


async def patience() -> None:
    net, nodes = await linked(2)
    for number in range(100):
        await nodes[0].write(a={"v": number})
        nodes[0].exchange.tell()
        net.time += 0.1
    told = sum(one == nodes[0].peer for one, _, _ in net.posts)
    burst, per_s = defaults.NEWS_PATIENCE
    assert burst <= told <= burst + 10 * per_s + 1, told


def test_news_of_patient_kinds_is_sent_rarely() -> None:
    at_once(patience())


async def tells_one_that_has_nothing() -> None:
    net, (one, two) = await linked(2)
    plots = [("shards", part) for part in range(16)]
    for number in range(200):
        key = sha256(number.to_bytes(2)).digest()
        for plot in plots:
            one.replica.digest.set(key, plot, Head(1, 0, key))
    assert len(plots) * 200 > defaults.TOLD
    await one.exchange.compare(two.peer)
    posts = [method for *_, method in net.posts if method == NEWS]
    assert len(posts) == defaults.TOLD // defaults.NEWS_HEADS


def test_no_more_heads_are_sent_than_a_peer_remembers() -> None:
    at_once(tells_one_that_has_nothing())


async def gone_with_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    _, (one, two) = await linked(2)
    await two.write(a={"v": 1})
    real = one.call

    async def call(peer: PeerId, method: str, payload: bytes) -> bytes:
        answer = await real(peer, method, payload)
        if method == HEADS:
            one.exchange.link_lost(peer)
        return answer

    monkeypatch.setattr(one, "call", call)
    await one.exchange.compare(two.peer)
    assert not one.exchange.next_pulls() and not one.exchange.wanted.all_tellers


def test_a_peer_that_leaves_with_its_reply_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once(gone_with_its_answer(monkeypatch))


SHARD, OTHER = ("shards", 3), ("shards", 4)


async def of_both() -> None:
    """Two nodes keep different parts, and one keeps all. Each gets the feeds that it keeps."""
    net = FakeNetwork()
    one = FakeNode(net, 1, interest=Interest([SHARD]))
    two = FakeNode(net, 2, interest=Interest([OTHER]))
    three = FakeNode(net, 3)
    for left, right in ((one, two), (two, three), (three, one)):
        await link(left, right)
    for node in (one, two, three):
        for plot in (MEMBER, SHARD, OTHER):
            await node.write(plot, a={"v": 1})
    await settle(one, two, three)
    for node in (one, two, three):
        for other in (one, two, three):
            for plot in (MEMBER, SHARD, OTHER):
                has = node.replica.head(other.key, plot) is not None
                assert has == (other is node or node.replica.interest(plot)), (node, other, plot)
    net.calls.clear()
    for node in (one, two, three):
        for other in (one, two, three):
            await node.exchange.compare(other.peer)
    assert set(net.calls) == {DIGEST} and len(net.calls) == 6


async def settle(*nodes: FakeNode) -> None:
    """Let the nodes compare and pull until nothing changes."""
    for _ in range(3):
        for node in nodes:
            for other in nodes:
                await node.exchange.compare(other.peer)
            for each in nodes:
                await each.pull()


def test_nodes_compare_only_feeds_that_both_keep() -> None:
    at_once(of_both())


async def own_aside() -> None:
    """Own feeds of a kind that a node does not keep of others reach the nodes that keep it, and
    come back after a lost store."""
    net = FakeNetwork()
    small = FakeNode(net, 1, interest=Interest([]))
    large = FakeNode(net, 2)
    await small.write(SHARD, a={"v": 1})
    await link(small, large)
    await small.exchange.compare(large.peer)
    await large.pull()
    assert large.replica.head(small.key, SHARD) is not None
    head = (await small.write(SHARD, b={"v": 2})).head
    net.time += defaults.NEWS_PAUSE
    small.exchange.tell()
    await large.pull()
    assert large.replica.head(small.key, SHARD) == head

    again = FakeNode(net, 1, interest=Interest([]))
    reports: list[PeerId] = []
    again.exchange.on_reported.append(reports.append)
    again.own_entries.begun = True
    await link(again, large)
    await again.exchange.compare(large.peer)
    assert reports == []
    await again.pull()
    assert again.replica.head(small.key, SHARD) == head
    await again.exchange.compare(large.peer)
    assert reports == [large.peer]


def test_own_feeds_are_always_kept_and_announced() -> None:
    at_once(own_aside())


async def asked_for_own() -> None:
    net = FakeNetwork()
    small, large = FakeNode(net, 1, interest=Interest([])), FakeNode(net, 2)
    await link(small, large)
    for _ in range(5):
        await small.exchange.compare(large.peer)
    assert net.calls.count(HAVE) == 1
    net.time += defaults.OWN_AGAIN
    await small.exchange.compare(large.peer)
    assert net.calls.count(HAVE) == 2
    with pytest.raises(BadMessage):
        await large.exchange.answer(small.peer, HAVE, b"nonsense")


def test_peers_are_asked_periodically_for_own_feeds() -> None:
    at_once(asked_for_own())


async def gained() -> None:
    net = FakeNetwork()
    small = FakeNode(net, 1, interest=Interest([]))
    large = [FakeNode(net, number) for number in range(2, 8)]
    for node in large:
        await link(small, node)
    for node in large[1:]:
        await link(large[0], node)
    await large[0].write(SHARD, a={"v": 1})
    await settle(small, *large)
    assert small.replica.head(large[0].key, SHARD) is None
    small.replica.interest.need([SHARD], net.time)
    net.time += defaults.RECHECK
    due = small.exchange.due_rechecks()
    assert len(due) == defaults.REGAINED
    for peer in due:
        await small.exchange.compare(peer)
    await small.pull()
    assert small.replica.head(large[0].key, SHARD) is not None


def test_newly_kept_feeds_are_fetched_at_once() -> None:
    at_once(gained())


async def few_keep_it() -> None:
    """Two of 40 linked peers keep a part, and still get its news."""
    net = FakeNetwork()
    one = FakeNode(net, 1)
    others = [FakeNode(net, n, interest=Interest([SHARD] * (n < 4))) for n in range(2, 42)]
    for number, node in enumerate(others):
        await link(one, node)
        asker, other = (one, node) if number % 2 else (node, one)  # both learn what the other keeps
        await asker.exchange.compare(other.peer)
    net.posts.clear()
    await one.write(SHARD, a={"v": 1})
    net.time += defaults.NEWS_PAUSE
    one.exchange.tell()
    assert {to for _, to, _ in net.posts} == {node.peer for node in others[:2]}


def test_news_of_rare_feeds_reaches_their_replicas() -> None:
    at_once(few_keep_it())


def test_all_own_feeds_fit_into_one_call() -> None:
    assert len(list(all_parts())) <= defaults.HAVE_FEEDS

"""When hundreds of nodes join at once, their news, pulls and replies are spread over time."""

from collections.abc import Sequence
from typing import Any

from shoal.state import defaults
from shoal.state.feeds.entry import Entry
from shoal.state.replication.gossip import DIGEST, HEADS, NEWS, PULL, Pulled, encode_heads
from shoal.transport.identity import PeerId
from tests.state.fake_feeds import MEMBER, FakeNetwork, FakeNode, Writer, at_once, link

JOBS = ("jobs", 0)


async def joined(count: int, **nodes: int) -> tuple[FakeNetwork, list[FakeNode], list[Writer]]:
    """Return linked nodes, the first of which (and `more`) have feeds of `count` authors."""
    net = FakeNetwork()
    made = [FakeNode(net, number + 1) for number in range(nodes.get("nodes", 2))]
    for index, node in enumerate(made):
        for other in made[:index]:
            await link(node, other)
    writers = [Writer(number) for number in range(1_000, 1_000 + count)]
    for node in made:
        await node.replica.grouped(writer.peer for writer in writers)
        node.replica.newcomers.clear()
    items = [(writer.write(a={"v": 1}).sealed,) for writer in writers]
    for node in (made[0], *made[1:][: nodes.get("more", 0)]):
        await node.replica.take(items)
    return net, made, writers


async def taken_in() -> None:
    net, (one, two), writers = await joined(300)
    await two.exchange.compare(one.peer)
    net.calls.clear()
    await two.pull()
    while not all(two.replica.head(writer.key, MEMBER) for writer in writers):
        net.time = two.exchange.wanted.next_at(net.time)
        await two.pull()
    assert net.calls.count(PULL) < 100
    assert 30 < net.time < 300
    assert two.replica.digest.top() == one.replica.digest.top()


def test_many_authors_are_taken_in_over_minutes() -> None:
    at_once(taken_in())


async def compared_meanwhile() -> None:
    net, (one, two), _ = await joined(300)
    await two.exchange.compare(one.peer)
    await two.pull()
    await one.write(JOBS, b={"v": 1})
    net.calls.clear()
    answers = []
    real = two.call

    async def call(peer: object, method: str, payload: bytes) -> bytes:
        answer = await real(one.peer, method, payload)
        answers.append((method, len(answer)))
        return answer

    two.call = call  # type: ignore[method-assign]
    await two.exchange.compare(one.peer)
    await two.pull()
    assert two.replica.head(one.key, JOBS) is not None
    assert [method for method, _ in answers] == [DIGEST, DIGEST, HEADS, PULL]
    assert sum(size for _, size in answers) < 1_000, "feeds known to be missing are left out"
    reports: list[PeerId] = []
    two.exchange.on_reported.append(reports.append)
    await two.exchange.compare(one.peer)
    assert not reports, "the other's copy of this node's own feed is unknown"


def test_waiting_feeds_are_not_compared_again_but_others_are() -> None:
    at_once(compared_meanwhile())


async def compared_by_turns() -> None:
    """While the budget is used up, a peer sends part of its heads when it is its turn."""
    net, (one, three, two), writers = await joined(300, nodes=3, more=1)
    await two.exchange.compare(one.peer)
    await two.pull()
    net.calls.clear()
    await two.exchange.compare(three.peer)
    assert net.calls == [DIGEST, DIGEST]
    turns = []
    while three.peer not in turns:
        turns.append(two.exchange.next_round())
    await two.exchange.compare(three.peer)
    told = sum(three.peer in two.exchange.wanted.tellers((one.key, MEMBER)) for one in writers)
    assert 0 < told < 100
    net.calls.clear()
    while turns.count(three.peer) < 2:
        turns.append(two.exchange.next_round())
    await two.exchange.compare(three.peer)
    assert net.calls == [DIGEST, DIGEST], "its earlier offers come first"
    two.exchange.wanted.lost(three.peer)
    net.calls.clear()
    await two.exchange.compare(three.peer)
    assert net.calls == [DIGEST, DIGEST], "it had its turn"


def test_while_the_budget_is_used_up_peers_are_compared_in_parts() -> None:
    at_once(compared_by_turns())


async def given_to_each() -> None:
    """A peer that asks for everything does not use up the share of others, and other kinds are
    unlimited."""
    net, (one, greedy, modest), writers = await joined(300, nodes=3)
    await one.write(JOBS, b={"v": 1})
    wanted = [(writer.key, MEMBER) for writer in writers]
    each, everybody = defaults.PATIENT_GIVEN

    async def ask(node: FakeNode, first: int, *more: FakeNode) -> Pulled:
        places = [*((one.key, JOBS) for _ in more), *wanted[first : first + 15]]
        asked = encode_heads(node.replica.told(places))
        return Pulled.decode(await one.exchange.give(node.peer, asked))

    pulled = [await ask(greedy, first) for first in range(0, 300, 15)]
    assert sum(len(answer.items) for answer in pulled) == each[0] + everybody[0]
    assert pulled[-1] == Pulled([], more=True)
    assert len((await ask(modest, 0)).items) == each[0]
    assert len((await ask(greedy, 0, one)).items) == 1
    net.time += 1 / everybody[1]
    assert len((await ask(greedy, 0)).items) == 1


def test_giving_is_limited_in_all_and_for_each_peer() -> None:
    at_once(given_to_each())


async def had_of_others() -> None:
    """A node asks another peer at once if the first one gives nothing and says that there is
    more."""
    net, (one, two, three), writers = await joined(40, nodes=3)
    await three.exchange.compare(one.peer)
    await three.pull()

    async def nothing(peer: object, payload: bytes) -> bytes:
        return Pulled([], more=True).encode()

    one.exchange.give = nothing  # type: ignore[method-assign]
    await two.exchange.compare(one.peer)
    await two.pull()
    tellers = two.exchange.wanted.tellers
    assert all(one.peer in tellers((writer.key, MEMBER)) for writer in writers)
    await two.exchange.compare(three.peer)
    await two.pull()
    assert all(two.replica.head(writer.key, MEMBER) for writer in writers)
    assert not two.blamed and net.time == 0.0


def test_feeds_that_one_peer_does_not_give_come_from_another() -> None:
    at_once(had_of_others())


async def gathered() -> None:
    net, nodes, _ = await joined(0, nodes=3 * defaults.NEIGHBOURS)
    one = nodes[0]

    def told() -> int:
        """Return how many peers get the news."""
        net.posts.clear()
        one.exchange.tell()
        return len({to for _, to, method in net.posts if method == NEWS})

    for number in range(int(defaults.NEWS_PATIENCE[0])):
        await one.write(a={"v": number})
        assert told() == defaults.NEIGHBOURS
        net.time += defaults.NEWS_PAUSE
    await one.write(a={"v": "later"})
    assert told() == 0
    net.time = one.exchange.due_at()
    assert told() == defaults.NEIGHBOURS_FEW
    await one.write(a={"v": "last"})
    net.time += 2 * defaults.NEWS_GATHERED
    await one.write(JOBS, b={"v": 1})
    assert told() == defaults.NEIGHBOURS  # of other kinds


def test_gathered_news_goes_to_few_peers() -> None:
    at_once(gathered())


async def newcomers() -> None:
    net, (one, two) = (await joined(0))[:2]
    times = []
    for number in range(600):
        two.replica.newcomers[Writer(3_000 + number).key] = None
        two.exchange.rechecks[one.peer] = None
        times += [net.time for _ in two.exchange.due_rechecks()]
        net.time += 0.1
    burst, per_s = defaults.RECHECKS
    assert burst <= len(times) <= burst + 60 * per_s + 1


def test_comparisons_because_of_new_authors_are_rate_limited() -> None:
    at_once(newcomers())


async def taken_together() -> None:
    """Each transaction is a write to the disk. A large feed still gets its own."""
    net, (one, two), writers = await joined(64)
    large = Writer(9_000)
    await two.replica.grouped([large.peer])
    await one.replica.grouped([large.peer])
    await one.replica.take([(large.write(a={"v": "x" * defaults.TURN_BYTES}).sealed,)])
    puts: list[int] = []
    put = two.replica.archive.put

    async def counted(entries: Sequence[Entry], *args: Any) -> None:
        puts.append(len(entries))
        await put(entries, *args)

    two.replica.archive.put = counted  # type: ignore[method-assign]
    await two.exchange.compare(one.peer)
    await two.pull()
    while not all(two.replica.head(writer.key, MEMBER) for writer in (*writers, large)):
        net.time = two.exchange.wanted.next_at(net.time)  # the last few wait for others
        await two.pull()
    assert sum(puts) == 65 and len(puts) <= 65 / 4


def test_small_feeds_are_stored_in_one_transaction() -> None:
    at_once(taken_together())

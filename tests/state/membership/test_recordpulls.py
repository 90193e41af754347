"""A record that several peers offer is pulled from one at a time, and liars delay no other peer."""

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import msgpack
import pytest
import trio
from trio.testing import MockClock

from shoal.state import defaults
from shoal.state.membership.messages import encode_digest, read_tags
from shoal.state.membership.record import MemberRecord, seal_record
from shoal.state.membership.roster import RecordOffer, Tag, tag_of
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.calls import Answer, Call, Refusal, Reply
from shoal.transport.networks import Nearness
from tests.state.fake_net import FakeNet, FakeNode

Pull = Callable[[Call], Awaitable[Answer]]

AUTHORS = [Identity.from_seed((1000 + number).to_bytes(32)) for number in range(200)]
OFFERED = {author.peer: 5 for author in AUTHORS}
SEALED = {author.peer: seal_record(author, MemberRecord(author.peer, 5)) for author in AUTHORS}
BY_TAG = {tag_of(peer): sealed for peer, sealed in SEALED.items()}


_SOON = 0.005  # seconds: a call takes 0.01 at least


@pytest.fixture
async def net(nursery: trio.Nursery) -> FakeNet:
    return FakeNet(nursery)


async def trio_of_nodes(net: FakeNet) -> tuple[FakeNode, FakeNode, FakeNode]:
    """Return a victim, a liar, and an honest node with all records of `AUTHORS`."""
    victim, liar, honest = nodes = [FakeNode(net, number) for number in (1, 2, 3)]
    for node in nodes:
        net.nursery.start_soon(node.run, *nodes[:1] if node is not victim else ())
    await trio.sleep(5)
    answers(honest, deliver)
    return victim, liar, honest


def answers(node: FakeNode, pull: Pull) -> None:
    """Set how a node answers pulls of records."""
    node.endpoint.handle("member.pull", pull)


async def deliver(call: Call) -> Reply:
    tags = read_tags(call.payload)
    return Reply(payload=msgpack.packb([(0, 0, BY_TAG[tag]) for tag in tags if tag in BY_TAG]))


async def garbage(call: Call) -> Reply:
    return Reply(payload=b"\xc1")


async def nothing(call: Call) -> Reply:
    return Reply(payload=msgpack.packb([]))


async def refuse(call: Call) -> Refusal:
    return Refusal("busy", "never")


async def stall(call: Call) -> Refusal:
    await trio.sleep(defaults.PULL_TIMEOUT - 0.02)
    return Refusal("busy", "never")


async def stall_then_garbage(call: Call) -> Reply:
    await trio.sleep(1)
    return Reply(payload=b"\xc1")


async def stall_then_nothing(call: Call) -> Reply:
    await trio.sleep(1)
    return Reply(payload=msgpack.packb([]))


async def offer(by: FakeNode, to: FakeNode, numbers: dict[PeerId, int] = OFFERED) -> None:
    """Offer records, and wait until all have arrived or this peer cannot deliver them."""
    digest = encode_digest(
        {tag_of(author): RecordOffer(seq, Nearness.PUBLIC, 0) for author, seq in numbers.items()}
    )
    await to.endpoint.serve(by.peer, "member.digest", digest)


async def offer_soon(by: FakeNode, to: FakeNode) -> None:
    await trio.sleep(_SOON)
    await offer(by, to)


def lacks(node: FakeNode) -> int:
    return len(OFFERED.keys() - node.directory.everybody())


def holds_nothing(node: FakeNode) -> bool:
    return not node.directory.pulls.lacking and not node.directory.pulls.all_tellers


@pytest.mark.trio
@pytest.mark.parametrize("lie", [garbage, nothing, refuse, stall, stall_then_garbage])
@pytest.mark.parametrize("while_it_is_asked", [True, False])
async def test_a_liar_blocks_no_other_peer(
    net: FakeNet, autojump_clock: MockClock, lie: Pull, while_it_is_asked: bool
) -> None:
    """This includes records that it was no longer asked for."""
    victim, liar, honest = await trio_of_nodes(net)
    answers(liar, lie)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(offer, liar, victim)
        await trio.sleep(_SOON if while_it_is_asked else 60)
        nursery.start_soon(offer, honest, victim)
    assert lacks(victim) == 0
    assert holds_nothing(victim)


@pytest.mark.trio
@pytest.mark.parametrize("seconds", [0.0, 0.004, 0.006, 0.015, 0.5, 4.98, 5.1])
@pytest.mark.parametrize("cut", [True, False])
async def test_a_link_that_ends_blocks_no_other_peer(
    net: FakeNet, autojump_clock: MockClock, seconds: float, cut: bool
) -> None:
    """The end of a link cancels its calls, whatever they wait for."""
    victim, liar, honest = await trio_of_nodes(net)
    answers(liar, stall)
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(seconds):
            nursery.start_soon(offer_soon, honest, victim)
            await offer(liar, victim)
        if cut:
            victim.endpoint.cut(liar.peer, "closed")
    assert lacks(victim) == 0
    assert holds_nothing(victim)


@pytest.mark.trio
@pytest.mark.parametrize("liar_first", [True, False])
async def test_only_the_sender_of_garbage_is_blamed(
    net: FakeNet, autojump_clock: MockClock, liar_first: bool
) -> None:
    victim, liar, honest = await trio_of_nodes(net)
    answers(liar, stall_then_garbage)
    answers(honest, stall_then_nothing)  # it has forgotten the record meanwhile
    links = [victim.endpoint.all_links[node.peer] for node in (liar, honest)]
    async with trio.open_nursery() as nursery:
        for node in (liar, honest) if liar_first else (honest, liar):
            nursery.start_soon(offer, node, victim)
            await trio.sleep(0.1)
    assert [link.closed for link in links] == ["bad-record", None]


@pytest.mark.trio
async def test_a_record_that_several_offer_is_pulled_from_one(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """This includes the own record, if a later one is offered."""
    victim, *others = await trio_of_nodes(net)
    ahead = MemberRecord(victim.peer, victim.directory.own().seq + 10**6)
    sealed = {**BY_TAG, tag_of(victim.peer): seal_record(victim.identity, ahead)}
    asked: Counter[Tag] = Counter()

    async def count(call: Call) -> Reply:
        tags = read_tags(call.payload)
        asked.update(tags)
        return Reply(payload=msgpack.packb([(0, 0, sealed[tag]) for tag in tags]))

    async with trio.open_nursery() as nursery:
        for node in others:
            answers(node, count)
            nursery.start_soon(offer, node, victim, OFFERED | {victim.peer: ahead.seq})
    assert asked == dict.fromkeys(sealed, 1)
    assert victim.directory.own().seq > ahead.seq


async def all_comes_beside(
    lie: Callable[[], Awaitable[None]], honest: FakeNode, victim: FakeNode
) -> None:
    """Records that an honest node offers a little later arrive as soon as the liar is given up."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lie)
        await trio.sleep(_SOON)
        with trio.fail_after(defaults.PULL_TIMEOUT + 1):
            await offer(honest, victim)
        assert lacks(victim) == 0
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_peer_that_does_not_deliver_delays_its_offers_only_once(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """It delays them once, and not once for each message that they need."""
    victim, liar, honest = await trio_of_nodes(net)
    answers(liar, stall)
    await all_comes_beside(partial(offer, liar, victim), honest, victim)


@pytest.mark.trio
async def test_a_peer_that_repeats_its_offers_comes_after_waiting_ones(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """The liar cancels its call and repeats it each time that it has not delivered."""
    victim, liar, honest = await trio_of_nodes(net)
    answers(liar, stall)

    async def insist() -> None:
        while True:
            with trio.move_on_after(4.9):
                await offer(liar, victim)
                await trio.sleep_forever()

    await all_comes_beside(insist, honest, victim)


@pytest.mark.trio
async def test_a_later_record_offered_during_a_pull_arrives_as_well(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    victim, _, honest = await trio_of_nodes(net)
    author = AUTHORS[0]
    seqs = iter([5, 6])

    async def slowly(call: Call) -> Reply:
        sealed = seal_record(author, MemberRecord(author.peer, next(seqs)))
        await trio.sleep(1)
        return Reply(payload=msgpack.packb([(0, 0, sealed)]))

    answers(honest, slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(offer, honest, victim, {author.peer: 5})
        await trio.sleep(0.5)
        nursery.start_soon(offer, honest, victim, {author.peer: 6})
    assert victim.directory.roster.has(tag_of(author.peer), 6)


@pytest.mark.trio
async def test_a_later_record_is_pulled_from_the_peer_that_offers_it(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """This holds even if another peer has delivered an earlier record."""
    victim, other, honest = await trio_of_nodes(net)
    author = AUTHORS[0]
    later = seal_record(author, MemberRecord(author.peer, 6))

    async def deliver_later(call: Call) -> Reply:
        return Reply(payload=msgpack.packb([(0, 0, later)]))

    answers(other, deliver)
    answers(honest, deliver_later)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(offer, other, victim, {author.peer: 5})
        await trio.sleep(_SOON)
        nursery.start_soon(offer, honest, victim, {author.peer: 6})
    assert victim.directory.roster.has(tag_of(author.peer), 6)


@pytest.mark.trio
async def test_undelivered_offers_of_a_peer_are_bounded(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    victim, liar, _ = await trio_of_nodes(net)
    answers(liar, stall)
    link = victim.endpoint.link(liar.peer)
    assert link is not None
    async with trio.open_nursery() as nursery:
        for turn in range(int(defaults.DIGESTS[0])):
            names = {PeerId(f"{turn} {number}"): 1 for number in range(200)}
            nursery.start_soon(offer, liar, victim, names)
        await trio.sleep(1)
        assert len(victim.directory.pulls.lacking[link]) <= defaults.MEMBERS
        assert len(victim.directory.pulls.all_tellers) <= defaults.MEMBERS + defaults.BATCH
        assert len(nursery.child_tasks) == 1  # one of the calls handles all
        nursery.cancel_scope.cancel()
    assert holds_nothing(victim)


@pytest.mark.trio
async def test_names_that_are_no_peer_ids_end_the_link(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """Names are kept while their records are pulled, so names of 200 kB would use much memory."""
    victim, liar, _ = await trio_of_nodes(net)
    answers(liar, stall)
    name = "x" * (defaults.NAME_BYTES + 1)
    link = victim.endpoint.all_links[liar.peer]
    payload = msgpack.packb([False, [name], []])
    net.nursery.start_soon(serve, victim, liar, "live.links", payload)
    await trio.sleep(1)
    assert link.closed == "bad-record"


async def serve(victim: FakeNode, liar: FakeNode, method: str, payload: bytes) -> None:
    answer = victim.endpoint.serve(liar.peer, method, payload)
    if not isinstance(answer, (Reply, Refusal)):
        await answer

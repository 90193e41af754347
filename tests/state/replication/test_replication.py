"""Replication of feeds over links in memory, in virtual time."""

import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from inspect import iscoroutinefunction as is_task
from itertools import pairwise
from typing import Any, cast

import msgpack
import pytest
import trio
from trio.testing import MockClock

from bench.yardstick import Yardstick
from shoal.state import defaults
from shoal.state.errors import BadMessage
from shoal.state.feeds.archive import MemoryArchive
from shoal.state.replication.gossip import DIGEST, HAVE, HEADS, NEWS, PULL, Pulled
from shoal.state.replication.replica import Replica
from shoal.state.replication.replication import Replication
from shoal.state.replication.vouches import VOUCHES, write_vouches
from shoal.state.views.jobs import Job, job_fact, job_id
from shoal.state.views.views import Views
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.host.seam import Host
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Refusal, Reply
from tests.bombs import SMALL_BOMBS
from tests.state.fake_feeds import MEMBER, Writer, facts_of
from tests.state.fake_net import FakeEndpoint, FakeHost, FakeNet


class Node:
    def __init__(self, net: FakeNet, number: int) -> None:
        self.writer = Writer(number)
        self.peer, self.key = self.writer.peer, self.writer.key
        self.endpoint = FakeEndpoint(net, self.peer, "127.0.0.1")
        net.by_peer[self.peer] = self.endpoint
        self.replica = Replica(self.peer, MemoryArchive(), pause=trio.lowlevel.checkpoint)
        host = cast(Host, FakeHost(str(number)))
        self.replication = Replication(host, cast(Endpoint, self.endpoint), self.replica)

    async def write(self, **facts: Any) -> None:
        await self.replication.write([self.writer.write(MEMBER, **facts)])

    async def facts(self, of: "Node") -> dict[str, Any]:
        return facts_of(await self.replica.facts(of.key, MEMBER))


@asynccontextmanager
async def nodes(count: int) -> AsyncIterator[tuple[FakeNet, list[Node]]]:
    async with trio.open_nursery() as nursery:
        net = FakeNet(nursery)
        made = [Node(net, number + 1) for number in range(count)]
        for node in made:
            nursery.start_soon(node.replication.run)
        yield net, made
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_entries_written_before_and_after_a_link_are_replicated(
    autojump_clock: MockClock,
) -> None:
    async with nodes(2) as (net, (one, two)):
        await one.write(a={"v": 1})
        await two.write(b={"v": 2})
        net.connect(one.endpoint, two.endpoint)
        await trio.sleep(0.5)
        assert await two.facts(one) == {"a": {"v": 1}}
        assert await one.facts(two) == {"b": {"v": 2}}
        await one.write(c={"v": 3})
        await trio.sleep(0.5)
        assert await two.facts(one) == {"a": {"v": 1}, "c": {"v": 3}}


@pytest.mark.trio
async def test_a_brief_link_carries_nothing(autojump_clock: MockClock) -> None:
    async with nodes(2) as (net, (one, two)):
        await one.write(a={"v": 1})
        net.connect(one.endpoint, two.endpoint, brief=True)
        await trio.sleep(5.0)
        assert net.sent == []
        assert await two.facts(one) == {}
        one.endpoint.all_links[two.peer].keep()
        await trio.sleep(1.5)  # a round, after which the other end may not count the link yet
        assert await two.facts(one) == {"a": {"v": 1}}


@pytest.mark.trio
async def test_a_chain_of_links_with_vouches_replicates_feeds(autojump_clock: MockClock) -> None:
    """The ends keep each other's feeds, because the nodes between them vouch for both."""
    async with nodes(4) as (net, made):
        for one, two in pairwise(made):
            net.connect(one.endpoint, two.endpoint)
        for node in made:
            keys = [other.key for other in made if other.peer in node.endpoint.all_links]
            await node.write(**{VOUCHES: write_vouches(keys), "v": {"v": node.key}})
        await trio.sleep(10.0)
        for node in made:
            for other in made:
                assert (await node.facts(other))["v"] == {"v": other.key}
        assert len({node.replica.digest.top() for node in made}) == 1


@pytest.mark.trio
async def test_lost_news_are_found_by_the_rounds(autojump_clock: MockClock) -> None:
    async with nodes(2) as (net, (one, two)):
        net.connect(one.endpoint, two.endpoint)
        await trio.sleep(1.0)
        two.endpoint.handle(NEWS, lambda call: Reply())
        await one.write(a={"v": 1})
        await trio.sleep(3 * defaults.GOSSIP_ROUND)
        assert await two.facts(one) == {"a": {"v": 1}}


@pytest.mark.trio
async def test_only_calls_that_need_the_disk_use_a_task(autojump_clock: MockClock) -> None:
    async with nodes(1) as (_, (node,)):
        handlers = node.endpoint.handlers
        tasks = {method for method in (DIGEST, HEADS, HAVE, PULL) if is_task(handlers[method])}
        assert tasks == {PULL}


@pytest.mark.trio
async def test_many_wake_ups_at_once_cause_few_rounds(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(1) as (_, (node,)):
        await trio.sleep(1.0)
        looks: list[float] = []
        monkeypatch.setattr(
            node.replication.exchange, "tell", lambda: looks.append(trio.current_time())
        )
        for _ in range(50):
            node.replication.wake()
            await trio.sleep(defaults.EXCHANGE_TURN / 50)
        await trio.sleep(5 * defaults.EXCHANGE_TURN)
        assert 0 < len(looks) <= 3


@pytest.mark.trio
async def test_a_forged_entry_ends_the_link(autojump_clock: MockClock) -> None:
    async with nodes(2) as (net, (one, two)):
        entry = two.writer.write(MEMBER, a={"v": 1})
        await two.replication.write([entry])
        forged = bytearray(entry.sealed)
        forged[60] ^= 1
        answer = Reply(payload=Pulled([(bytes(forged),)]).encode())
        two.endpoint.handle(PULL, lambda call: answer)
        net.connect(one.endpoint, two.endpoint)
        await trio.sleep(5.0)
        assert one.peer not in two.endpoint.all_links
        assert await one.facts(two) == {}


@pytest.mark.trio
async def test_malformed_messages_end_the_link(autojump_clock: MockClock) -> None:
    async with nodes(2) as (net, (one, two)):
        net.connect(one.endpoint, two.endpoint)
        await trio.sleep(0.1)
        answer = await one.endpoint.serve(two.peer, PULL, b"nonsense")
        assert isinstance(answer, Refusal)
        assert answer.code == BadMessage("").code
        assert two.peer not in one.endpoint.all_links


@pytest.mark.trio
async def test_a_peer_without_a_link_is_kept_and_not_asked(
    autojump_clock: MockClock,
) -> None:
    async with nodes(2) as (net, (one, two)):
        net.connect(one.endpoint, two.endpoint)
        await two.write(a={"v": 1})
        await trio.sleep(1.0)
        one.endpoint.cut(two.peer, "peer-gone")
        sent = len(net.sent)
        await two.write(a={"v": 2})
        await trio.sleep(5.0)
        assert len(net.sent) == sent
        assert await one.facts(two) == {"a": {"v": 1}}
        net.connect(two.endpoint, one.endpoint)
        await trio.sleep(1.0)
        assert await one.facts(two) == {"a": {"v": 2}}


@pytest.mark.trio
async def test_a_long_batch_lets_other_tasks_run(autojump_clock: MockClock) -> None:
    """Other tasks run between two signature checks."""
    async with nodes(2) as (_, (one, two)):
        for number in range(40):
            await two.write(a={"v": number})
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            items = (await two.replica.give(one.replica.told([(two.key, MEMBER)]))).items
            await one.replica.linked(two.peer)
            before = turns
            await one.replica.take(items)
            assert turns - before >= 35
            nursery.cancel_scope.cancel()


class Steps(trio.abc.Instrument):
    """Measures how long tasks hold the event loop, in CPU time, which other programs do not
    affect."""

    def __init__(self) -> None:
        self.longest, self._began = 0.0, time.thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.thread_time() - self._began)


def bombs(peer: PeerId) -> dict[str, bytes]:
    """Return a quarter of a megabyte of malformed facts."""
    return dict.fromkeys(map(str, range(73)), SMALL_BOMBS["arrays that end too early"])


def honest_jobs(peer: PeerId) -> dict[str, bytes]:
    """Return as many jobs as fit into a feed."""
    nonces = [number.to_bytes(2) for number in range(2200)]
    facts = {job_id(peer, n): job_fact(Job(job_id(peer, n), peer, "x", b""), n) for n in nonces}
    return {key: msgpack.packb(fact) for key, fact in facts.items()}


@pytest.mark.parametrize(("facts", "bad", "shown"), [(bombs, 73, 0), (honest_jobs, 0, 2200)])
@pytest.mark.trio
async def test_a_snapshot_of_many_facts_does_not_stall_the_loop(
    facts: Callable[[PeerId], dict[str, bytes]], bad: int, shown: int, autojump_clock: MockClock
) -> None:
    """This holds for the author's peer and for a node that gets the snapshot from another.
    Malformed facts are skipped, and their author's other facts count."""
    async with nodes(3) as (net, (author, one, two)):
        views = [Views(), Views()]
        for node, shows in zip((one, two), views, strict=True):
            node.replica.watchers.append(shows)
        net.connect(author.endpoint, one.endpoint)
        net.connect(one.endpoint, two.endpoint)
        await one.write(**{VOUCHES: write_vouches([author.key])})
        await trio.sleep(2.0)
        entry = author.writer.write_raw(("jobs", 0), facts(author.peer))
        assert entry.size > 200_000
        await author.replication.write([entry])
        yardstick = Yardstick(time.thread_time)
        yardstick.sample(4)
        gc.disable()  # garbage of earlier tests would be counted
        try:
            trio.lowlevel.add_instrument(steps := Steps())
            await trio.sleep(5.0)
            trio.lowlevel.remove_instrument(steps)
        finally:
            gc.enable()
        yardstick.sample(4)
        assert yardstick.reference_ms(steps.longest * 1e3) < 50
        for node, shows in zip((one, two), views, strict=True):
            assert node.replica.head(author.key, ("jobs", 0)) == entry.head
            assert shows.bad == bad and len(shows.jobs.of(author.peer)) == shown
        assert one.endpoint.all_links.keys() == {author.peer, two.peer}

"""Chains whose stages fall silent: the next one, not a token lost or said twice, nothing left.

With whole daemons first, then on fakes.
"""

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.faults import Faults
from shoal.netsim.world import World
from shoal.node import defaults as node_defaults
from shoal.tasks.errors import StageLost
from shoal.tasks.inference.conversation.watch import Watch
from shoal.tasks.inference.courier import Courier
from shoal.tasks.inference.gateway import GatewayEvent, GenerateRequest, Routed, Summary, TextDelta
from shoal.tasks.inference.messages import Failed, Quiet
from tests.marks import in_ci
from tests.tasks.fake_swarm import FakeSwarm, Node, peer_of

PROMPT = "Once upon a time"
TOKENS = 300


class Swarm:
    """A gateway without an engine, one first half of the model, two second halves."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults = Faults(world)
        self.times: list[float] = []  # when text came
        self.routes: list[list[str]] = []
        self.text = ""

    async def start(self, *, spare: bool = True) -> None:
        a = await self.world.host("a").start(layers=(0, 3))
        names = ("b", "spare") if spare else ("b",)
        rest = [
            await self.world.host(name).start(bootstrap=[a], model="tiny", layers=(3, 6))
            for name in names
        ]
        self.gateway = await self.world.host("gateway").start(bootstrap=[a, *rest], engine=False)
        self.nodes: dict[str, DaemonHandle] = dict(zip(("a", *names), (a, *rest), strict=True))
        self.names = {node.peer: name for name, node in self.nodes.items()}
        for node in self.nodes.values():
            await node.serving()
        for node in (*self.nodes.values(), self.gateway):
            await node.until(lambda status: status["peers"] == len(self.nodes))
        await trio.sleep(2)

    async def ask(self) -> Summary:
        found: Summary = await self.gateway.host.run(self._ask)
        return found

    async def _ask(self) -> Summary:
        request = GenerateRequest(model="tiny", prompt=PROMPT, max_tokens=TOKENS)
        found: Summary = await self.gateway.node.gateway.generate(request, self._emit)
        return found

    async def _emit(self, event: GatewayEvent) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(event, Routed):
            self.routes.append([self.names[hop.peer] for hop in event.stages])
        else:
            assert isinstance(event, TextDelta)
            self.text += event.text
            self.times.append(trio.current_time())

    async def begun(self, count: int) -> None:
        """Wait until this many pieces of text have arrived."""
        while len(self.times) < count:  # noqa: ASYNC110
            await trio.sleep(0.01)

    def gap(self, since: float) -> float:
        """Seconds from then to the next text that came of it: the longest pause."""
        times = [since, *(time for time in self.times if time > since)]
        return max(b - a for a, b in pairwise(times))


Deed = Callable[[Swarm, str], Awaitable[None]]


async def interrupted(
    world: World, deed: Deed, *, spare: bool = True
) -> tuple[Swarm, Summary, float]:
    """The swarm, the answer, and the longest pause after `deed` befell the second stage."""
    swarm = Swarm(world)
    await swarm.start(spare=spare)
    found: list[Summary] = []

    async def ask() -> None:
        found.append(await swarm.ask())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await swarm.begun(5)
        when = trio.current_time()
        await deed(swarm, swarm.routes[0][1])
    return swarm, found[0], swarm.gap(when)


def run(body: Callable[[World], Awaitable[Any]]) -> Any:
    world = World(seed=1)

    async def main() -> Any:
        with trio.fail_after(600):
            return await body(world)

    return world.run(main)


@pytest.fixture(scope="module")
def whole() -> Summary:
    """The answer of an uninterrupted chain."""

    async def body(world: World) -> Summary:
        swarm = Swarm(world)
        await swarm.start()
        return await swarm.ask()

    found: Summary = run(body)
    return found


def same(summary: Summary, swarm: Swarm, whole: Summary) -> bool:
    return summary.token_ids == whole.token_ids and summary.text == swarm.text == whole.text


async def power_cut(swarm: Swarm, name: str) -> None:
    await swarm.faults.crash(name)


async def stages_miss_each_other(swarm: Swarm, name: str) -> None:
    swarm.faults.partition(["a"], [name])


async def worker_hangs(swarm: Swarm, name: str) -> None:
    await trio.lowlevel.checkpoint()
    swarm.nodes[name].engine.hang()


async def daemon_is_stopped(swarm: Swarm, name: str) -> None:
    swarm.faults.sleep(name)
    await trio.sleep(20)
    swarm.faults.resume(name)


async def away_for_seven_seconds(swarm: Swarm, name: str) -> None:
    rules = swarm.faults.partition([name], ["a", "gateway"])
    await trio.sleep(7)
    swarm.faults.heal(*rules)


@pytest.mark.parametrize(
    "deed",
    [
        power_cut,
        *in_ci(worker_hangs, daemon_is_stopped, stages_miss_each_other, away_for_seven_seconds),
    ],
)
def test_another_replica_takes_over_within_two_seconds(whole: Summary, deed: Deed) -> None:
    async def body(world: World) -> None:
        swarm, summary, gap = await interrupted(world, deed)
        assert same(summary, swarm, whole)
        assert len(swarm.routes) == 2 and swarm.routes[0] != swarm.routes[1]
        assert 1 <= gap < 2 or (deed is stages_miss_each_other and gap < 6)
        await trio.sleep(5)
        for name, node in swarm.nodes.items():
            assert not node.host.up or node.node.stage.sessions == 0, name

    run(body)


async def asks_nobody(watch: Watch) -> None:
    await trio.sleep(0.5)


@pytest.mark.ci
@pytest.mark.parametrize("deed", [power_cut, *in_ci(stages_miss_each_other)])
def test_unwatched_chains_delay_the_takeover_until_links_end(
    whole: Summary, deed: Deed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "look", asks_nobody)

    async def body(world: World) -> None:
        swarm, summary, gap = await interrupted(world, deed)
        assert same(summary, swarm, whole)
        assert gap > 15

    run(body)


def test_a_returning_stage_continues_if_there_is_no_replica(whole: Summary) -> None:
    async def body(world: World) -> None:
        swarm, summary, gap = await interrupted(world, away_for_seven_seconds, spare=False)
        assert same(summary, swarm, whole)
        assert len(swarm.routes) == 1 and 7 < gap < 10

    run(body)


def test_a_stopped_worker_without_a_replica_costs_its_deadline_and_its_start(
    whole: Summary,
) -> None:
    """Its daemon, on the same machine, sees that it is stopped, and does not wait any longer."""

    async def body(world: World) -> None:
        swarm, summary, gap = await interrupted(world, worker_hangs, spare=False)
        assert same(summary, swarm, whole)
        assert 1 <= gap < 4, gap

    run(body)


def test_a_stage_that_ends_properly_tells_the_asker_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a replica, an answer that outlasts the time to finish fails, and is not silent."""
    monkeypatch.setattr(node_defaults, "DRAIN_TIME", 1.0)

    async def body(world: World) -> None:
        swarm = Swarm(world)
        await swarm.start(spare=False)
        with pytest.RaisesGroup(StageLost):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(swarm.ask)
                await swarm.begun(5)
                await swarm.nodes["b"].stop()
        assert trio.current_time() - swarm.times[-1] < 1

    run(body)


async def the_asker_sleeps(swarm: Swarm, name: str) -> None:
    swarm.faults.sleep(swarm.gateway.host)
    await trio.sleep(30)
    swarm.faults.resume(swarm.gateway.host)


def test_a_gateway_that_slept_continues(whole: Summary) -> None:
    async def body(world: World) -> None:
        swarm, summary, gap = await interrupted(world, the_asker_sleeps)
        assert same(summary, swarm, whole)
        assert len(swarm.routes) == 1 and 30 < gap < 35

    run(body)


@pytest.mark.ci
def test_a_gateway_that_slept_fails_if_its_links_are_not_held(
    whole: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Courier, "hold_links", lambda courier, holder: None)

    async def body(world: World) -> None:
        await interrupted(world, the_asker_sleeps, spare=False)

    with pytest.RaisesGroup(StageLost):
        run(body)


async def only_the_gateway_misses_it(swarm: Swarm, name: str) -> None:
    swarm.faults.partition(["gateway"], ["a"])


def test_a_chain_that_makes_progress_is_not_replaced(whole: Summary) -> None:
    async def body(world: World) -> None:
        swarm, summary, gap = await interrupted(world, only_the_gateway_misses_it)
        assert same(summary, swarm, whole)
        assert swarm.times[-1] - swarm.times[0] > 6
        assert len(swarm.routes) == 1 and gap < 1

    run(body)


# On fakes.


class Still:
    """Two stages and a spare of the second; after a while nothing moves for some seconds."""

    def __init__(self, seconds: float) -> None:
        self.swarm = FakeSwarm((2, 4))
        self.first, self.second = self.swarm.stages
        self.spare = Node(self.swarm, 77, self.second.parts)
        self.seconds = seconds
        self.routes: list[Routed] = []
        self.tokens: tuple[int, ...] = ()

    async def run(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        with trio.fail_after(200):
            await self.swarm.run(lambda _: self._run(meanwhile))

    async def _run(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        wire = self.swarm.wire
        wire.delay = 0.1
        async with trio.open_nursery() as nursery:
            await nursery.start(self.spare.stage.run)
            nursery.start_soon(self.ask)
            await trio.sleep(1.15)
            self.swarm.nodes.append(self.spare)
            wire.delay = self.seconds
            self.swarm.client.endpoint.hush(self.second.peer)
            await trio.sleep(0.15)
            wire.delay = 0.1
            await meanwhile()
            while self.swarm.client.gateway.sessions:  # noqa: ASYNC110
                await trio.sleep(0.1)
            await trio.sleep(0.1)
            for node in (self.first, self.second, self.spare):
                if node.peer not in self.swarm.wire.endpoints:
                    continue
                assert node.stage.sessions == 0 and node.engine.states == {}
            nursery.cancel_scope.cancel()

    async def ask(self) -> None:
        request = GenerateRequest(model="m", prompt="hello", raw=True, max_tokens=8)
        summary = await self.swarm.client.gateway.generate(request, self._emit)
        self.tokens = summary.token_ids

    async def _emit(self, event: GatewayEvent) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(event, Routed):
            self.routes.append(event)

    @property
    def is_right(self) -> bool:
        return list(self.tokens) == self.swarm.expected([ord(letter) for letter in "hello"], 8)


@pytest.mark.trio
async def test_the_chain_stays_if_the_replica_did_not_start(autojump_clock: object) -> None:
    still = Still(30)
    still.spare.engine.kv_tokens = 0

    async def meanwhile() -> None:
        await trio.sleep(20)
        assert still.spare.peer in still.swarm.client.gateway.avoided()
        assert still.second.stage.sessions == still.first.stage.sessions == 1
        still.swarm.client.endpoint.hear(still.second.peer)

    await still.run(meanwhile)
    assert still.is_right and len(still.routes) == 1


@pytest.mark.trio
async def test_the_chain_stays_if_it_continues_before_the_replica_starts(
    autojump_clock: object,
) -> None:
    still = Still(6)
    opening = still.spare.engine.opening = trio.Event()

    async def meanwhile() -> None:
        await trio.sleep(5)
        assert still.spare.stage.sessions == 1
        still.swarm.client.endpoint.hear(still.second.peer)
        await trio.sleep(2)
        opening.set()

    await still.run(meanwhile)
    assert still.is_right and len(still.routes) == 1


@pytest.mark.trio
async def test_the_replica_takes_over_and_the_quiet_stage_is_closed(
    autojump_clock: object,
) -> None:
    still = Still(6)

    async def meanwhile() -> None:
        await trio.sleep(4.5)
        assert still.spare.stage.sessions == still.first.stage.sessions == 1

    await still.run(meanwhile)
    assert still.is_right and len(still.routes) == 2
    closed = [post[1] for post in still.swarm.wire.posts if post[2] == "session.close"]
    # The spare cannot copy states, so it has refused to stand by before.
    assert [peer for peer in closed if peer != still.spare.peer] == [still.second.peer]


@pytest.mark.trio
@pytest.mark.parametrize("others", [0, 1])
async def test_a_slow_stage_is_replaced_unless_it_computes_for_others(
    autojump_clock: object, others: int
) -> None:
    still = Still(0.1)
    second, client = still.second, still.swarm.client

    async def body(_: FakeSwarm) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(still.spare.stage.run)
            still.swarm.wire.delay = 0.02
            nursery.start_soon(still.ask)
            await trio.sleep(0.3)
            if others:
                nursery.start_soon(still.ask)
                await trio.sleep(0.5)
            still.swarm.nodes.append(still.spare)
            second.engine._compute = lambda *_: None  # type: ignore[method-assign]
            await trio.sleep(10)
            assert bool(still.spare.stage.sessions or still.is_right) is not bool(others)
            await trio.sleep(100)
            assert still.is_right and client.gateway.sessions == 0
            nursery.cancel_scope.cancel()

    await still.swarm.run(body)


@pytest.mark.trio
async def test_a_stage_that_becomes_quiet_while_opening_is_not_waited_for(
    autojump_clock: object,
) -> None:
    still = Still(0.1)
    still.swarm.nodes.append(still.spare)
    never = trio.Event()
    for node in (still.second, still.spare):
        node.engine.opening = never
    client = still.swarm.client

    async def body(_: FakeSwarm) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(still.spare.stage.run)
            nursery.start_soon(still.ask)
            await trio.sleep(1)
            (asked,) = (each for each in (still.second, still.spare) if each.stage.sessions)
            other = still.spare if asked is still.second else still.second
            other.engine.opening = None
            client.endpoint.hush(asked.peer)
            await trio.sleep(1)
            assert still.is_right and trio.current_time() < 3
            never.set()
            nursery.cancel_scope.cancel()

    await still.swarm.run(body)


@pytest.mark.trio
async def test_a_replica_that_refuses_is_not_the_last(autojump_clock: object) -> None:
    still = Still(20)
    full = [Node(still.swarm, number, still.second.parts) for number in (71, 74)]
    for node in full:
        node.engine.kv_tokens = 0

    async def meanwhile() -> None:
        still.swarm.nodes += full
        client = still.swarm.client
        del still.swarm.wire.endpoints[still.second.peer]
        client.endpoint.lose(still.second.peer, "silent")
        await trio.sleep(0.1)
        assert {node.peer for node in full} & set(client.gateway.avoided())
        assert len(still.routes) == 2

    await still.run(meanwhile)
    assert still.is_right


@pytest.mark.trio
async def test_reports_of_quiet_neighbours_are_bounded(autojump_clock: object) -> None:
    """However often they report, and whichever peer they name."""
    still = Still(20)

    async def meanwhile() -> None:
        session = still.swarm.session
        link = still.first.endpoint.link(still.swarm.client.peer)
        assert link is not None
        for number in range(100):
            named = (peer_of(number), still.first.peer, still.second.peer)[number % 3]
            link.deliver("session.quiet", Quiet(session, 1, named, True).header())
        link.deliver("session.quiet", Quiet(session, 1, named, False).header())

    await still.run(meanwhile)
    assert still.is_right


@pytest.mark.trio
@pytest.mark.parametrize("lost", ["first", "second"])
async def test_of_two_stages_that_lost_each_other_the_one_with_a_replica_is_replaced(
    autojump_clock: object, lost: str
) -> None:
    still = Still(20)

    async def meanwhile() -> None:
        still.swarm.client.endpoint.hear(still.second.peer)
        first, second = still.first, still.second
        teller, named = (second, first) if lost == "first" else (first, second)
        link = teller.endpoint.link(still.swarm.client.peer)
        assert link is not None
        failed = Failed(still.swarm.session, 1, "stage-lost", "the link ended: silent", named.peer)
        link.deliver("session.failed", failed.header())

    await still.run(meanwhile)
    assert still.is_right
    assert [route.stages[1].peer for route in still.routes] == [
        still.second.peer,
        still.spare.peer,
    ]

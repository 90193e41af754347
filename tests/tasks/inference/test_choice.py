"""A gateway asks replicas for their load, and takes the one that answers first, or none."""

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from shoal.state.membership.record import LinkSpeed, MemberRecord
from shoal.state.membership.roster import tag_of
from shoal.tasks.defaults import MEMORY_PATIENCE, PROBE_TIMEOUT
from shoal.tasks.engine.interface import Parts
from shoal.tasks.errors import Overloaded, SessionError
from shoal.tasks.inference.choice import Choice
from shoal.tasks.inference.gateway import GatewayEvent, GenerateRequest, Routed, Summary
from shoal.tasks.inference.generation import Model
from shoal.tasks.routing.defaults import ADMISSION_WAIT, PROBES_OF_REQUEST
from shoal.tasks.routing.paths import Hop
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Call, Refusal, Reply
from tests.tasks.fake_swarm import ROOT, FakeSwarm, Node

WHOLE = Parts(True, 0, 2, True)
Body = Callable[[FakeSwarm], Awaitable[None]]


def replicas(count: int) -> FakeSwarm:
    """Return a swarm with `count` nodes that have the whole model, and a client."""
    swarm = FakeSwarm((2,))
    more = [Node(swarm, 50 + number, WHOLE) for number in range(count - 1)]
    swarm.stages += more
    swarm.nodes += more
    return swarm


async def run(swarm: FakeSwarm, body: Body) -> None:
    with trio.fail_after(600):
        await swarm.run(body)
    swarm.assert_free()


async def ask(swarm: FakeSwarm, prompt: str = "hello", tokens: int = 8) -> tuple[PeerId, Summary]:
    """Return the stage that answered, and the answer."""
    stages: list[PeerId] = []

    async def emit(event: GatewayEvent) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(event, Routed):
            stages.append(event.stages[0].peer)

    request = GenerateRequest(model="m", prompt=prompt, raw=True, max_tokens=tokens)
    summary = await swarm.client.gateway.generate(request, emit)
    return stages[-1], summary


def say(node: Node, **load: object) -> None:
    """Have a stage answer probes with this load."""
    load = {"room": 10**6, "sessions": 0, "running": 0, "waiting": 0} | load
    node.endpoint.handlers["stage.probe"] = lambda call: Reply(dict(load))


def probes(swarm: FakeSwarm) -> int:
    return sum(method == "stage.probe" for _, _, method in swarm.wire.calls)


@pytest.mark.trio
async def test_predictions_about_answers_are_compared_with_them(autojump_clock: object) -> None:
    async def body(swarm: FakeSwarm) -> None:
        errors, swarm.wire.delay = swarm.client.gateway.choice.errors, 0.01
        assert errors.first.value.samples == 0
        for _ in range(12):
            await ask(swarm)
        assert errors.first.value.samples == errors.token.value.samples == 12
        assert errors.first.value.mean < 1  # no half second for a stage that was not asked
        early = errors.token.value.mean
        for _ in range(40):
            await ask(swarm)
        assert errors.token.value.mean < max(early / 2, 0.05)
        stage = swarm.stages[0].peer
        assert errors.peers.error(stage).samples == 51
        assert errors.peers.error(stage).mean < 0.5

    await run(replicas(1), body)


@pytest.mark.trio
async def test_a_request_goes_to_the_replica_with_the_shortest_wait(autojump_clock: object) -> None:
    swarm = replicas(3)

    async def body(_: FakeSwarm) -> None:
        for free in swarm.stages:
            for node in swarm.stages:
                say(node, wait=0.1 if node is free else 5.0)
            await trio.sleep(10)
            peer, _summary = await ask(swarm)
            assert peer == free.peer

    await run(swarm, body)


@pytest.mark.trio
async def test_at_most_four_are_asked_and_none_without_a_choice(autojump_clock: object) -> None:
    many, one = replicas(9), replicas(1)

    async def body(swarm: FakeSwarm) -> None:
        await ask(swarm)

    await run(many, body)
    await run(one, body)
    assert (probes(many), probes(one)) == (PROBES_OF_REQUEST, 0)


@pytest.mark.trio
async def test_a_silent_replica_delays_one_request_and_not_the_next(autojump_clock: object) -> None:
    swarm = replicas(2)

    async def never(_call: Call) -> Reply:
        await trio.sleep_forever()
        raise AssertionError

    swarm.stages[0].endpoint.handlers["stage.probe"] = never

    async def body(_: FakeSwarm) -> None:
        for limit in (PROBE_TIMEOUT, 0.0):
            began = trio.current_time()
            peer, _summary = await ask(swarm)
            assert peer == swarm.stages[1].peer
            assert trio.current_time() - began <= limit + 0.1

    await run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize(
    "lie",
    [
        {"wait": math.nan},
        {"wait": -5.0},
        {"wait": math.inf},
        {"cached": -1},
        {"back": "never"},
        {"room": None},
    ],
)
async def test_a_malformed_reply_is_no_reply(
    autojump_clock: object, lie: dict[str, object]
) -> None:
    swarm = replicas(2)
    say(swarm.stages[0], **lie)
    say(swarm.stages[1], wait=3.0)

    async def body(_: FakeSwarm) -> None:
        peer, summary = await ask(swarm)
        assert peer == swarm.stages[1].peer
        assert summary.tokens == 8

    await run(swarm, body)


@pytest.mark.trio
async def test_a_cancelled_request_is_not_overdue(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = replicas(2)
    for node in swarm.stages:
        monkeypatch.setattr(node.engine, "submit", lambda span: None)  # it computes for long
    beliefs = swarm.client.gateway.choice.router.beliefs

    async def body(_: FakeSwarm) -> None:
        with trio.move_on_after(5):
            await ask(swarm)
        assert [each.open for each in beliefs.known.values()] == [(), ()]

    await run(swarm, body)


@pytest.mark.trio
async def test_a_replica_that_refuses_probes_is_a_last_resort(autojump_clock: object) -> None:
    swarm = replicas(2)
    swarm.stages[0].endpoint.handlers["stage.probe"] = lambda call: Refusal("busy", "too often")

    async def body(_: FakeSwarm) -> None:
        peer, _summary = await ask(swarm)
        assert peer == swarm.stages[1].peer

    await run(swarm, body)


@pytest.mark.trio
async def test_a_prompt_goes_where_its_beginning_was_computed(autojump_clock: object) -> None:
    swarm = replicas(4)
    text = "a prompt that is longer than 256 bytes " * 10

    async def body(_: FakeSwarm) -> None:
        homes = {}
        for number in range(4):
            homes[number], _summary = await ask(swarm, f"{number} {text}")
        for number in range(4):
            await trio.sleep(1)
            peer, _summary = await ask(swarm, f"{number} {text} and its continuation")
            assert peer == homes[number]

    await run(swarm, body)


@pytest.mark.trio
async def test_a_queue_that_costs_more_than_computing_again_is_left(autojump_clock: object) -> None:
    swarm = replicas(2)

    async def body(_: FakeSwarm) -> None:
        say(swarm.stages[0], wait=2.0, cached=900)
        say(swarm.stages[1], wait=0.0)
        peer, _summary = await ask(swarm, "x" * 1000)
        assert peer == swarm.stages[1].peer

    await run(swarm, body)


@pytest.mark.trio
async def test_a_request_is_refused_if_all_queues_are_too_long(autojump_clock: object) -> None:
    swarm = replicas(2)
    for node, wait in zip(swarm.stages, (1.5, 2.0), strict=True):
        say(node, wait=wait * ADMISSION_WAIT)

    async def body(_: FakeSwarm) -> None:
        with pytest.raises(Overloaded) as caught:
            await ask(swarm)
        assert caught.value.retry_s == math.ceil(1.5 * ADMISSION_WAIT)
        assert swarm.opens(swarm.stages) == 0
        say(swarm.stages[1], wait=0.0)
        await trio.sleep(5)
        assert (await ask(swarm))[1].tokens == 8

    await run(swarm, body)


@pytest.mark.trio
async def test_a_thousand_requests_at_a_node_with_room_for_ten_are_all_answered(
    autojump_clock: object,
) -> None:
    """Ten run, some wait for their turn, and the others are told soon when to come back."""
    swarm = replicas(1)
    (node,) = swarm.stages
    node.serve(WHOLE, kv_tokens=10 * 112)  # 96 positions and what a text grows by
    swarm.wire.delay = 0.01
    outcomes: Counter[str] = Counter()
    seconds: list[int] = []
    refused_at: list[float] = []

    async def one(number: int) -> None:
        try:
            _, summary = await ask(swarm, "a prompt of 30 bytes, or more", tokens=50)
            outcomes[f"answered {summary.tokens}"] += 1
        except Overloaded as refusal:
            outcomes["overloaded"] += 1
            seconds.append(refusal.retry_s)
            refused_at.append(trio.current_time() - began)
        except SessionError as error:
            outcomes[error.code] += 1

    began = trio.current_time()

    async def body(_: FakeSwarm) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(one, number)

    await run(swarm, body)
    assert sum(outcomes.values()) == 1000
    assert outcomes["overloaded"] > 800
    assert outcomes["answered 50"] >= 10
    assert sum(count for name, count in outcomes.items() if name == "no-memory") < 50
    assert max(refused_at) < MEMORY_PATIENCE
    assert sorted(refused_at)[500] < 2.0
    assert min(seconds) > MEMORY_PATIENCE and max(seconds) > 2 * min(seconds)
    assert swarm.opens(swarm.stages) < 3000
    assert probes(swarm) < 200


def with_own_replica() -> FakeSwarm:
    """Return a swarm in which the asking node has the whole model, like two others."""
    swarm = replicas(3)
    swarm.client = swarm.stages[0]
    return swarm


@pytest.mark.trio
async def test_an_idle_replica_on_this_node_answers_without_asking_others(
    autojump_clock: object,
) -> None:
    async def body(swarm: FakeSwarm) -> None:
        own = swarm.client.peer
        stage, _ = await ask(swarm)
        asked = [peer for _, peer, method in swarm.wire.calls if method == "stage.probe"]
        assert stage == own and not set(asked) - {own}
        load = {"room": 10**6, "sessions": 0, "running": 0, "waiting": 0, "wait": 30.0}
        swarm.client.courier.handle("stage.probe", lambda call: Reply(dict(load)))
        await ask(swarm)
        asked = [peer for _, peer, method in swarm.wire.calls if method == "stage.probe"]
        assert set(asked) - {own}

    await run(with_own_replica(), body)


def test_a_link_that_nobody_reports_is_guessed_by_third_members() -> None:
    """The gateway is 60 ms from both ends, so that alone the link could have 0 to 120 ms."""
    ends = [PeerId(name) for name in "abc"]
    trips = ({"c": 30.0}, {"c": 50.0}, {"a": 30.0, "b": 50.0})
    members = {
        peer: MemberRecord(peer, 1, links=tuple(LinkSpeed(tag_of(PeerId(o)), t) for o, t in said))
        for peer, said in zip(ends, (each.items() for each in trips), strict=True)
    }
    courier = SimpleNamespace(peer=PeerId("own"), round_trip=lambda peer: 0.06)
    directory = SimpleNamespace(members=lambda: members)
    host, chains = SimpleNamespace(now=lambda: 0.0), SimpleNamespace(avoided=lambda: ())
    choice = Choice(*cast(Any, (host, courier, directory, chains)))
    model = cast(Model, SimpleNamespace(root=ROOT, arch=None))
    near, far, third = (Hop(peer, Parts(True, 0, 0, True), "float32") for peer in ends)

    assert choice.token_s((near, third), model) == pytest.approx(0.03)
    assert choice.token_s((near, far), model) == pytest.approx((0.02 + 0.08) / 2)
    assert not choice.knows((near, far)), "an answer in progress moves to no guess"

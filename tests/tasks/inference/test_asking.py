"""Tests of requests for a model that no chain serves: the gateway asks nodes to load it."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest
import trio

from shoal.state.directory import Directory
from shoal.tasks.defaults import ASK_AGAIN, LOAD_PATIENCE, NODES_ASKED
from shoal.tasks.engine.interface import Parts
from shoal.tasks.errors import NoRoute, Overloaded
from shoal.tasks.inference.conversation.asking import Asking
from shoal.transport.link.calls import Call, Refusal, Reply
from tests.tasks.fake_swarm import FakeModels, FakeSwarm, Node
from tests.tasks.inference.test_gateway import _generate, _run


def lacking() -> FakeSwarm:
    """Return a swarm whose last stage is not published."""
    swarm = FakeSwarm((2, 4, 6))
    swarm.stages[2].parts = None
    return swarm


def publish(swarm: FakeSwarm) -> None:
    """Publish the last stage."""
    swarm.stages[2].parts = Parts(False, 4, 6, True)
    swarm.version += 1
    swarm._news.set()
    swarm._news = trio.Event()


def answered(swarm: FakeSwarm, *replies: Callable[[Call], Any]) -> list[str]:
    """Have the gateway's node and then the stages answer `shard.ask`, the last reply repeated.
    Return the list of the peers that were asked."""
    asked = list[str]()
    nodes = [swarm.client, *swarm.stages]
    for number, node in enumerate(nodes):
        reply = replies[min(number, len(replies) - 1)]

        def handler(call: Call, node: Node = node, reply: Callable[[Call], Any] = reply) -> Any:
            asked.append(node.peer)
            return reply(call)

        node.courier.handle("shard.ask", handler)
    return asked


def says(code: str, back: object = 0.0) -> Callable[[Call], Reply]:
    return lambda call: Reply({"code": code, "back": back})


@pytest.mark.trio
async def test_a_request_waits_for_a_node_that_loads(autojump_clock: object) -> None:
    swarm = lacking()

    async def body(_: FakeSwarm) -> None:
        asked = answered(swarm, says("unasked"), says("loading"))
        began = trio.current_time()

        async def load() -> None:
            await trio.sleep(3 * ASK_AGAIN)
            publish(swarm)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            assert (await _generate(swarm)).tokens == 8
        assert 3 * ASK_AGAIN <= trio.current_time() - began < 3 * ASK_AGAIN + 1
        assert asked[0] == swarm.client.peer and len(asked) <= 2 * 4

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_node_that_only_promises_holds_a_request_for_minutes(
    autojump_clock: object,
) -> None:
    swarm = lacking()

    async def body(_: FakeSwarm) -> None:
        answered(swarm, says("loading"))
        began = trio.current_time()
        with pytest.raises(NoRoute):
            await _generate(swarm)
        assert LOAD_PATIENCE <= trio.current_time() - began <= LOAD_PATIENCE + ASK_AGAIN

    await swarm.run(body)


@pytest.mark.trio
async def test_the_client_is_told_when_the_first_node_has_room(autojump_clock: object) -> None:
    swarm = lacking()

    async def body(_: FakeSwarm) -> None:
        asked = answered(swarm, says("full", 50.0), says("full", 7.5), says("no-fit"))
        with pytest.raises(Overloaded) as raised:
            await _generate(swarm)
        assert raised.value.retry_s == 8 and 2 <= len(asked) <= NODES_ASKED

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize(
    "reply",
    [
        says("come back"),
        says("full", -1.0),
        says("full", float("inf")),
        says("full", "soon"),
        lambda call: Refusal("no-handler", "an old node"),
        lambda call: Reply({}),
    ],
)
async def test_what_peers_say_is_checked(
    reply: Callable[[Call], Any], autojump_clock: object
) -> None:
    swarm = lacking()

    async def body(_: FakeSwarm) -> None:
        asked = answered(swarm, reply)
        with pytest.raises(NoRoute):
            await _generate(swarm)
        assert asked

    await _run(swarm, body)


@pytest.mark.trio
async def test_no_node_is_asked_for_a_model_that_members_serve(autojump_clock: object) -> None:
    swarm = FakeSwarm((6,))
    swarm.client.endpoint.hush(swarm.stages[0].peer)

    async def body(_: FakeSwarm) -> None:
        asked = answered(swarm, says("loading"))
        with pytest.raises(NoRoute):
            await _generate(swarm)
        assert not asked

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_node_that_is_asked_too_often_is_asked_again(autojump_clock: object) -> None:
    swarm = lacking()

    async def body(_: FakeSwarm) -> None:
        times = list[float]()

        def busy(call: Call) -> Refusal:
            times.append(trio.current_time())
            if len(times) == 12:
                publish(swarm)
            return Refusal("busy", "asked too often")

        answered(swarm, says("full", 50.0), busy)
        assert (await _generate(swarm)).tokens == 8
        assert 2 * ASK_AGAIN <= times[-1] - times[0] <= 12 * ASK_AGAIN

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_node_that_is_always_asked_too_often_holds_a_request_for_minutes(
    autojump_clock: object,
) -> None:
    swarm = lacking()

    async def body(_: FakeSwarm) -> None:
        answered(swarm, lambda call: Refusal("busy", "asked too often"))
        began = trio.current_time()
        with pytest.raises(NoRoute):
            await _generate(swarm)
        assert LOAD_PATIENCE <= trio.current_time() - began <= LOAD_PATIENCE + ASK_AGAIN

    await swarm.run(body)


@pytest.mark.trio
async def test_requests_for_one_model_share_the_questions(autojump_clock: object) -> None:
    swarm = lacking()

    async def body(_: FakeSwarm) -> None:
        asked = answered(swarm, says("loading"))

        async def generate(after: float) -> None:
            await trio.sleep(after)
            assert (await _generate(swarm)).tokens == 8

        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(generate, number * ASK_AGAIN / 12)
            await trio.sleep(4 * ASK_AGAIN + 0.5)
            assert 4 <= len(asked) <= 10
            publish(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_shared_question_goes_on_when_the_request_that_asked_it_ends(
    autojump_clock: object,
) -> None:
    swarm = lacking()

    async def body(_: FakeSwarm) -> None:
        courier, calls = swarm.client.courier, list[trio.CancelScope]()

        async def slow(peer: str, method: str, header: Any, **more: Any) -> Any:
            await trio.sleep(1)
            return Reply({"code": "full", "back": 9.0})

        asking = Asking(swarm.host, courier, cast(Directory, swarm))
        courier.call = slow  # type: ignore[method-assign, assignment]
        raised = list[Overloaded]()

        async def comes() -> None:
            with trio.CancelScope() as scope:
                calls.append(scope)
                try:
                    async with FakeModels(swarm.layers).use("m") as model:
                        await asking.comes(model)
                except Overloaded as error:
                    raised.append(error)

        async with trio.open_nursery() as nursery:
            for _number in range(3):
                nursery.start_soon(comes)
                await trio.sleep(0.1)
            calls[0].cancel()
        assert [each.retry_s for each in raised] == [9, 9] and not asking._open

    await _run(swarm, body)


def busy(call: Call) -> Any:
    return Refusal("busy", "asked too often")


@pytest.mark.trio
@pytest.mark.parametrize("later", [False, True])
async def test_a_node_that_has_broken_its_promise_is_asked_last(
    autojump_clock: object, later: bool
) -> None:
    """Also if it says later that it was asked too often."""
    swarm = lacking()
    liar = swarm.stages[0].peer

    async def body(_: FakeSwarm) -> None:
        full, times = says("full", 9.0), [0]

        def promise(call: Call) -> Any:
            times[0] += 1
            return (busy if later and times[0] > 1 else says("loading"))(call)

        asked = answered(swarm, full, promise, full)
        with pytest.raises(NoRoute):
            await _generate(swarm)
        assert liar in asked
        for _turn in range(4):
            asked.clear()
            with trio.move_on_after(1), suppress(Overloaded):
                await _generate(swarm)
            assert asked[-1] == liar and len(asked) == 4
            await trio.sleep(ASK_AGAIN)

    await swarm.run(body)


@pytest.mark.trio
async def test_a_node_that_was_asked_too_often_has_broken_no_promise(
    autojump_clock: object,
) -> None:
    swarm = lacking()
    busy_one = swarm.stages[0].peer

    async def body(_: FakeSwarm) -> None:
        answers: list[Callable[[Call], Any]] = [busy]
        full, firsts = says("full", 9.0), 0
        asked = answered(swarm, full, lambda call: answers[0](call), full)
        with pytest.raises(NoRoute):
            await _generate(swarm)
        answers[0] = says("loading")
        for _turn in range(12):
            asked.clear()
            with trio.move_on_after(1), suppress(Overloaded):
                await _generate(swarm)
            assert asked[-1] == busy_one
            firsts += len(asked) < 4  # before nodes that have no room
            await trio.sleep(ASK_AGAIN)
        assert firsts

    await swarm.run(body)


@pytest.mark.trio
async def test_more_memory_than_the_model_needs_makes_no_node_the_first(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm(tuple(range(1, 13)))
    boasts = {stage.peer for stage in swarm.stages[:NODES_ASKED]}
    for stage in swarm.stages:
        stage.memory = 1 << (50 if stage.peer in boasts else 40)
    swarm.stages[-1].parts = None

    async def body(_: FakeSwarm) -> None:
        asked = answered(swarm, says("unasked"))
        for _turn in range(12):
            with pytest.raises(NoRoute):
                await _generate(swarm)
        assert {*asked} - boasts - {swarm.client.peer}

    await swarm.run(body)

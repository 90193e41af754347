"""Tests of requests for a model that no chain serves: the gateway asks nodes to load it."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from shoal.tasks.defaults import ASK_AGAIN, LOAD_PATIENCE, NODES_ASKED
from shoal.tasks.engine.interface import Parts
from shoal.tasks.errors import NoRoute, Overloaded
from shoal.transport.link.calls import Call, Refusal, Reply
from tests.tasks.fake_swarm import FakeSwarm, Node
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
        lambda call: Refusal("busy", "asked too often"),
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

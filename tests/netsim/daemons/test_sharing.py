"""Models of other engines in simulated swarms: a sharer behind a NAT, and gateways elsewhere."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from shoal.state.views.usage import UsageCount
from shoal.tasks.sharing import defaults
from shoal.tasks.sharing.desk import usage_root
from tests.fake_engine import WORDS, Asked, FakeEngine, listing

HOME = LinkSpec(up=PipeSpec(rate=10e6 / 8, delay=0.008), down=PipeSpec(rate=50e6 / 8, delay=0.008))
PORT = 8080
TEXT = "".join(WORDS)


async def swarm(world: World, homes: int = 2) -> tuple[DaemonHandle, list[DaemonHandle]]:
    """Start a public daemon, and others without engines, each behind a router of its own."""
    public = await world.host("public").start(engine=False)
    found = []
    for number in range(homes):
        host = world.host(f"desk{number}", behind=world.gateway(f"home{number}", link=HOME))
        found.append(await host.start(bootstrap=[public], engine=False))
    with trio.fail_after(120):
        for node in found:
            await node.until(lambda status: status["peers"] == homes)
    return public, found


@asynccontextmanager
async def engine(node: DaemonHandle, **more: Any) -> AsyncIterator[FakeEngine]:
    """Run an engine on the computer of a daemon."""
    fake, scope = FakeEngine(PORT, **more), trio.CancelScope()
    ready, ended = trio.Event(), trio.Event()

    async def serve() -> None:
        with scope:
            listener = await node.node.host.listen("127.0.0.1", PORT)
            ready.set()
            async with listener, trio.open_nursery() as nursery:
                while True:
                    nursery.start_soon(fake.serve, await listener.accept())
        ended.set()

    host = node.node.host
    assert isinstance(host, SimulatedHost)
    host.start_soon(serve)
    await ready.wait()
    try:
        yield fake
    finally:
        scope.cancel()
        with trio.move_on_after(1):
            await ended.wait()


async def share(node: DaemonHandle, name: str = "llama", **more: Any) -> Any:
    return await node.ask("share_add", url=f"http://127.0.0.1:{PORT}", name=name, **more)


async def offered(node: DaemonHandle, count: int = 1) -> list[Any]:
    """Wait until a daemon knows `count` shared models, and return them."""
    with trio.fail_after(60):
        status = await node.until(lambda status: len(status["shared"]) == count)
    found: list[Any] = status["shared"]
    return found


async def run(node: DaemonHandle, model: str = "llama", **more: Any) -> Any:
    with trio.fail_after(120):
        return await node.ask("run", model=model, prompt="Hello", **more)


async def used(sharer: DaemonHandle, gateway: DaemonHandle) -> UsageCount:
    """Return what a sharer has counted for a gateway."""
    sharer.node.working.write_usage()
    await trio.sleep(5)
    return sharer.node.state.views.usage.of(gateway.peer)[sharer.peer, usage_root("llama")]


async def test_a_gateway_elsewhere_asks_a_sharer_behind_a_nat(world: World) -> None:
    _, (sharer, gateway) = await swarm(world)
    async with engine(sharer) as fake:
        added = await share(sharer)
        assert [each["name"] for each in added["shares"]] == ["llama"]
        (offer,) = await offered(gateway)
        assert offer["peer"] == sharer.peer and offer["engine"] == "llama.cpp"
        assert offer["called"] == "llama" and offer["context"] == 4096 and not offer["here"]
        answer = await run(gateway, max_tokens=9, temperature=0.5, seed=3)
        assert answer["text"] == TEXT and answer["reason"] == "stop"
        assert answer["shared_by"] == sharer.peer and answer["tokens"] == 3
        (asked,) = fake.asked
        assert asked.body["max_tokens"] == 9 and asked.body["seed"] == 3
        listed = await gateway.ask("models")
        assert [each["name"] for each in listed["shared"]] == ["llama"]
    # The sharer counts the use, under digits that are no root.
    count = await used(sharer, gateway)
    assert (count.requests, count.tokens_in, count.tokens_out) == (1, 7, 3)


async def test_the_sharer_itself_and_the_public_node_use_it_too(world: World) -> None:
    public, (sharer, _) = await swarm(world)
    async with engine(sharer):
        await share(sharer)
        await offered(public)
        for node in (sharer, public):
            answer = await run(node, raw=True)
            assert answer["text"] == TEXT and answer["shared_by"] == sharer.peer


async def test_a_prompt_longer_than_what_leaves_with_the_request_arrives_whole(
    world: World,
) -> None:
    _, (sharer, gateway) = await swarm(world)
    prompt = "".join(f"{number} " for number in range(30_000))
    async with engine(sharer) as fake:
        await share(sharer)
        await offered(gateway)
        with trio.fail_after(120):
            answer = await gateway.ask("run", model="llama", prompt=prompt, raw=True)
        assert answer["text"] == TEXT
        (asked,) = fake.asked
        assert asked.body["prompt"] == prompt


async def test_an_offer_goes_and_comes_with_its_engine_and_survives_a_restart(
    world: World,
) -> None:
    _, (sharer, gateway) = await swarm(world)
    async with engine(sharer):
        await share(sharer)
        await offered(gateway)
    gone = trio.current_time()
    await offered(gateway, 0)
    assert trio.current_time() - gone < 2 * defaults.LOOK
    (own,) = (await sharer.ask("shares"))["shares"]
    assert not own["offered"] and "no engine answers" in own["trouble"]
    with pytest.raises(ControlError) as caught:
        await run(gateway)
    assert caught.value.code == "unknown-model"
    async with engine(sharer):
        await offered(gateway)
        assert (await run(gateway))["text"] == TEXT
    host = sharer.host
    await sharer.stop()
    await offered(gateway, 0)
    sharer = await host.restart()
    async with engine(sharer):
        await offered(gateway)
        assert (await run(gateway))["text"] == TEXT
        await sharer.ask("share_stop", name="llama")
        await offered(gateway, 0)
        assert (await sharer.ask("shares"))["shares"] == []


async def test_a_gateway_that_leaves_stops_the_engine(world: World) -> None:
    async def endless(asked: Asked) -> None:
        await asked.begin()
        while True:
            await asked.words("again ", pause=0.1)

    _, (sharer, gateway) = await swarm(world)
    async with engine(sharer, behave=endless) as fake:
        await share(sharer)
        await offered(gateway)
        with trio.move_on_after(5):
            await run(gateway, max_tokens=100_000)
        await trio.sleep(2)
        assert len(fake.asked) == 1 and fake.running == 0
        assert (await sharer.ask("shares"))["shares"][0]["running"] == 0
        # Work of an answer that was cut counts too.
        count = await used(sharer, gateway)
        assert count.requests == 1 and 20 < count.tokens_out < 80

        # A gateway that loses its power leaves as well.
        async with trio.open_nursery() as nursery:

            async def lost() -> None:
                with pytest.raises((ControlError, OSError, trio.BrokenResourceError)):
                    await run(gateway, max_tokens=100_000)

            nursery.start_soon(lost)
            await trio.sleep(3)
            assert fake.running == 1
            await gateway.host.crash()
        with trio.fail_after(300):
            while fake.running:  # noqa: ASYNC110
                await trio.sleep(1)


async def test_a_model_with_a_root_keeps_its_name(world: World) -> None:
    public, (sharer, gateway) = await swarm(world)
    worker = await world.host("worker").start(bootstrap=[public], model="tiny")
    await worker.serving()
    with trio.fail_after(60):
        await gateway.until(lambda status: any(each["complete"] for each in status["models"]))
    async with engine(sharer):
        await share(sharer, "tiny")
        (offer,) = await offered(gateway)
        assert offer["name"] == "tiny" and offer["called"] == f"tiny@{sharer.peer[:14]}"
        rooted = await run(gateway, "tiny", max_tokens=4)
        assert rooted.get("shared_by") is None and rooted["text"] != TEXT
        for name in (offer["called"], f"tiny@{sharer.peer}"):
            assert (await run(gateway, name))["shared_by"] == sharer.peer
        with pytest.raises(ControlError) as caught:
            await run(gateway, f"tiny@{worker.peer}")
        assert caught.value.code == "unknown-model"


async def test_of_two_sharers_the_idle_one_answers_and_the_other_replaces_it(
    world: World,
) -> None:
    async def slow(asked: Asked) -> None:
        await asked.begin()
        await asked.words(*["x"] * 100, pause=1.0)
        await asked.end()

    _, (one, two, gateway) = await swarm(world, 3)
    async with engine(one, behave=slow) as busy, engine(two) as idle:
        await share(one, at_once=1)
        await share(two)
        await offered(gateway, 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, one, f"llama@{one.peer}")
            await busy.until(1)
            for _ in range(3):
                assert (await run(gateway))["shared_by"] == two.peer
            assert len(busy.asked) == 1 and len(idle.asked) == 3
            nursery.cancel_scope.cancel()

        async def refuse(asked: Asked) -> None:
            await asked.respond(b"", status=500)

        await trio.sleep(1)
        idle.behave, busy.behave = refuse, slow
        busy.behave = idle_words
        for _ in range(2):
            assert (await run(gateway))["shared_by"] == one.peer


async def idle_words(asked: Asked) -> None:
    await asked.begin()
    await asked.words(*WORDS)
    await asked.end()


async def test_what_an_engine_does_not_take_is_refused(world: World) -> None:
    _, (sharer, gateway) = await swarm(world)
    async with engine(sharer, models=listing("llama3.2:latest", owner="library")) as fake:
        await sharer.ask("share_add", url=f"127.0.0.1:{PORT}")
        (offer,) = await offered(gateway)
        assert offer["called"] == "llama3.2" and offer["context"] == 0
        for more in ({"raw": True}, {"top_k": 5}):
            with pytest.raises(ControlError) as caught:
                await run(gateway, "llama3.2", **more)
            assert caught.value.code == "unsupported"
        bias: dict[str, Any] = {"logit_bias": [{"token": 1, "bias": 1.0}]}
        penalties = {"presence_penalty": 1.0}, {"repetition_penalty": 1.1}
        for rules in ({"min_p": 0.1}, *penalties, bias):
            with pytest.raises(ControlError, match="take no") as caught:
                await run(gateway, "llama3.2", **rules)
            assert caught.value.code == "unsupported"
        with pytest.raises(ControlError) as caught:
            await run(gateway, "llama3.2", adapter="poet")
        assert caught.value.code == "unsupported" and not fake.asked
        assert (await run(gateway, "llama3.2"))["text"] == TEXT

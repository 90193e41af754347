"""A thousand requests at once to a node that has room for ten."""

from collections import Counter

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from shoal.tasks.defaults import MEMORY_PATIENCE
from shoal.tasks.engine.interface import Parts
from shoal.tasks.inference.messages import Probe, StageLoad

PROMPT = "Once upon a time"
TOKENS = 24
MEMORY = 21_837_000  # bytes; the weights, and KV for about ten requests


async def ask(asker: DaemonHandle) -> str:
    """Return the text of an answer, or the code of its error in brackets."""
    try:
        said = await asker.generate(PROMPT, raw=True, max_tokens=TOKENS)
    except ControlError as error:
        return f"[{error.code}]"
    assert said["tokens"] == TOKENS
    return str(said["text"])


@pytest.mark.ci
def test_a_thousand_requests_get_the_text_or_a_code_and_the_daemon_lives() -> None:
    world = World(seed=1)

    async def main() -> None:
        server = await world.host("server").start(memory=MEMORY)
        await server.serving()
        (shard,) = server.node.directory.own().shards
        assert shard.kv_tokens_free < 11 * 48
        askers = [
            await world.host(f"asker{number}").start(bootstrap=[server], engine=False)
            for number in range(20)
        ]
        for asker in askers:
            await asker.until(lambda status: status["peers"] > 0)
            text = await ask(asker)
        results = Counter[str]()
        began = trio.current_time()

        async def one(asker: DaemonHandle) -> None:
            results[await ask(asker)] += 1

        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(one, askers[number % len(askers)])
        assert trio.current_time() - began < 2 * MEMORY_PATIENCE, "no request waits for long"
        assert results.keys() <= {text, "[overloaded]", "[no-memory]"}
        assert results[text] > 250, results
        assert await ask(askers[0]) == text and server.node.stage.sessions == 0

    world.run(main)


def test_a_probe_tells_the_load_of_this_moment() -> None:
    world = World(seed=1)

    async def main() -> None:
        server = await world.host("server").start()
        await server.serving()
        asker = await world.host("asker").start(bootstrap=[server], engine=False)
        await asker.until(lambda status: status["peers"] > 0)
        own = server.node.directory.own()
        (shard,) = own.shards
        parts = Parts(shard.embedding, shard.start, shard.stop, shard.head)
        question = Probe(shard.root, parts, "float32").header()

        async def load() -> StageLoad:
            courier = asker.node.network.courier
            return StageLoad.parse(
                (await courier.call(own.peer, "stage.probe", question, timeout=5)).header
            )

        idle, during = await load(), list[StageLoad]()
        assert (idle.sessions, idle.running, idle.waiting) == (0, 0, 0) and idle.room > 0
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(ask, asker)
            with trio.fail_after(60):
                while (now := await load()).sessions or not during:
                    during += [now] if now.sessions else []
                    await trio.sleep(0.04)  # stages are asked 32 times a second at most
        assert all(each.room < idle.room for each in during)
        assert max(each.sessions for each in during) > 4
        assert any(0 < each.running <= each.sessions and each.waiting for each in during)
        assert (await load()).room == idle.room

    world.run(main)

"""A thousand requests at once to a node that has room for ten."""

from collections import Counter

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from shoal.tasks.defaults import MEMORY_PATIENCE

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

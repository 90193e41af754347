"""Whole daemons with more requests than their KV memory has room for to their ends."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World

MIB = 2**20
SMALL = 21771264  # bytes that the embedded model needs, with KV for 512 positions
PROMPTS = [f"Once upon a time number {number} there was" for number in range(12)]
TOKENS = 200


def run(body: Callable[[World], Awaitable[Any]], seed: int = 1) -> Any:
    world = World(seed=seed)

    async def main() -> Any:
        with trio.fail_after(3000):
            return await body(world)

    return world.run(main)


async def texts(asker: DaemonHandle, prompts: list[str], *, together: bool) -> dict[str, str]:
    """Return the answers by prompt, asked for all at once or one after the other."""
    found = dict[str, str]()

    async def ask(prompt: str) -> None:
        reply = await asker.generate(prompt, max_tokens=TOKENS, raw=True)
        found[prompt] = str(reply["text"])

    async with trio.open_nursery() as nursery:
        for prompt in prompts:
            if together:
                nursery.start_soon(ask, prompt)
            else:
                await ask(prompt)
    return found


def preemptions(daemon: DaemonHandle, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the codes with which sessions at this daemon's stages fail from now on."""
    stage, codes = daemon.node.stage, list[str]()
    fail = stage.endings.fail

    def noted(session: Any, code: str, message: str, **more: Any) -> None:
        codes.append(code)
        fail(session, code, message, **more)

    monkeypatch.setattr(stage.endings, "fail", noted)
    return codes


@pytest.mark.ci
@pytest.mark.parametrize("stages", [1, 3])
def test_twelve_answers_where_two_fit_are_complete_and_right(
    stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(world: World) -> None:
        first = await world.host("n0").start(memory=SMALL if stages == 1 else 10 * MIB)
        nodes = [first]
        for number in range(1, stages):
            nodes.append(await world.host(f"n{number}").start(memory=10 * MIB, bootstrap=[first]))
        for node in nodes:
            await node.serving()
        await trio.sleep(20)
        some = PROMPTS if stages == 1 else PROMPTS[:8]
        alone = await texts(first, some, together=False)
        codes = [preemptions(node, monkeypatch) for node in nodes]
        assert await texts(first, some, together=True) == alone
        if stages == 1:
            assert "preempted" in codes[0]
        assert {code for each in codes for code in each} <= {"preempted"}
        for node in nodes:
            assert node.node.stage.sessions == 0

    run(body)

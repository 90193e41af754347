"""Engines that crash while they compute an answer: the client sees a pause, and the same text."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from shoal.tasks.defaults import CRASHES
from tests.netsim.daemons.test_daemon import PROMPT, run, three

TOKENS = 40
BACK_S = 5.0  # a worker is back within this time, plus loading


async def answer(
    asker: DaemonHandle,
    crashes: Mapping[float, DaemonHandle] | None = None,
    **more: Any,
) -> tuple[str, float]:
    """Generate a text and return it with the seconds that it took.

    `crashes` has the engines that crash, by the seconds after the start of the request.
    """
    began = trio.current_time()
    async with trio.open_nursery() as nursery:

        async def crash(seconds: float, daemon: DaemonHandle) -> None:
            await trio.sleep(seconds)
            daemon.engine.crash()

        for seconds, daemon in (crashes or {}).items():
            nursery.start_soon(crash, seconds, daemon)
        reply = await asker.generate(PROMPT, max_tokens=TOKENS, raw=True, **more)
        took = trio.current_time() - began
    assert reply["tokens"] == TOKENS
    return str(reply["text"]), took


def shards(daemon: DaemonHandle) -> int:
    """Return how many shards the daemon publishes."""
    return len(daemon.node.directory.own().shards)


def serving(daemon: DaemonHandle) -> bool:
    """Return whether the daemon's engine has its shard."""
    return daemon.node.compute.serving.phase == "serving"


@pytest.mark.parametrize("part", [0.02, 0.3, 0.6, 0.95])
def test_a_crash_costs_an_answer_a_pause(part: float) -> None:
    async def body(world: World) -> None:
        daemon = await world.host("alice").start()
        await daemon.serving()
        for _ in range(4):  # starts its text process; later answers are guessed from these
            await answer(daemon)
        text, took = await answer(daemon)
        again, longer = await answer(daemon, {part * took: daemon})
        assert again == text
        assert took < longer < 2 * took + BACK_S

    run(body)


@pytest.mark.ci
def test_any_stage_of_a_chain_may_crash_also_twice() -> None:
    async def body(world: World) -> None:
        a, b, asker = await three(world)
        await answer(asker)
        text, took = await answer(asker)
        half, repair = 0.5 * took, 1.0
        for crashes in (
            {half: a},
            {half: b},
            {half: a, half + 1e-3: b},
            {half: b, half + repair: a},  # while the gateway waits, or sends the tokens again
            {half: b, half + 0.3: b},  # while it loads
        ):
            again, longer = await answer(asker, crashes)
            assert again == text
            assert longer < 2 * took + len(crashes) * BACK_S
            await trio.sleep(5)

    run(body)


PENALTIES = {"frequency_penalty": 0.5, "repetition_penalty": 1.3}
"""A simulated head's token depends on all tokens that count for these."""


@pytest.mark.parametrize("stages", [1, 2])
def test_penalties_count_the_same_tokens_after_a_crash(stages: int) -> None:
    async def body(world: World) -> None:
        if stages == 1:
            daemon = await world.host("alice").start()
            await daemon.serving()
            computing, asker = [daemon], daemon
        else:
            *computing, asker = await three(world)
        plain, _ = await answer(asker)
        answers = [await answer(asker, None, **PENALTIES) for _ in range(5)]
        (text,) = {each for each, _ in answers} - {plain}
        took = min(seconds for _, seconds in answers)  # later ones are guessed from the first
        for part in (0.2, 0.5):
            for daemon in computing:
                again, longer = await answer(asker, {part * took: daemon}, **PENALTIES)
                assert again == text and longer > took
                await trio.sleep(5)

    run(body)


@pytest.mark.ci
def test_other_nodes_see_its_layers_during_a_reload_and_take_none_over() -> None:
    """Otherwise each crash would move layers through the swarm, and gateways find no route."""

    async def body(world: World) -> None:
        a, b, asker = await three(world)
        spare = await world.host("spare").start(bootstrap=[a], model="tiny")
        await spare.until(lambda status: status["peers"] == 3)
        await spare.serving()
        before = spare.node.directory.own().shards
        for _ in range(8):  # several crashes in an hour
            b.engine.crash()
            began = trio.current_time()
            for serves in (False, True):
                while serving(b) is not serves:
                    await trio.sleep(0.01)
                    assert shards(b) == len(asker.node.directory.members()[b.peer].shards) == 1
            assert trio.current_time() - began < BACK_S
            await trio.sleep(20)
        assert spare.node.directory.own().shards == before

    run(body)


def test_a_request_that_crashes_every_engine_is_not_repeated_without_end() -> None:
    async def body(world: World) -> None:
        daemon = await world.host("alice").start()
        await daemon.serving()
        gateway, crashes = daemon.node.compute.gateway, 0

        async def poison() -> None:
            nonlocal crashes
            while True:
                while not gateway.sessions:  # noqa: ASYNC110
                    await trio.sleep(0.001)
                daemon.engine.crash()
                crashes += 1
                while gateway.sessions:  # noqa: ASYNC110
                    await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poison)
            with pytest.raises(ControlError) as refused:
                await daemon.generate(PROMPT, max_tokens=400, raw=True)
            nursery.cancel_scope.cancel()
        assert refused.value.code == "worker-crashed"
        assert "killed by signal 9" in refused.value.message and refused.value.hint
        assert crashes >= CRASHES
        await daemon.serving()
        await answer(daemon)  # and the daemon goes on

    run(body)

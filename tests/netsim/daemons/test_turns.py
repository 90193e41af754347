"""Whole daemons with memory for one model, of which clients ask for two."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.daemon.embedded import embedded_folder
from shoal.node.errors import ControlError
from shoal.tasks.defaults import SLOT_STAY, SLOT_WANTED
from shoal.tasks.engine.interface import LoadShard
from shoal.tasks.serving import asked, turn

MIB = 2**20
ONE = 28 * MIB  # memory for one of the models
PROMPT = "Once upon a time"


def run(body: Callable[[World], Awaitable[Any]], seed: int = 1) -> Any:
    world = World(seed=seed)

    async def main() -> Any:
        with trio.fail_after(9000):
            return await body(world)

    return world.run(main)


async def add(daemon: DaemonHandle, name: str, number: float) -> None:
    """Add a model: `tiny` with another number in its config.json."""
    files, folder = daemon.node.host.files, Path(f"/shoal-{name}")
    files.make_folder(folder)
    for entry in files.list(embedded_folder()):
        data = files.read(embedded_folder() / entry.name, limit=2**25)
        if entry.name == "config.json":
            data = json.dumps({**json.loads(data), "initializer_range": number}).encode()
        files.write(folder / entry.name, data)
    await daemon.ask("model_add", path=str(folder), name=name)


async def alone(world: World, **more: Any) -> DaemonHandle:
    """Return a daemon that serves `tiny`, and has `second` on its disk."""
    daemon = await world.host("a").start(memory=ONE, **more)
    await daemon.serving()
    await add(daemon, "second", 0.5)
    await trio.sleep(30)
    return daemon


async def served(daemon: DaemonHandle) -> list[str]:
    status = await daemon.status()
    shards = [place["shard"] for place in (status["serving"], *status["beside"])]
    return [shard["model"] for shard in shards if shard]


def loads(daemon: DaemonHandle, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the roots that the daemon's engine loads from now on."""
    engine, found = daemon.engine, list[str]()
    load = engine.load

    async def noted(shard: LoadShard, number: int = 0) -> Any:
        found.append(shard.root)
        return await load(shard, number)

    monkeypatch.setattr(engine, "load", noted)
    return found


@pytest.mark.parametrize("here", [True, False])
def test_a_model_that_is_asked_for_takes_the_memory_of_one_that_is_idle(here: bool) -> None:
    async def body(world: World) -> None:
        a = await alone(world)
        asker = a
        if not here:
            asker = await world.host("asker").start(bootstrap=[a], engine=False)
            await asker.until(lambda status: status["peers"] == 1)
        await trio.sleep(SLOT_WANTED)
        assert await served(a) == ["tiny"]
        expected = (await asker.generate(PROMPT, max_tokens=20))["text"]
        with pytest.raises(ControlError) as raised:
            await asker.generate(PROMPT, model="second", max_tokens=2)
        assert raised.value.code == "overloaded"
        assert raised.value.hint == f"try again in {SLOT_WANTED:g} seconds"
        await trio.sleep(SLOT_WANTED)
        assert (await asker.generate(PROMPT, model="second", max_tokens=2))["tokens"] == 2
        assert await served(a) == ["second"]
        (shard,) = a.node.directory.own().shards
        assert {aim.root for aim in a.node.directory.own().aims} == {shard.root}
        await trio.sleep(SLOT_WANTED + 1)
        assert (await asker.generate(PROMPT, max_tokens=20))["text"] == expected
        assert await served(a) == ["tiny"]

    run(body)


@pytest.mark.ci
def test_two_models_that_are_asked_for_all_the_time_take_turns_of_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(world: World) -> None:
        a = await alone(world)
        asker = await world.host("asker").start(bootstrap=[a], engine=False)
        await asker.until(lambda status: status["peers"] == 1)
        found, codes, answers = loads(a, monkeypatch), list[str](), list[str]()

        async def ask(model: str) -> None:
            while True:
                try:
                    await asker.generate(PROMPT, model=model, max_tokens=2)
                    answers.append(model)
                except ControlError as error:
                    codes.append(error.code)
                    await trio.sleep(5)
                else:
                    await trio.sleep(200)  # so that its model is idle long enough in between

        with trio.move_on_after(1800):
            async with trio.open_nursery() as nursery:
                for model in ("tiny", "second"):
                    nursery.start_soon(ask, model)
        assert {"tiny", "second"} == set(answers) and set(codes) == {"overloaded"}
        assert 3 <= len(found) <= 1800 / SLOT_STAY / 2

    run(body)


def test_a_model_in_use_is_never_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but its use keeps the model loaded here."""
    monkeypatch.setattr(asked, "SLOT_WANTED", 0.0)
    monkeypatch.setattr(turn, "SLOT_STAY", 0.0)
    monkeypatch.setattr(turn, "SLOT_STAY_LOADS", 0.0)

    async def body(world: World) -> None:
        a = await alone(world)
        asker = await world.host("asker").start(bootstrap=[a], engine=False)
        await asker.until(lambda status: status["peers"] == 1)
        found, done, tokens = loads(a, monkeypatch), trio.Event(), list[int]()

        async def use() -> None:
            tokens.append((await a.generate(PROMPT, max_tokens=480))["tokens"])
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(use)
            await trio.sleep(0.05)
            with pytest.raises(ControlError) as raised:
                await asker.generate(PROMPT, model="second", max_tokens=2)
            assert raised.value.code == "overloaded" and not done.is_set()
        assert tokens == [480] and not found
        assert (await asker.generate(PROMPT, model="second", max_tokens=2))["tokens"] == 2
        assert len(found) == 1

    run(body)


def test_the_owner_s_model_stays() -> None:
    async def body(world: World) -> None:
        a = await alone(world, model="tiny")
        await trio.sleep(2 * SLOT_WANTED)
        with pytest.raises(ControlError) as raised:
            await a.generate(PROMPT, model="second", max_tokens=2)
        assert raised.value.code == "no-route"
        assert await served(a) == ["tiny"]

    run(body)


@pytest.mark.ci
def test_a_fifth_model_takes_the_slot_that_was_idle_longest() -> None:
    async def body(world: World) -> None:
        a = await world.host("a").start(memory="11GiB")
        await a.serving()
        for number, name in enumerate(("second", "third", "fourth")):
            await add(a, name, 0.5 + number)
            await a.until(lambda status, n=number: len(status["beside"]) == n + 1)  # type: ignore[misc]
        await trio.sleep(60)
        assert sorted(await served(a)) == ["fourth", "second", "third", "tiny"]
        await add(a, "fifth", 0.25)
        await trio.sleep(60)
        for name in ("tiny", "third", "fourth", "second"):
            await a.generate(PROMPT, model=name, max_tokens=2)
            await trio.sleep(5)
        await trio.sleep(SLOT_WANTED)
        assert (await a.generate(PROMPT, model="fifth", max_tokens=2))["tokens"] == 2
        assert sorted(await served(a)) == ["fifth", "fourth", "second", "third"]

    run(body)

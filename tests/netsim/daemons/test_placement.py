"""Whole daemons share the layers of a model: a hole is filled, and the last replica stays."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.daemon.embedded import embedded_folder
from shoal.tasks.defaults import SLOT_IDLE, SLOT_LOOK

MIB = 2**20
PROMPT = "Once upon a time"


def run(body: Callable[[World], Awaitable[Any]], seed: int = 1) -> Any:
    world = World(seed=seed)

    async def main() -> Any:
        with trio.fail_after(5000):
            return await body(world)

    return world.run(main)


async def layers_of(daemons: list[DaemonHandle]) -> list[str]:
    found = []
    for daemon in daemons:
        shard = (await daemon.status())["serving"]["shard"]
        found.append(shard["layers"] if shard else "-")
    return found


async def answers(daemon: DaemonHandle, within: float) -> float:
    """Seconds until it gets text."""
    began = trio.current_time()
    while trio.current_time() < began + within:
        status = await daemon.ask("models")
        if any(model["name"] == "tiny" and model["complete"] for model in status["models"]):
            await daemon.generate(PROMPT, max_tokens=2)
            return trio.current_time() - began
        await trio.sleep(0.25)
    raise AssertionError(await layers_of([daemon]))


async def small(world: World, count: int, pause: float) -> list[DaemonHandle]:
    """Daemons of which two or three together have memory for the embedded model."""
    found: list[DaemonHandle] = []
    for number in range(count):
        more: dict[str, Any] = {"bootstrap": found[:1]} if found else {}
        found.append(await world.host(f"n{number}").start(memory=10 * MIB, **more))
        await trio.sleep(pause)
    return found


async def restart(daemons: list[DaemonHandle], pause: float) -> list[DaemonHandle]:
    """All of them, one after the other."""
    for daemon in daemons:
        await daemon.host.crash()
    again = []
    for daemon in daemons:
        again.append(await daemon.host.restart())
        await trio.sleep(pause)
    return again


@pytest.mark.ci
def test_three_that_restart_shortly_after_each_other_share_the_model() -> None:
    """Two took the same layers, and others were missing for good."""

    async def body(world: World) -> None:
        daemons = await small(world, 3, 3.0)
        await answers(daemons[0], 30)
        assert sorted(await layers_of(daemons)) == ["0:2", "2:5", "5:6"]
        for pause in (1.0, 3.0):
            daemons = await restart(daemons, pause)
            await answers(daemons[0], 30)
            assert sorted(await layers_of(daemons)) == ["0:2", "2:5", "5:6"]

    run(body)


def test_a_spare_moves_into_the_hole_that_a_death_leaves() -> None:
    async def body(world: World) -> None:
        daemons = await small(world, 4, 3.0)
        for daemon in daemons:
            await daemon.serving()
        before = await layers_of(daemons)
        lost = next(n for n in (1, 2) if before.count(before[n]) == 1)
        await daemons[lost].host.crash()
        rest = [daemon for daemon in daemons if daemon is not daemons[lost]]
        gone = [*before[:lost], *before[lost + 1 :]]
        await rest[0].until(lambda status: status["peers"] == 2)
        assert await answers(rest[0], 20) > 1, "it waits whether the other comes back"
        after = await layers_of(rest)
        assert sorted(after) == ["0:2", "2:5", "5:6"]
        assert sum(a != b for a, b in zip(gone, after, strict=True)) == 1

    run(body)


def test_a_node_says_that_its_model_has_a_hole_until_it_has_none() -> None:
    async def body(world: World) -> None:
        first = await world.host("n0").start(layers=(0, 3))
        await first.serving()
        status = await first.until(lambda status: status["health"])
        (condition,) = status["health"]
        assert condition["name"] == "hole" and "`shoal node --model NAME`" in condition["hint"]
        assert condition["sentence"].startswith(
            "layers 3:6 of `tiny` (6 layers) are served by no node that answers"
        )
        other = await world.host("n1").start(bootstrap=[first], model="tiny", layers=(3, 6))
        await other.serving()
        await first.until(lambda status: not status["health"])

    run(body)


async def add_second(daemon: DaemonHandle) -> None:
    """Add the model `second`: `tiny` with another number in its config.json."""
    files, folder = daemon.node.host.files, Path("/shoal-second")
    files.make_folder(folder)
    for entry in files.list(embedded_folder()):
        data = files.read(embedded_folder() / entry.name, limit=2**25)
        if entry.name == "config.json":
            data = json.dumps({**json.loads(data), "initializer_range": 0.5}).encode()
        files.write(folder / entry.name, data)
    await daemon.ask("model_add", path=str(folder), name="second")


async def served(daemon: DaemonHandle) -> list[str]:
    """Names of the models of which it serves layers now, the first slot's first."""
    status = await daemon.status()
    shards = [place["shard"] for place in (status["serving"], *status["beside"])]
    return [shard["model"] for shard in shards if shard]


def test_a_second_model_is_served_beside_the_first_by_one_node() -> None:
    async def body(world: World) -> None:
        a = await world.host("a").start(memory="11GiB")
        b = await world.host("b").start(bootstrap=[a], memory="11GiB")
        asker = await world.host("asker").start(bootstrap=[a, b], engine=False)
        for daemon in (a, b):
            assert (await daemon.serving())["model"] == "tiny"
        await asker.until(lambda status: status["peers"] == 2)
        await add_second(a)
        await a.until(lambda status: any(place["shard"] for place in status["beside"]))
        await trio.sleep(60)
        assert [await served(daemon) for daemon in (a, b)] == [["tiny", "second"], ["tiny"]]
        assert "beside it: serving layers 0:6 of second" in a.said
        assert (await asker.generate(PROMPT, model="second", max_tokens=2))["tokens"] == 2
        assert (await asker.generate(PROMPT, model="tiny", max_tokens=2))["tokens"] == 2
        await b.ask("model_pull", name="second")  # else it is lost with the crash
        await a.host.crash()
        await b.until(lambda status: any(place["shard"] for place in status["beside"]))
        assert await served(b) == ["tiny", "second"]
        await trio.sleep(5)  # until the asker has heard of it
        assert (await asker.generate(PROMPT, model="second", max_tokens=2))["tokens"] == 2

    run(body)


def test_a_crash_of_the_worker_costs_every_model_of_a_node_a_pause() -> None:
    async def body(world: World) -> None:
        a = await world.host("a").start(memory="11GiB")
        await a.serving()
        await add_second(a)
        await a.until(lambda status: any(place["shard"] for place in status["beside"]))
        texts = {
            model: (await a.generate(PROMPT, model=model, max_tokens=100))["text"]
            for model in ("tiny", "second")
        }
        said = dict[str, str]()

        async def ask(model: str) -> None:
            said[model] = (await a.generate(PROMPT, model=model, max_tokens=100))["text"]

        async with trio.open_nursery() as nursery:
            for model in texts:
                nursery.start_soon(ask, model)
            await trio.sleep(0.3)
            a.engine.crash()
        assert said == texts

    run(body)


@pytest.mark.ci
def test_a_model_that_others_serve_too_is_freed_when_it_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(world: World) -> None:
        a = await world.host("a").start(memory="11GiB")
        b = await world.host("b").start(bootstrap=[a], memory="11GiB")
        for daemon in (a, b):
            await daemon.serving()
        await add_second(a)
        await a.until(lambda status: any(place["shard"] for place in status["beside"]))
        c = await world.host("c").start(bootstrap=[a], memory="11GiB", model="second")
        await c.serving()
        peers = sorted([(await daemon.status())["peer"] for daemon in (a, c)])
        for _ in range(5):
            await trio.sleep(SLOT_IDLE / 2)
            await a.generate(PROMPT, model="second", max_tokens=2)
        spare = (await a.status())["peer"] == peers[1]
        await trio.sleep(SLOT_IDLE + 2 * SLOT_LOOK)
        kept = [["tiny"] if spare else ["tiny", "second"], ["second"]]
        assert [await served(daemon) for daemon in (a, c)] == kept

    run(body)


@pytest.mark.ci
def test_without_memory_for_both_a_node_moves_to_a_second_model_and_the_first_one_goes_on() -> None:
    """Without the rule both nodes may serve the second model, and none the first."""

    async def body(world: World) -> None:
        a = await world.host("a").start(memory=32 * MIB)
        b = await world.host("b").start(bootstrap=[a], memory=32 * MIB)
        asker = await world.host("asker").start(bootstrap=[a, b], engine=False)
        for daemon in (a, b):
            assert (await daemon.serving())["model"] == "tiny"
        await asker.until(lambda status: status["peers"] == 2)
        await trio.sleep(2)
        expected = (await asker.generate(PROMPT, max_tokens=200))["text"]
        await add_second(a)
        await trio.sleep(15)
        said = set[str]()

        async def ask() -> None:  # one of six is under way at the node when it moves
            while a.node.directory.own().runs == runs_before or a.node.serving.phase != "serving":
                said.add((await asker.generate(PROMPT, max_tokens=200))["text"])

        runs_before = a.node.directory.own().runs
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(ask)
        assert said == {expected}
        await trio.sleep(60)
        assert (await asker.generate(PROMPT, max_tokens=200))["text"] == expected
        assert (await b.serving())["model"] == "tiny" and (await a.serving())["model"] == "second"
        assert (await asker.generate(PROMPT, model="second", max_tokens=2))["tokens"] == 2

    run(body)


def test_a_node_alone_serves_both_of_its_models_again_after_a_restart() -> None:
    """It chose one of them, and no node served the other."""

    async def body(world: World) -> None:
        a = await world.host("a").start(memory="11GiB")
        await a.serving()
        await add_second(a)
        await a.until(lambda status: any(place["shard"] for place in status["beside"]))
        (a,) = await restart([a], 0.5)
        await a.until(lambda status: any(place["shard"] for place in status["beside"]))
        assert sorted(await served(a)) == ["second", "tiny"]
        for model in ("tiny", "second"):
            assert (await a.generate(PROMPT, model=model, max_tokens=2))["tokens"] == 2

    run(body)


def test_after_a_restart_of_all_each_model_has_a_node_again() -> None:
    async def body(world: World) -> None:
        a = await world.host("a").start(memory="11GiB")
        await a.serving()
        await add_second(a)
        b = await world.host("b").start(bootstrap=[a], memory="11GiB")
        await b.serving()
        a, b = await restart([a, b], 0.5)
        await trio.sleep(90)
        assert {name for daemon in (a, b) for name in await served(daemon)} == {"tiny", "second"}

    run(body)


def test_a_fast_newcomer_takes_the_layers_of_the_slowest_machine() -> None:
    """Three machines share the model, the first one much slower. By memory alone the newcomer
    takes the longest part, which is another one's."""

    async def body(world: World) -> None:
        found: list[DaemonHandle] = []
        for number, profile in enumerate(("raspberry", "desktop", "desktop")):
            more: dict[str, Any] = {"bootstrap": found[:1]} if found else {}
            host = world.host(f"n{number}")
            found.append(await host.start(memory=10 * MIB, profile=profile, **more))
            await trio.sleep(3.0)
        for daemon in found:
            await daemon.serving()
        slow = (await layers_of(found))[0]
        fast = await world.host("fast").start(
            memory=10 * MIB, profile="workstation", bootstrap=found[:1]
        )
        await fast.serving()
        assert await layers_of([fast]) == [slow]

    run(body)


def test_members_of_one_model_report_their_links() -> None:
    async def body(world: World) -> None:
        daemons = await small(world, 3, 3.0)
        for daemon in daemons:
            await daemon.serving()
        await trio.sleep(40)
        members = daemons[0].node.network.directory.members()
        own = members[daemons[0].node.base.identity.peer]
        assert 0 < len(own.links) <= 2 and all(link.round_trip_ms > 0 for link in own.links)
        assert all(len(record.links) <= 2 for record in members.values())

    run(body)

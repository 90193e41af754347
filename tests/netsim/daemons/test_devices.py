"""A node with two devices: a model that is divided among them, and one that loses its worker."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.tasks.engine.interface import LoadShard
from shoal.tasks.engine.process import EngineProcess
from tests.netsim.daemons.test_turns import add

MIB = 2**20
PART = 16 * MIB  # on each device: less than the model needs, and more than half of it
WHOLE = 28 * MIB  # enough for a model on each device
MORE = 400 * MIB  # the same, and for the text process of a second model
TWO = ("cpu", "cpu")
PROMPT = "Once upon a time"
TOKENS = 60


def run(body: Callable[[World], Awaitable[Any]]) -> Any:
    world = World(seed=1)

    async def main() -> Any:
        with trio.fail_after(3000):
            return await body(world)

    return world.run(main)


def spans(daemon: DaemonHandle) -> list[tuple[int, int]]:
    return sorted((shard.start, shard.stop) for shard in daemon.node.directory.own().shards)


async def answer(
    asker: DaemonHandle,
    model: str = "tiny",
    during: Callable[[], None] | None = None,
    after: float = 0.0,
) -> tuple[str, float]:
    """Return an answer and the seconds that it took. `during` is called `after` some seconds."""
    began = trio.current_time()
    async with trio.open_nursery() as nursery:

        async def later() -> None:
            await trio.sleep(after)
            if during is not None:
                during()

        nursery.start_soon(later)
        said = await asker.generate(PROMPT, model=model, max_tokens=TOKENS, raw=True)
        took = trio.current_time() - began
    assert said["tokens"] == TOKENS
    return said["text"], took


def test_a_model_that_fits_on_no_device_is_divided_among_them() -> None:
    """The node is two stages of its chains, and the text is that of one device."""

    async def body(world: World) -> None:
        one = await world.host("one").start(memory=WHOLE)
        two = await world.host("two").start(memory=2 * PART, device=TWO)
        for daemon in (one, two):
            await daemon.serving()
        assert spans(one) == [(0, 6)] and spans(two) == [(0, 3), (3, 6)]
        assert [engine.pid for engine in two.engines] != [None, None]
        serving = (await two.ask("status"))["serving"]
        assert serving["shard"]["layers"] == "0:3"
        assert [each["layers"] for each in serving["further"]] == ["3:6"]
        free = [shard.kv_tokens_free for shard in two.node.directory.own().shards]
        assert 0 < serving["room_tokens"] <= min(free)
        (aim,) = two.node.directory.own().aims
        assert (aim.start, aim.stop) == (0, 6)
        text, _ = await answer(one)
        assert (await answer(two))[0] == text
        asker = await world.host("asker").start(bootstrap=[two], engine=False)
        await asker.until(lambda status: status["peers"] == 1)
        assert (await answer(asker))[0] == text
        await trio.sleep(300)  # the plan is at rest: it believes what the node serves
        assert spans(two) == [(0, 3), (3, 6)]

    run(body)


@pytest.mark.parametrize("device", [0, 1])
def test_a_device_that_crashes_loads_its_part_again_and_the_other_stays(
    device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = list[tuple[EngineProcess, int]]()
    load = EngineProcess.load

    async def counted(engine: EngineProcess, shard: LoadShard, number: int = 0) -> Any:
        loads.append((engine, number))
        return await load(engine, shard, number)

    monkeypatch.setattr(EngineProcess, "load", counted)

    async def body(world: World) -> None:
        daemon = await world.host("two").start(memory=2 * PART, device=TWO)
        await daemon.serving()
        for _ in range(4):  # starts its text process; later answers are guessed from these
            await answer(daemon)
        text, took = await answer(daemon)
        engines, pids = daemon.engines, [engine.pid for engine in daemon.engines]
        loads.clear()
        again, longer = await answer(daemon, "tiny", engines[device].crash, 0.5 * took)
        assert again == text and took < longer < 2 * took + 5
        assert [engine.pid == pid for engine, pid in zip(engines, pids, strict=True)] == [
            device != 0,
            device != 1,
        ]
        assert [engine for engine, _ in loads] == [engines[device]], "only its own part"
        assert spans(daemon) == [(0, 3), (3, 6)]
        assert (await daemon.ask("status"))["serving"]["phase"] == "serving"

    run(body)


def test_the_models_on_other_devices_do_not_notice_a_crash() -> None:
    async def body(world: World) -> None:
        daemon = await world.host("two").start(memory=2 * MORE, device=TWO)
        await daemon.serving()
        await add(daemon, "second", 0.5)
        await daemon.until(lambda status: status["beside"])
        askers = {
            model: await world.host(model).start(bootstrap=[daemon], engine=False)
            for model in ("tiny", "second")
        }
        await trio.sleep(60)
        usual = dict[str, tuple[str, float]]()
        for model, asker in askers.items():
            for _ in range(6):
                usual[model] = await answer(asker, model)
        results = dict[str, tuple[str, float]]()
        async with trio.open_nursery() as nursery:

            async def ask(model: str) -> None:
                results[model] = await answer(askers[model], model)

            for model in askers:
                nursery.start_soon(ask, model)
            await trio.sleep(0.5 * min(took for _, took in usual.values()))
            daemon.engines[1].crash()
        assert {model: text for model, (text, _) in results.items()} == {
            model: text for model, (text, _) in usual.items()
        }
        assert results["tiny"][1] < 1.2 * usual["tiny"][1], "its device has not crashed"
        assert results["second"][1] > 1.2 * usual["second"][1], "its device has crashed"

    run(body)


def test_memory_of_all_devices_is_offered_and_reported() -> None:
    async def body(world: World) -> None:
        daemon = await world.host("two").start(memory=2 * PART, device=TWO)
        await daemon.serving()
        assert daemon.node.base.shares == (PART, PART)
        status = await daemon.ask("status")
        assert status["memory"]["offered_bytes"] == 2 * PART
        assert PART < status["memory"]["loaded_bytes"] <= 2 * PART
        slots = daemon.node.compute.serving
        assert all(size <= PART for size in slots.all[0].loaded_sizes)

    run(body)

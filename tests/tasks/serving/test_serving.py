"""Tests of serving, from the owner's model or the swarm's models to a published shard."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import trio
import trio.testing

from shoal.dht.content.library import Library
from shoal.dht.errors import ModelError
from shoal.dht.exchange.exchange import ChunkExchange
from shoal.dht.names import NameMeaning
from shoal.state.membership.record import Aim, MemberRecord, ModelName, Rank, ShardRecord
from shoal.tasks.costs.shardcosts import ShardCosts
from shoal.tasks.defaults import (
    CLAIM_WAIT,
    COSTS_LOOK,
    DEMAND_LOOK,
    DEMAND_TIME,
    LOAD_CRASHES,
    RESOLVE_PAUSE,
    SERVE_RETRY,
)
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.families import architecture
from shoal.tasks.engine.interface import Loaded, LoadShard, Parts
from shoal.tasks.inference.courier import Courier
from shoal.tasks.inference.sources import Find, ModelSources
from shoal.tasks.inference.stage import Stage
from shoal.tasks.placement import coverage
from shoal.tasks.placement.demand import Backing, ServingChoice
from shoal.tasks.placement.holes import needed_bytes
from shoal.tasks.serving import files, slotshards
from shoal.tasks.serving.choosing import Choosing
from shoal.tasks.serving.interface import (
    DeviceShare,
    RestartingEngine,
    ServingDevices,
    ServingSettings,
)
from shoal.tasks.serving.slots import Slots
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.host.seam import Host
from tests.tasks.fake_model import CONFIG, small_manifest
from tests.tasks.fake_node import OTHER, FakeDirectory, FakeExchange, FakeLibrary, record_of
from tests.tasks.fake_swarm import FakeEndpoint, FakeEngine, FakeHost, Wire, peer_of


class FakeServingEngine(FakeEngine):
    def __init__(self, wire: Wire) -> None:
        super().__init__(wire, Parts(True, 0, 2, True))
        self.loads: list[LoadShard] = []
        self.errors: list[EngineError] = []
        self.held: trio.Event | None = None  # `load` waits for it
        self.restart: list[Callable[[], None]] = []

    async def load(self, shard: LoadShard, number: int = 0) -> Loaded:  # type: ignore[override]
        await trio.lowlevel.checkpoint()
        if self.held is not None:
            await self.held.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.loads.append(shard)
        return Loaded(1, 1, 0.0, frozenset(), "class", ShardCosts(0.008, 0.002, 1e-7))

    def on_restart(self, callback: Callable[[], None]) -> None:
        self.restart.append(callback)


class World:
    """One node's serving with fakes around it."""

    def __init__(self, *, engine: bool = True, find: Find | None = None, **settings: Any) -> None:
        wire, host = Wire(), cast(Host, FakeHost())
        self.backing = Backing(trusted={OTHER: "which invited this node"})
        self.manifest = small_manifest()
        self.directory = FakeDirectory()
        own = self.directory.own()
        memory = settings.get("memory", 2**30)
        capacity = replace(own.capacity, memory_bytes=memory)
        self.directory.put(replace(own, capacity=capacity))
        self.library = FakeLibrary()
        self.exchange = FakeExchange(self.library, self.manifest)
        self.engine = FakeServingEngine(wire)
        courier = Courier(cast(Endpoint, FakeEndpoint(wire, peer_of(1))))
        self.stage = Stage(host, courier, cast(RestartingEngine, self.engine))
        self.serving = Slots(
            host,
            ServingDevices(
                self.stage,
                [DeviceShare(cast(RestartingEngine, self.engine), 0)] if engine else [],
            ),
            ModelSources(
                cast(Library, self.library),
                cast(ChunkExchange, self.exchange),
                self.directory,
                names=find,
            ),
            ServingSettings(**{"memory": 2**30, "layers": (0, 2), **settings}),
            backing=lambda: self.backing,
        )

    def other_has_it(self, name: str = "small") -> None:
        model = ModelName(name, self.manifest.root, 2, 100)
        self.directory.put(record_of(OTHER, models=(model,)))

    async def run(self, body: Callable[[], Awaitable[None]]) -> None:
        with trio.fail_after(10_000):
            async with trio.open_nursery() as nursery:
                await nursery.start(self.serving.run)
                await body()
                nursery.cancel_scope.cancel()

    async def settle(self, phase: str) -> str:
        await trio.testing.wait_all_tasks_blocked()
        assert self.serving.phase == phase, self.serving.status().text
        return self.serving.status().text

    def shards(self) -> tuple[ShardRecord, ...]:
        return self.directory.own().shards


@pytest.mark.trio
async def test_without_torch_it_says_so(autojump_clock: object) -> None:
    world = World(engine=False)

    async def body() -> None:
        assert "torch is not installed" in await world.settle("no-engine")
        assert world.serving.status().phase == "no-engine"

    await world.run(body)


@pytest.mark.trio
async def test_it_publishes_what_it_measured_and_what_measured_steps_correct(
    autojump_clock: object,
) -> None:
    world = World()
    world.other_has_it()

    async def body() -> None:
        await trio.sleep(2 * DEMAND_LOOK[0])
        await world.settle("serving")
        (shard,) = world.shards()
        assert shard.costs == (0.008, 0.002, 1e-7)
        await trio.sleep(2 * COSTS_LOOK)
        assert world.shards() == (shard,)
        speed = world.stage.speed(shard.root, Parts(True, 0, 2, True))
        for _ in range(20):
            speed.note(1, 0.01, 0.04)
        await trio.sleep(COSTS_LOOK)
        (slower,) = world.shards()
        assert slower.costs[0] + slower.costs[1] == pytest.approx(0.04)
        assert replace(slower, costs=shard.costs) == shard

    await world.run(body)


@pytest.mark.trio
async def test_it_waits_for_a_model_fetches_loads_and_publishes(autojump_clock: object) -> None:
    world = World(layers=(1, 2))

    async def body() -> None:
        assert "no model is known yet" in await world.settle("choosing")
        world.exchange.hold = trio.Event()
        world.other_has_it()
        await trio.sleep(2 * DEMAND_LOOK[0])
        assert await world.settle("fetching") == "fetching layers 1:2 of small"
        status = world.serving.status()
        assert (status.done_bytes, status.total_bytes) == (1, 3)
        world.exchange.hold.set()
        assert await world.settle("serving") == "serving layers 1:2 of small"
        assert world.exchange.asked == [OTHER]
        assert world.exchange.fetched == world.manifest.digests_of(False, 1, 2, True)
        assert world.engine.loads[0].parts == Parts(False, 1, 2, True)
        assert world.directory.own().stored == (world.manifest.root,)
        (shard,) = world.shards()
        assert (shard.root, shard.start, shard.stop, shard.head, shard.dtype) == (
            world.manifest.root, 1, 2, True, "float32",
        )  # fmt: skip
        assert shard.kv_tokens_free == 16 * 600
        assert shard.exactness == "class"
        assert world.library.named == {"small": world.manifest.root}
        assert [model.name for model in world.directory.own().models] == ["small"], (
            "its name outlives the node it came from"
        )

    await world.run(body)


@pytest.mark.trio
async def test_what_takes_long_for_a_hostile_model_is_computed_in_a_thread(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40,000 weights with layouts of their own: 1.1 s for the sizes, and 0.2 s for a shard."""
    inside, seen = list[bool](), Counter[str]()

    async def offload(_: FakeHost, work: Callable[..., Any], *args: Any) -> Any:
        await trio.lowlevel.checkpoint()
        inside.append(True)
        try:
            return work(*args)
        finally:
            inside.pop()

    def watch(module: Any, name: str) -> None:
        function = getattr(module, name)

        def watched(*args: Any) -> Any:
            assert inside, f"{name} stalls the event loop"
            seen[name] += 1
            return function(*args)

        monkeypatch.setattr(module, name, watched)

    monkeypatch.setattr(FakeHost, "offload", offload)
    for name in ("architecture", "choose_dtype"):
        watch(files, name)
    watch(coverage, "weight_bytes")
    watch(slotshards, "weight_bytes")
    world = World()

    async def body() -> None:
        world.other_has_it()
        await trio.sleep(2 * DEMAND_LOOK[0])
        await world.settle("serving")
        assert {"architecture", "choose_dtype", "weight_bytes"} == seen.keys()

    await world.run(body)


@pytest.mark.trio
async def test_a_name_that_looks_like_another_is_shown_so_and_not_vouched_for(
    autojump_clock: object,
) -> None:
    """The library refuses such a name, so keeping it would fail the serving."""
    world = World()

    async def body() -> None:
        world.other_has_it("sm\u0430ll")
        await trio.sleep(2 * DEMAND_LOOK[0])
        said = await world.settle("serving")
        assert said == r'serving layers 0:2 of sm\u0430ll (looks like "small")'
        assert world.library.named == {} and world.directory.own().models == ()

    await world.run(body)


@pytest.mark.trio
async def test_a_model_that_only_a_stranger_names_is_not_fetched(autojump_clock: object) -> None:
    world = World()
    world.backing = Backing(networks={OTHER: "11.0.1.0/24"})

    async def body() -> None:
        world.other_has_it()
        await trio.sleep(3600)
        assert await world.settle("choosing") == (
            "`small` is wanted in 1 of the 3 networks that it takes to serve a model unasked; "
            "`shoal node --model small` serves it"
        )
        assert not world.exchange.asked and not world.library.kept
        world.backing = Backing(trusted={OTHER: "which invited this node"})
        await trio.sleep(DEMAND_LOOK[1] + 1)  # a peer may have become trusted without other news
        await world.settle("serving")
        assert world.serving.status().why == (
            f"small: {OTHER}, which invited this node, names or serves it"
        )

    await world.run(body)


@pytest.mark.trio
async def test_the_embedded_model_waits_until_demand_is_known(
    autojump_clock: object,
) -> None:
    world = World()
    world.backing = Backing(embedded=world.manifest.root)

    async def body() -> None:
        other = ModelName("other", "ee" * 32, 2, 100)
        world.directory.put(record_of(peer_of(3), models=(other,)))
        world.other_has_it()
        await trio.sleep(DEMAND_TIME / 2)
        assert await world.settle("choosing") == "finding out which models members want"
        await trio.sleep(DEMAND_TIME)
        await world.settle("serving")
        assert world.serving.status().why == "small: every node ships with it"

    await world.run(body)


@pytest.mark.trio
async def test_by_default_it_takes_missing_layers_that_fit(
    autojump_clock: object,
) -> None:
    arch = architecture(CONFIG)
    whole = needed_bytes(arch, Parts(True, 0, 2, True), "float32")
    world = World(layers=None, memory=whole - 1)
    world.other_has_it()
    first = ShardRecord(world.manifest.root, True, 0, 1, False, "float32", 100)
    world.directory.put(replace(world.directory.records[OTHER], shards=(first,)))

    async def body() -> None:
        assert await world.settle("choosing") == "finding out which layers of small are needed"
        assert world.directory.own().aims == (Aim(world.manifest.root, 1, 2, Rank.CLAIMS),)
        await trio.sleep(CLAIM_WAIT + 0.1)
        assert await world.settle("serving") == "serving layers 1:2 of small"
        assert world.directory.own().aims == (Aim(world.manifest.root, 1, 2, Rank.HOLDS),)

    await world.run(body)


@pytest.mark.trio
async def test_a_restarted_engine_is_loaded_again(autojump_clock: object) -> None:
    world = World()
    world.library.kept[world.manifest.root] = world.manifest
    world.other_has_it()

    async def body() -> None:
        await world.settle("serving")
        for callback in world.engine.restart:
            callback()
        await world.settle("serving")
        assert len(world.engine.loads) == 2
        assert [len(found) for found in published(world)] == [1, 1], "routes rely on its shard"

    await world.run(body)


def published(world: World) -> list[tuple[ShardRecord, ...]]:
    return [change["shards"] for change in world.directory.published if "shards" in change]


@pytest.mark.trio
@pytest.mark.parametrize("crashes", [0, 1, LOAD_CRASHES - 1, LOAD_CRASHES])
async def test_a_worker_may_crash_again_while_it_loads(
    autojump_clock: object, crashes: int
) -> None:
    """Sessions wait for its shard, so only many crashes in a row withdraw it."""
    world = World()
    world.library.kept[world.manifest.root] = world.manifest
    world.other_has_it()

    async def body() -> None:
        await world.settle("serving")
        (before,) = world.shards()
        crashed = EngineError("worker-crashed", "the engine's worker process ended")
        world.engine.errors = [crashed] * crashes
        world.engine.held = held = trio.Event()
        for callback in world.engine.restart:
            callback()
        await world.settle("loading")
        assert world.stage.room(world.manifest.root, Parts(True, 0, 2, True), OTHER) == 0, (
            "it opens no session before it is loaded"
        )
        assert world.shards() == (before,)
        for callback in world.engine.restart:  # the worker started again before it was loaded
            callback()
        held.set()
        if crashes == LOAD_CRASHES:
            await world.settle("failed")
            await trio.sleep(2 * SERVE_RETRY[0] + 1)
        await world.settle("serving")
        assert len(world.engine.loads) == 2, "not once more for a restart before it was loaded"
        gone = [()] if crashes == LOAD_CRASHES else []
        assert published(world) == [(before,), *gone, (before,)]

    await world.run(body)


@pytest.mark.trio
async def test_failures_are_shown_and_retried(autojump_clock: object) -> None:
    world = World(model="small")
    world.engine.errors = [EngineError("no-memory", "there is no memory", hint="free some")]

    async def body() -> None:
        assert "no model 'small' is known" in await world.settle("choosing")
        await trio.sleep(11)
        assert "did you mean" not in await world.settle("failed")
        assert "shoal model list" in (world.serving.status().hint or "")
        world.other_has_it("smell")
        await trio.sleep(100)
        assert "did you mean `smell`?" in await world.settle("failed")
        world.exchange.errors = [ModelError("fetch-failed", "nobody has chunk 7")]
        world.other_has_it()
        await trio.sleep(1.5)
        assert await world.settle("failed") == "nobody has chunk 7"
        await trio.sleep(200)
        assert await world.settle("serving") == "serving layers 0:2 of small"
        assert len(world.engine.loads) == 1
        assert world.engine.errors == []

    await world.run(body)


@pytest.mark.trio
@pytest.mark.parametrize("layers", [(0, 3), (-1, 2), (2, 2)])
async def test_layers_outside_the_model_are_an_error(
    autojump_clock: object, layers: tuple[int, int]
) -> None:
    world = World(layers=layers)
    world.other_has_it()

    async def body() -> None:
        sentence = await world.settle("failed")
        assert "is no range of this model's 2 layers" in sentence
        assert "use 0:2" in (world.serving.status().hint or "")

    await world.run(body)


@pytest.mark.trio
async def test_too_little_memory_is_an_error_with_both_numbers(autojump_clock: object) -> None:
    world = World(memory=100)
    world.other_has_it()

    async def body() -> None:
        assert "need 1 MiB of memory and this node offers 0 MiB" in await world.settle("failed")
        assert world.shards() == ()

    await world.run(body)


@pytest.mark.trio
async def test_no_layers_are_loaded_into_reserved_memory(autojump_clock: object) -> None:
    world = World()
    world.other_has_it()
    free = world.serving.free_bytes
    assert free == 2**30
    world.serving.reserve(2**30 - 1000)

    async def body() -> None:
        assert "need 1 MiB of memory" in await world.settle("failed")
        assert not world.engine.loads
        world.serving.reserve(-(2**30 - 1000))
        await trio.sleep(3600)
        await world.settle("serving")
        assert world.engine.loads
        assert world.serving.free_bytes == 2**30 - world.serving.loaded_bytes < free

    await world.run(body)


@pytest.mark.trio
async def test_the_owners_model_is_found_beyond_the_members(autojump_clock: object) -> None:
    """No linked member names it: the lookup is repeated, and name and meaning are stored."""
    asked: list[float] = []

    async def find(name: str) -> NameMeaning:
        asked.append(trio.current_time())
        if len(asked) < 3:
            raise ModelError("unknown-model", f"no model {name}")
        return NameMeaning("far", world.manifest.root, 2, 100)

    world = World(find=find, model="far@ab")

    async def body() -> None:
        assert "waiting for a node that has it" in await world.settle("choosing")
        await trio.sleep(2 * RESOLVE_PAUSE + 0.1)
        await world.settle("serving")
        assert [at - asked[0] for at in asked] == pytest.approx(
            [0, RESOLVE_PAUSE, 2 * RESOLVE_PAUSE]
        )
        assert world.library.named == {"far": world.manifest.root}
        assert world.library.usage.asked == {world.manifest.root}
        (model,) = world.directory.own().models
        assert (model.name, model.layers, model.weight_bytes) == ("far", 2, 100)

    await world.run(body)


@pytest.mark.trio
async def test_a_name_of_several_models_is_not_waited_for(autojump_clock: object) -> None:
    async def find(name: str) -> NameMeaning:
        raise ModelError("ambiguous-model", "it means 2 models", hint="NAME@HASH")

    world = World(find=find, model="far")

    async def body() -> None:
        assert await world.settle("failed") == "it means 2 models"
        assert world.serving.status().hint == "NAME@HASH"

    await world.run(body)


@pytest.mark.trio
async def test_a_barred_node_serves_nothing_until_it_is_allowed(autojump_clock: object) -> None:
    world = World()
    world.other_has_it()

    async def body() -> None:
        await world.settle("serving")
        world.serving.bar("as a client it serves nothing")
        assert await world.settle("barred") == "as a client it serves nothing"
        assert world.shards() == ()
        world.serving.bar("as a client it serves nothing")
        world.directory.put(record_of(OTHER))
        await world.settle("barred")
        world.serving.bar(None)
        await world.settle("serving")
        assert world.shards()

    await world.run(body)


def serving(number: int, start: int, stop: int, root: str) -> MemberRecord:
    """A member that serves layers of a model of two."""
    shard = ShardRecord(root, start == 0, start, stop, stop == 2, "float32", 100)
    model = ModelName("small", root, 2, 100)
    aim = Aim(root, start, stop, Rank.HOLDS)
    return record_of(peer_of(number), shards=(shard,), models=(model,), aims=(aim,))


def spare_world() -> World:
    """Make this node serve layers that another node also serves."""
    whole = needed_bytes(architecture(CONFIG), Parts(True, 0, 2, True), "float32")
    world = World(layers=None, memory=whole - 1)
    for number, span in ((2, (0, 1)), (3, (1, 2))):
        world.directory.put(serving(number, *span, world.manifest.root))
    return world


async def lose_what_only_one_serves(world: World) -> tuple[int, int]:
    """Kill the node whose layers this one does not have. Return these layers."""
    await trio.sleep(CLAIM_WAIT + 0.1)
    await world.settle("serving")
    (own,) = world.shards()
    world.directory.records = {
        peer: record
        for peer, record in world.directory.records.items()
        if peer == peer_of(1) or record.shards[0].start == own.start
    }
    lost = (1, 2) if own.start == 0 else (0, 1)
    world.directory.put(world.directory.own())
    return lost


@pytest.mark.trio
async def test_a_spare_fetches_missing_layers_before_it_leaves_its_own(
    autojump_clock: object,
) -> None:
    world = spare_world()

    async def body() -> None:
        lost = await lose_what_only_one_serves(world)
        before, world.exchange.hold = world.shards(), trio.Event()
        await trio.sleep(20)
        assert await world.settle("fetching") == f"fetching layers {lost[0]}:{lost[1]} of small"
        assert world.shards() == before and len(world.engine.loads) == 1
        assert world.directory.own().aims == (Aim(world.manifest.root, *lost, Rank.HOLDS),)
        world.exchange.hold.set()
        await world.settle("serving")
        (shard,) = world.shards()
        assert (shard.start, shard.stop) == lost and len(world.engine.loads) == 2

    await world.run(body)


@pytest.mark.trio
async def test_after_a_failed_move_the_old_layers_stay_and_it_is_retried(
    autojump_clock: object,
) -> None:
    world = spare_world()

    async def body() -> None:
        lost = await lose_what_only_one_serves(world)
        before = world.shards()
        world.exchange.errors = [ModelError("fetch-failed", "no node has chunk 7")]
        await trio.sleep(20)
        assert (await world.settle("serving")).startswith("no node has chunk 7; still serving")
        assert world.shards() == before
        (shard,) = before
        assert world.directory.own().aims == (
            Aim(world.manifest.root, shard.start, shard.stop, Rank.HOLDS),
        )
        await trio.sleep(SERVE_RETRY[1] + 20)
        (shard,) = world.shards()
        assert (shard.start, shard.stop) == lost

    await world.run(body)


@pytest.mark.trio
async def test_other_nodes_cannot_make_it_change_models_for_ever(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(layers=None)
    world.other_has_it()

    async def other_model(self: Choosing, root: str, taken: object) -> ServingChoice:
        await trio.lowlevel.checkpoint()
        return ServingChoice(root, "others say so", True)

    monkeypatch.setattr(Choosing, "other_model", other_model)

    async def body() -> None:
        await trio.sleep(3600)
        assert 3 <= len(world.engine.loads) <= 10

    await world.run(body)


@pytest.mark.trio
async def test_a_stopping_node_withdraws_its_layers_at_once(
    autojump_clock: object,
) -> None:
    world = World()
    world.other_has_it()

    async def body() -> None:
        await world.settle("serving")
        assert world.directory.own().aims == (Aim(world.manifest.root, 0, 2, Rank.FIXED),)
        world.serving.leave()
        assert world.directory.own().aims == ()
        for callback in world.engine.restart:
            callback()
        await world.settle("serving")
        assert world.directory.own().aims == ()

    await world.run(body)


@pytest.mark.trio
async def test_two_slots_never_take_the_same_model(autojump_clock: object) -> None:
    """Both wait for a model that needs this node, and see the next one at the same moment."""
    world = World(layers=None)
    manifests = [replace(world.manifest, config=CONFIG | {"n": n}) for n in range(3)]
    low = next(peer_of(n) for n in range(3, 99) if peer_of(n) < peer_of(1))

    async def fetch_manifest(root: str, peers: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        found = next(each for each in manifests if each.root == root)
        world.library.kept[root] = found
        return found

    world.exchange.fetch_manifest = fetch_manifest  # type: ignore[method-assign]
    world.backing = Backing(named=frozenset(each.root for each in manifests))

    def wanted(count: int) -> None:
        models = tuple(ModelName(f"m{n}", manifests[n].root, 2, 100) for n in range(count))
        world.directory.put(record_of(OTHER, models=models))

    async def body() -> None:
        wanted(2)
        await trio.sleep(100)
        assert len(world.shards()) == 2
        # The second model is served by a peer. A slot becomes free after a long time.
        served = world.shards()[1].root
        shard = ShardRecord(served, True, 0, 2, True, "float32", 100)
        world.directory.put(record_of(low, shards=(shard,)))
        await trio.sleep(2000)
        assert len(world.shards()) == 1
        loads = len(world.engine.loads)
        wanted(3)
        await trio.sleep(100)
        assert len(world.engine.loads) == loads + 1
        for said in world.directory.published:
            roots = [aim.root for aim in said.get("aims", ())]
            assert len(roots) == len(set(roots)), "such a record is refused"

    await world.run(body)

"""Tests of the answers to gateways that ask a node to load a model."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from shoal.state.membership.record import ModelName, ShardRecord
from shoal.tasks.defaults import (
    SHARD_READ_TIME,
    SHARDS_ASKED,
    SHARDS_ASKED_IN_ALL,
    SHARDS_READ,
    SLOT_STAY,
    SLOT_WANTED,
)
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.inference.conversation.asking import AskShard, ShardAsked
from shoal.tasks.inference.serving.stagesession import StageSession
from shoal.tasks.placement.demand import Backing
from shoal.tasks.serving.asked import AskedShards
from shoal.tasks.serving.files import ShardPlan
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Call, Refusal, Reply
from tests.tasks.fake_model import CONFIG
from tests.tasks.fake_node import OTHER, record_of
from tests.tasks.fake_swarm import peer_of
from tests.tasks.serving.test_serving import World

GATEWAY = peer_of(7)
ONE = 600_000  # bytes in which one of the models fits, and two do not


class Asked(World):
    """One node with memory for one of three models, which have names here."""

    def __init__(self, memory: int = ONE, **settings: Any) -> None:
        super().__init__(layers=None, memory=memory, **settings)
        self.models = [replace(self.manifest, config=CONFIG | {"n": n}) for n in range(3)]
        self.reading = trio.Event()
        self.reading.set()
        self.reads = 0

        async def fetch_manifest(root: str, peers: Any, **_: Any) -> Any:
            self.reads += 1
            await trio.lowlevel.checkpoint()
            await self.reading.wait()
            found = next(each for each in self.models if each.root == root)
            self.library.kept[root] = found
            return found

        self.exchange.fetch_manifest = fetch_manifest  # type: ignore[method-assign]
        self.backing = Backing(named=frozenset(each.root for each in self.models))
        stage, sources = self.stage, self.serving.all[0]._sources
        self.asked = AskedShards(
            *(self.serving.all[0]._host, stage, self.serving, sources),
            self.serving.all[0]._settings,
            backing=lambda: self.backing,
        )
        self.wanted(1)

    def wanted(self, count: int) -> None:
        """Have another node name the first models."""
        models = tuple(
            ModelName(f"m{n}", each.root, 2, 100) for n, each in enumerate(self.models[:count])
        )
        self.directory.put(record_of(OTHER, models=models))

    async def ask(self, number: int, peer: PeerId = GATEWAY) -> ShardAsked:
        question = AskShard(self.models[number].root).header()
        reply = await self.asked.on_ask(Call(peer, question, b""))
        assert isinstance(reply, Reply), reply
        return ShardAsked.parse(reply.header)

    @property
    def served(self) -> list[int]:
        roots = [each.root for each in self.models]
        return [roots.index(shard.root) for shard in self.shards()]


async def asked(body: Callable[[Asked], Awaitable[None]], **more: Any) -> None:
    """Run `body` with a node that has served the first model for long."""
    world = Asked(**more)

    async def main() -> None:
        await trio.sleep(SLOT_STAY + SLOT_WANTED)
        assert world.served == [0]
        world.wanted(3)
        await trio.sleep(100)
        await body(world)

    await world.run(main)


@pytest.mark.trio
async def test_an_idle_model_leaves_and_facts_follow(autojump_clock: object) -> None:
    async def body(world: Asked) -> None:
        assert await world.ask(1) == ShardAsked("loading")
        assert world.served == [] and world.stage.unused_time(0) == 0.0
        await trio.sleep(5)
        assert world.served == [1]
        assert {aim.root for aim in world.directory.own().aims} == {world.models[1].root}
        assert await world.ask(1) == ShardAsked("loading")
        back = await world.ask(2)
        assert back.code == "full" and SLOT_WANTED - 6 < back.back <= SLOT_WANTED
        await trio.sleep(back.back + 0.1)
        assert (await world.ask(2)).code == "loading"
        await trio.sleep(5)
        assert world.served == [2]

    await asked(body)


@pytest.mark.trio
async def test_a_model_that_others_serve_too_stays_only_a_minute(autojump_clock: object) -> None:
    async def body(world: Asked) -> None:
        low = next(peer_of(n) for n in range(3, 99) if peer_of(n) < peer_of(1))
        await world.ask(1)
        await trio.sleep(SLOT_STAY - 5)
        shard = ShardRecord(world.models[1].root, True, 0, 2, True, "float32", 100)
        world.directory.put(record_of(low, shards=(shard,)))
        back = await world.ask(2)
        assert back.code == "full" and 0 < back.back <= 6
        await trio.sleep(back.back + 0.1)
        assert (await world.ask(2)).code == "loading"

    await asked(body)


@pytest.mark.trio
async def test_the_last_replica_of_a_model_with_jobs_stays(autojump_clock: object) -> None:
    async def body(world: Asked) -> None:
        world.backing = replace(world.backing, asked={world.models[0].root: [OTHER]})
        assert await world.ask(1) == ShardAsked("full", SLOT_STAY)
        world.backing = replace(world.backing, asked={})
        assert await world.ask(1) == ShardAsked("loading")

    await asked(body)


@pytest.mark.trio
@pytest.mark.parametrize("use", ["session", "standby", "opening", "tuning"])
async def test_a_model_in_use_stays(use: str, autojump_clock: object) -> None:
    async def body(world: Asked) -> None:
        every = world.stage.table
        served = every.shards[0]

        class Order:
            standby = 0 if use == "standby" else None

        class Fake:
            open = Order()

        fake = Fake()
        fake.served = served  # type: ignore[attr-defined]
        session = cast(StageSession, fake)
        if use == "tuning":
            served.tunings += 1
        elif use == "opening":
            every.opening[session] = None
        else:
            every.open[(GATEWAY, b"s" * 16, 0)] = session
        assert await world.ask(1) == ShardAsked("full", SLOT_STAY)
        assert world.served == [0]
        served.tunings = 0
        every.opening.clear()
        every.open.clear()
        assert await world.ask(1) == ShardAsked("loading")

    await asked(body)


@pytest.mark.trio
async def test_a_stranger_s_model_is_not_read(autojump_clock: object) -> None:
    async def body(world: Asked) -> None:
        world.backing = Backing(named=frozenset([world.models[0].root]))
        reads = world.reads
        assert await world.ask(1) == ShardAsked("unasked")
        assert world.reads == reads and world.served == [0]

    await asked(body)


@pytest.mark.trio
async def test_a_model_that_is_too_large_unloads_nothing(autojump_clock: object) -> None:
    async def body(world: Asked) -> None:
        world.serving.memory = 1000
        assert await world.ask(1) == ShardAsked("no-fit")
        assert world.served == [0]

    await asked(body)


@pytest.mark.trio
async def test_with_room_for_both_nothing_leaves(autojump_clock: object) -> None:
    async def body(world: Asked) -> None:
        assert await world.ask(1) == ShardAsked("loading")
        assert sorted(world.served) == [0, 1, 2]

    await asked(body, memory=2**30)


@pytest.mark.trio
async def test_questions_are_bounded(autojump_clock: object) -> None:
    async def body(world: Asked) -> None:
        world.backing = Backing(named=frozenset([world.models[0].root]))
        question = Call(GATEWAY, AskShard(world.models[1].root).header(), b"")
        said = [await world.asked.on_ask(question) for _ in range(SHARDS_ASKED[0] + 1)]
        assert isinstance(said[-1], Refusal) and said[-1].code == "busy"
        wrong = await world.asked.on_ask(Call(OTHER, {"root": "x"}, b""))
        assert isinstance(wrong, Refusal) and wrong.code == "bad-message"

    await asked(body)


@pytest.mark.trio
async def test_manifests_that_do_not_come_are_not_waited_for(autojump_clock: object) -> None:
    async def body(world: Asked) -> None:
        more = [replace(world.manifest, config=CONFIG | {"n": n}) for n in range(3, 9)]
        world.models += more
        world.wanted(len(world.models))
        world.backing = Backing(named=frozenset(each.root for each in world.models))
        for model in world.models[1:]:
            world.library.kept.pop(model.root, None)
        world.reading = trio.Event()
        reads, began, said = world.reads, trio.current_time(), list[ShardAsked]()

        async def ask(number: int) -> None:
            said.append(await world.ask(number, peer_of(20 + number)))

        async with trio.open_nursery() as nursery:
            for number in range(1, len(world.models)):
                nursery.start_soon(ask, number)
        assert set(said) == {ShardAsked("full", 1.0)} and world.served == [0]
        assert trio.current_time() - began <= SHARD_READ_TIME
        assert world.reads - reads <= SHARDS_READ

    await asked(body)


@pytest.mark.trio
async def test_the_node_s_own_gateway_is_always_answered_and_all_hear_what_comes(
    autojump_clock: object,
) -> None:
    async def body(world: Asked) -> None:
        world.backing = Backing(named=frozenset([world.models[0].root]))
        for number in range(20, 20 + 2 * SHARDS_ASKED_IN_ALL[0]):
            question = Call(peer_of(number), AskShard(world.models[2].root).header(), b"")
            said = await world.asked.on_ask(question)
        assert isinstance(said, Refusal) and said.code == "busy"
        assert (await world.ask(2, peer_of(1))).code == "unasked"
        for _ in range(2 * int(SHARDS_ASKED[0])):
            assert (await world.ask(0, peer_of(1))).code == "loading"
            assert (await world.ask(0)).code == "loading"

    await asked(body)


def serves(world: Asked, number: int, start: int, stop: int) -> ShardRecord:
    """Return a shard of a model that has two layers."""
    return ShardRecord(
        world.models[number].root, start == 0, start, stop, stop == 2, "float32", 100
    )


@pytest.mark.trio
async def test_nothing_is_unloaded_for_a_model_that_members_serve(autojump_clock: object) -> None:
    async def body(world: Asked) -> None:
        high = next(peer_of(n) for n in range(3, 99) if peer_of(n) > peer_of(1))
        world.directory.put(record_of(high, shards=(serves(world, 1, 0, 2),)))
        assert await world.ask(1) == ShardAsked("unasked")
        await trio.sleep(5)
        assert world.served == [0]
        world.directory.put(record_of(high))
        assert await world.ask(1) == ShardAsked("loading")

    await asked(body)


@pytest.mark.trio
async def test_a_part_of_a_chain_that_is_complete_is_not_loaded_again(
    autojump_clock: object,
) -> None:
    async def body(world: Asked) -> None:
        one = world.serving.all[0]
        assert one._plan is not None
        one._plan = one._plan.at((0, 1))
        world.directory.publish(shards=(serves(world, 0, 0, 1),))
        world.directory.put(record_of(GATEWAY, shards=(serves(world, 0, 1, 2),)))
        assert await world.ask(0) == ShardAsked("unasked") and one.held is not None
        world.directory.put(record_of(GATEWAY))
        assert await world.ask(0) == ShardAsked("loading") and one.held is None

    await asked(body)


@pytest.mark.trio
async def test_a_node_that_is_barred_promises_nothing(autojump_clock: object) -> None:
    world = Asked(memory=2**30)
    world.wanted(0)

    async def body() -> None:
        await trio.sleep(5)
        assert all(each.is_free for each in world.serving.all[:1])
        world.serving.bar("its owner plays a game")
        await trio.sleep(5)
        assert not any(each.is_free for each in world.serving.all)
        world.wanted(3)
        assert await world.ask(1) == ShardAsked("unasked")
        world.serving.bar(None)
        await trio.sleep(60)
        assert await world.ask(1) == ShardAsked("loading")

    await world.run(body)


@pytest.mark.trio
async def test_the_memory_of_shards_that_leave_is_kept_for_the_model(
    autojump_clock: object,
) -> None:
    """The slots that become free take nothing before it is loaded."""
    memory = 2**30
    world = Asked(memory=memory)
    world.wanted(2)

    async def body() -> None:
        await trio.sleep(SLOT_STAY + SLOT_WANTED + 20)
        assert sorted(world.served) == [0, 1]
        world.wanted(3)
        read = world.asked._read

        async def large(root: str) -> Any:
            plan = await read(root)
            assert plan is not None
            sizes = SimpleNamespace(everything=memory - 1000)
            return SimpleNamespace(sizes=sizes, arch=plan.arch)

        world.asked._read = large  # type: ignore[method-assign]
        loads, world.engine.held = len(world.engine.loads), trio.Event()
        assert await world.ask(2) == ShardAsked("loading")
        await trio.sleep(60)
        assert world.serving.free_bytes == 1000
        world.engine.held.set()
        await trio.sleep(0.1)
        assert [each.root for each in world.engine.loads[loads:]] == [world.models[2].root]
        assert world.serving.free_bytes == memory - world.serving.loaded_bytes

    await world.run(body)


@pytest.mark.trio
async def test_a_model_that_cannot_be_loaded_keeps_no_memory(autojump_clock: object) -> None:
    async def body(world: Asked) -> None:
        world.engine.errors = [EngineError("no-memory", "no memory")] * 9
        world.backing = Backing()
        assert (await world.ask(1)).code == "unasked"
        world.backing = Backing(named=frozenset([world.models[1].root]))
        assert (await world.ask(1)).code == "loading"
        assert world.serving.free_bytes < ONE
        await trio.sleep(1)
        assert world.serving.phase == "failed" and world.serving.free_bytes == ONE

    await asked(body)


@pytest.mark.trio
async def test_layers_that_were_fetched_too_late_do_not_replace_what_was_asked_for(
    autojump_clock: object,
) -> None:
    world = Asked()
    one, late = world.serving.all[0], trio.Event()

    async def following(plan: ShardPlan) -> ShardPlan:
        with trio.CancelScope(shield=True):  # a thread that ends after the shard has left
            await late.wait()
        if plan.root != world.models[0].root or plan.span != (0, 2):
            await trio.sleep_forever()
        return plan.at((0, 1))

    fetch = one._fetch

    async def fetched(plan: ShardPlan) -> None:
        with trio.CancelScope(shield=True):
            await fetch(plan)

    one._next, one._fetch = following, fetched  # type: ignore[method-assign]

    async def body() -> None:
        await trio.sleep(SLOT_STAY + SLOT_WANTED)
        assert world.served == [0]
        world.wanted(3)
        assert await world.ask(1) == ShardAsked("loading")
        late.set()
        await trio.sleep(5)
        assert world.served == [1]
        assert {aim.root for aim in world.directory.own().aims} == {world.models[1].root}

    await world.run(body)

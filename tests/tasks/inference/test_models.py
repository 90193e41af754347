"""Tests of models for a gateway: resolved, fetched, and one shared text process each."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from shoal.dht.content.library import Library
from shoal.dht.content.manifest import Blob, Manifest
from shoal.dht.errors import ModelError
from shoal.dht.exchange.exchange import ChunkExchange
from shoal.state.membership.record import ModelName
from shoal.tasks.defaults import TEXT_MEMORY
from shoal.tasks.errors import SessionError, TextError
from shoal.tasks.inference.generation import Model, TextCodec
from shoal.tasks.inference.models import Models
from shoal.tasks.inference.sources import ModelSources
from shoal.tasks.text.process import ModelFiles, TextProcess
from shoal.transport.host.seam import Host
from tests.tasks.fake_model import small_manifest
from tests.tasks.fake_node import OTHER, FakeDirectory, FakeExchange, FakeLibrary, record_of
from tests.tasks.fake_swarm import FakeHost, FakeText


class FakeProcess(FakeText):
    """Text process that counts how often it was started."""

    def __init__(self, world: "World", files: ModelFiles) -> None:
        self.files = files
        self._world = world

    async def run(self, *, task_status: Any) -> None:
        await trio.lowlevel.checkpoint()
        if self._world.errors:
            raise self._world.errors.pop()
        self._world.running.append(self.files.name)
        task_status.started(self.info)
        try:
            await trio.sleep_forever()
        finally:
            self._world.running.remove(self.files.name)


class World:
    def __init__(self, kept: int = 1) -> None:
        self.manifest = small_manifest()
        self.directory = FakeDirectory()
        self.library = FakeLibrary()
        self.exchange = FakeExchange(self.library, self.manifest)
        self.processes: list[FakeProcess] = []
        self.errors: list[TextError] = []
        self.running: list[str] = []  # the models of the text processes
        self.memory = 8 * TEXT_MEMORY
        self.passed: list[tuple[str, int]] = []
        self.models = Models(
            cast(Host, FakeHost()),
            ModelSources(
                cast(Library, self.library),
                cast(ChunkExchange, self.exchange),
                self.directory,
                reserve=self._pass,
            ),
            kept=kept,
            text_process=self._process,
            memory=lambda: self.memory,
        )
        self.others("small")

    @property
    def alive(self) -> int:
        return len(self.running)

    def _process(self, host: Host, files: ModelFiles) -> TextProcess:
        self.processes.append(FakeProcess(self, files))
        return cast(TextProcess, self.processes[-1])

    async def _pass(self, root: str, needed: int) -> None:
        await trio.lowlevel.checkpoint()
        self.passed.append((root, needed))

    def others(self, *names: str) -> None:
        """Make another member name these models. The first one exists."""
        roots = [self.manifest.root, *(f"{number:064x}" for number in range(1, 9))]
        models = tuple(
            ModelName(name, root, 2, 9) for name, root in zip(names, roots, strict=False)
        )
        self.directory.put(record_of(OTHER, models=models))

    async def run(self, body: Callable[[], Awaitable[None]]) -> None:
        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                await nursery.start(self.models.run)
                await body()
                nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_model_is_fetched_and_shared_while_in_use(autojump_clock: object) -> None:
    world = World()

    async def body() -> None:
        async with world.models.use("small") as model:
            assert (model.root, model.name) == (world.manifest.root, "small")
            assert (model.layers, model.hidden, model.context, model.vocabulary) == (2, 8, 600, 20)
            async with world.models.use(world.manifest.root[:12]) as again:
                assert again is model
        assert len(world.processes) == 1
        assert world.processes[0].files.tokenizer == b"tokenizer"
        assert world.exchange.asked == [OTHER]
        assert world.exchange.fetched == ["ff" * 32]  # the files, no weights
        assert world.alive == 1  # kept for the next

    await world.run(body)
    assert world.alive == 0


@pytest.mark.trio
async def test_only_models_that_were_not_here_reserve_disk_space(autojump_clock: object) -> None:
    for known in (False, True):
        world = World()
        if known:
            world.library.kept[world.manifest.root] = world.manifest
        size = sum(blob.size for blob in world.manifest.files.values())
        async with trio.open_nursery() as nursery:
            await nursery.start(world.models.run)
            async with world.models.use("small"):
                assert world.exchange.fetched
                assert world.passed == ([] if known else [(world.manifest.root, size)])
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_processes_stay_within_the_memory_limit(autojump_clock: object) -> None:
    world = World(kept=4)
    world.memory = 2 * TEXT_MEMORY
    world.others("small", "second", "third")

    async def body() -> None:
        async with world.models.use("small"), world.models.use("second"):
            with pytest.raises(SessionError) as raised:
                async with world.models.use("third"):
                    pass
            assert raised.value.code == "no-memory" and raised.value.hint
            assert world.alive == 2
        async with world.models.use("third"):
            await trio.testing.wait_all_tasks_blocked()
            assert world.alive == 2, "an idle one has ended"
            assert "small" not in world.running
        world.memory = 0  # of a node whose shard takes all: one may read all the same
        async with world.models.use("small"):
            await trio.testing.wait_all_tasks_blocked()
            assert world.alive == 1
            with pytest.raises(SessionError):
                async with world.models.use("second"):
                    pass

    await world.run(body)


@pytest.mark.trio
async def test_idle_processes_beyond_the_limit_end(autojump_clock: object) -> None:
    world = World()
    world.others("small", "second", "third")

    async def body() -> None:
        async with world.models.use("small"), world.models.use("second"):
            async with world.models.use("third"):
                assert world.alive == 3
            await trio.testing.wait_all_tasks_blocked()
            assert world.alive == 3  # one idle one is kept, those in use always
        await trio.testing.wait_all_tasks_blocked()
        assert world.alive == 1
        async with world.models.use("small"):
            assert len(world.processes) == 4  # the least lately used had ended

    await world.run(body)


@pytest.mark.trio
async def test_an_error_reaches_all_waiters_and_is_not_cached(
    autojump_clock: object,
) -> None:
    world = World()
    world.errors = [TextError("bad-tokenizer", "it is no tokenizer")]

    async def failing() -> None:
        with pytest.raises(TextError, match="no tokenizer"):
            async with world.models.use("small"):
                pass

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(failing)
            nursery.start_soon(failing)
        async with world.models.use("small") as model:
            assert model.name == "small"

    await world.run(body)


@pytest.mark.trio
async def test_the_first_request_may_be_cancelled(autojump_clock: object) -> None:
    world = World()
    world.exchange.hold = trio.Event()

    async def asking() -> None:
        async with world.models.use("small"):
            pass

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(1):
                await asking()
            nursery.start_soon(asking)
            await trio.testing.wait_all_tasks_blocked()
            assert world.exchange.hold is not None
            world.exchange.hold.set()
        assert len(world.processes) == 1

    await world.run(body)


@pytest.mark.trio
async def test_an_unknown_name_is_answered_with_the_nearest(autojump_clock: object) -> None:
    world = World()

    async def body() -> None:
        with pytest.raises(ModelError, match="did you mean `small`"):
            async with world.models.use("smell"):
                pass

    await world.run(body)


@pytest.mark.trio
async def test_models_with_one_tokenizer_share_a_text_process(autojump_clock: object) -> None:
    world, same = World(), small_manifest(30)
    other = replace(small_manifest(40), files={"tokenizer": Blob(4, ("ee" * 32,))})
    known = {each.root: each for each in (world.manifest, same, other)}
    asked: list[str] = []

    async def manifest(root: str) -> Manifest:
        await trio.lowlevel.checkpoint()
        asked.append(root)
        return known[root]

    sources = SimpleNamespace(manifest=manifest)
    models = Models(cast(Host, FakeHost()), cast(ModelSources, sources))
    text = cast(TextCodec, FakeText())
    model = Model(world.manifest.root, "small", 2, 8, 600, 20, text)
    for _ in range(2):
        found = await models.alike(model, same.root)
        assert found is not None and found.text is text
        assert (found.root, found.layers, found.adapter) == (same.root, 2, "")
        assert await models.alike(model, other.root) is None
    assert len(asked) == 4, "each pair once"

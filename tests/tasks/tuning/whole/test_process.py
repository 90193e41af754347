"""The process that trains a whole model, for real: the same numbers, and what it does when it
fails."""

import json
import os
import signal
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio

from shoal.dht.content.library import Library
from shoal.dht.content.manifest import Manifest
from shoal.node.daemon.embedded import embedded_folder
from shoal.tasks.engine.families import architecture, check_model
from shoal.tasks.errors import SessionError
from shoal.tasks.tuning.interface import Batch, LearnedName, WeightName
from shoal.tasks.tuning.trainer.errors import TuningError
from shoal.tasks.tuning.trainer.optimiser import Array
from shoal.tasks.tuning.whole.models import Computer, Content, WholeModels, memory_needed
from shoal.tasks.tuning.whole.network import WholeNetwork
from shoal.tasks.tuning.whole.subject import WholeSubject
from shoal.tasks.tuning.whole.weights import floats
from shoal.transport.host.real import RealHost

pytestmark = pytest.mark.trio
CONFIG: dict[str, Any] = json.loads((embedded_folder() / "config.json").read_text())
ARCH = architecture(CONFIG)


class World:
    """A library with the embedded model."""

    def __init__(self, folder: Path) -> None:
        self.host = RealHost()
        self.library = Library(self.host, folder / "models", check_config=check_model)
        self.rooms, self.announced = list[int](), list[str]()
        self.memory = 1 << 30
        self.why: str | None = None

    async def open(self) -> "World":
        await self.library.open()
        _, manifest = await self.library.add(embedded_folder(), "tiny")
        self.root = manifest.root
        content = Content(self.library, self.fetch, self.make_room, self.announce)
        computer = Computer(1, lambda: self.memory, lambda: self.why, self.reserve)
        self.models = WholeModels(self.host, content, computer)
        return self

    def subject(self) -> AbstractAsyncContextManager[WholeSubject]:
        return self.models.subject(self.root, 512, together=False)

    def reserve(self, size: int) -> None:
        self.memory -= size

    async def fetch(self, root: str) -> Manifest:
        return await self.library.manifest(root)

    async def make_room(self, size: int) -> None:
        await trio.lowlevel.checkpoint()
        self.rooms.append(size)

    async def announce(self, root: str) -> None:
        await trio.lowlevel.checkpoint()
        self.announced.append(root)


def batch() -> Batch:
    random = np.random.default_rng(1)
    tokens, targets = random.integers(2, CONFIG["vocab_size"], (2, 3, 9)).astype(np.int32)
    targets[0, :3] = -1
    return Batch(tokens, targets)


async def test_the_process_computes_what_the_network_does_and_is_replaced(tmp_path: Path) -> None:
    world = await World(tmp_path).open()
    one = batch()
    async with world.subject() as subject:
        weights = await subject.first()
        found = await subject.gradients(one, weights, weights.keys())
        net = WholeNetwork(ARCH)
        for name, values in weights.items():
            assert isinstance(name, WeightName)
            net.set(name.role, torch.from_numpy(values))
        torch.set_num_threads(1)
        tokens, targets = (torch.from_numpy(each).long() for each in (one.tokens, one.targets))
        loss, counted = net.compute(tokens, targets, back=True)
        assert (found.loss, found.counted) == (loss, counted) == (loss, 24)
        for name, each in found.tensors.items():
            assert isinstance(name, WeightName)
            np.testing.assert_array_equal(each, net.gradient(name.role).numpy())
        child = subject.process.child
        assert child is not None
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(SessionError, match="process that trains the model failed") as crashed:
            await subject.loss(one, weights)
        assert crashed.value.code == "worker-crashed"
        assert await subject.loss(one, weights) == (found.loss, 24)
        with pytest.raises(SessionError) as refused:
            await subject.loss(Batch(one.tokens + 9999, one.targets), weights)
        assert refused.value.code == "bad-token"
        assert subject.process.is_open, "a refusal is a reply"
    broken = {name: each.copy() for name, each in weights.items()}
    broken[WeightName("model.norm.weight")][0] = np.nan
    async with world.subject() as subject:
        with pytest.raises(SessionError) as refused:
            await subject.loss(one, broken)
        assert refused.value.code == "not-finite"


async def test_a_cancelled_request_leaves_no_process(tmp_path: Path) -> None:
    world = await World(tmp_path).open()
    async with world.subject() as subject:
        weights = await subject.first()
        await subject.loss(batch(), weights)
        child = subject.process.child
        with trio.CancelScope() as scope:
            scope.cancel()
            await subject.loss(batch(), weights)
        assert scope.cancelled_caught and not subject.process.is_open
        assert child is not None and await child.wait() is not None


async def test_the_result_is_a_model_for_transformers_and_for_the_library(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    world = await World(tmp_path).open()
    async with world.subject() as subject:
        weights = await subject.first()
    trained: dict[LearnedName, Array] = {name: each + 0.01 for name, each in weights.items()}
    folder = tmp_path / "out"
    await world.models.write(folder, world.root, trained)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    for name, each in dict(model.named_parameters()).items():
        np.testing.assert_array_equal(each.detach().numpy(), trained[WeightName(name)])
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("A shoal").input_ids
    root = await world.models.publish(folder, "mine")
    assert world.library.resolve("mine") == root != world.root
    assert world.announced == [root] and world.rooms[0] > 17 << 20
    assert "mine" in await world.models.named()
    async with world.models.subject(root, 512, together=False) as subject:
        again = await subject.first()
    assert all(again[name].tobytes() == each.tobytes() for name, each in trained.items())


async def test_a_model_that_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    world = await World(tmp_path).open()

    async def refused(config: Mapping[str, object], *, length: int = 512) -> TuningError:
        async def fetch(root: str) -> Manifest:
            found = await world.library.manifest(root)
            return Manifest({**found.config, **config}, found.files, found.tensors)

        content = Content(world.library, fetch, world.make_room, world.announce)
        computer = Computer(1, lambda: world.memory, lambda: world.why, world.reserve)
        models = WholeModels(world.host, content, computer)
        arch = architecture({**CONFIG, **config})
        with pytest.raises(TuningError) as found:
            await models.check(world.root, arch, length, together=False)
        return found.value

    await world.models.check(world.root, ARCH, 512, together=True)
    scheme = {"quant_method": "shoal", "version": 1, "layout": "int8/32"}
    assert (await refused({"quantization_config": scheme})).code == "quantised"
    world.memory = memory_needed(ARCH, 512, together=False) - 1
    short = await refused({})
    assert short.code == "no-memory" and "4,656,384 weights" in short.message
    world.memory = memory_needed(ARCH, 512, together=False)
    await world.models.check(world.root, ARCH, 512, together=False)
    with pytest.raises(TuningError):
        await world.models.check(world.root, ARCH, 512, together=True)
    world.why = "torch is absent"
    assert (await refused({})).code == "no-engine"


async def test_a_training_reserves_its_memory_until_it_ends(tmp_path: Path) -> None:
    world = await World(tmp_path).open()
    needed = memory_needed(ARCH, 512, together=False)
    world.memory = 2 * needed - 1
    async with world.subject():
        assert world.memory == needed - 1
        with pytest.raises(TuningError) as refused:
            async with world.subject():
                pass
        error = refused.value
        assert error.code == "no-memory" and f"{-(-needed // 2**20):,} MiB" in error.message
        assert "--memory" in str(error.hint) and "--layers" in str(error.hint)
    assert world.memory == 2 * needed - 1
    with pytest.raises(ZeroDivisionError):
        async with world.subject():
            raise ZeroDivisionError
    assert world.memory == 2 * needed - 1


@pytest.mark.parametrize("what", ["stopped", "silent"])
async def test_a_frozen_process_is_ended_and_replaced(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.tasks.tuning.whole.process.WATCH_S", 0.2)
    world = await World(tmp_path).open()
    async with world.subject() as subject:
        weights = await subject.first()
        loss = await subject.loss(batch(), weights)
        child = subject.process.child
        assert child is not None
        if what == "silent":  # as if the system did not say that it is stopped
            monkeypatch.setattr(type(child), "is_stopped", lambda self: False)
            monkeypatch.setattr("shoal.tasks.tuning.whole.process.ANSWER_S", 1.0)
        os.kill(child.pid, signal.SIGSTOP)
        with trio.fail_after(30), pytest.raises(SessionError, match="it does not answer") as hung:
            await subject.loss(batch(), weights)
        assert hung.value.code == "worker-crashed"
        assert await child.wait() == -signal.SIGKILL
        monkeypatch.undo()
        assert await subject.loss(batch(), weights) == loss


async def test_values_of_stored_dtypes() -> None:
    await trio.lowlevel.checkpoint()
    wanted = torch.tensor([1.5, -0.25, 3.0])
    for name, dtype in (("BF16", torch.bfloat16), ("F16", torch.float16), ("F32", torch.float32)):
        data = wanted.to(dtype).view(torch.uint8).numpy().tobytes()
        np.testing.assert_array_equal(floats(data, name), wanted.numpy())

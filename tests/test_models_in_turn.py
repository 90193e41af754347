"""A node with a real engine worker and memory for one model, of which a client asks for two."""

from functools import partial
from pathlib import Path

import pytest
import trio

from shoal.state.membership.record import Capacity, ModelName
from shoal.tasks.engine.process import EngineProcess
from shoal.tasks.errors import Overloaded
from shoal.tasks.inference.courier import Courier
from shoal.tasks.inference.gateway import Gateway, GenerateRequest, Summary
from shoal.tasks.inference.stage import Stage
from shoal.tasks.placement.demand import Backing
from shoal.tasks.serving import asked, turn
from shoal.tasks.serving.asked import AskedShards
from shoal.tasks.serving.interface import DeviceShare, ServingDevices, ServingSettings
from shoal.tasks.serving.slots import Slots
from shoal.transport.host.real import RealHost
from tests.test_swarm_text import Checkpoint, Client, Node

EPS = {"a": 1e-6, "b": 1e-2}  # in which the models differ
MEMORY = 2_000_000  # bytes: one model needs 1.3 MB


class Turns(Node):
    """A node that chooses what it serves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        host, courier = RealHost(), Courier(self.endpoint)
        self.engine = EngineProcess(host, threads=1, memory_bytes=MEMORY)
        self.stage = Stage(host, courier, self.engine)
        sources = self.serving.all[0]._sources
        self.gateway = Gateway(host, courier, self.directory, self.models)
        settings = ServingSettings(MEMORY)
        device = ServingDevices(self.stage, [DeviceShare(self.engine, 0)])

        def backing() -> Backing:
            return Backing(named=self.library.roots())

        self.serving = Slots(host, device, sources, settings, backing=backing)
        AskedShards(host, self.stage, self.serving, sources, settings, backing=backing).listen(
            courier
        )

    async def add(self, folder: Path, name: str) -> None:
        _, manifest = await self.library.add(folder, name)
        own, size = self.directory.own(), manifest.weight_bytes(True, 0, manifest.layers, True)
        self.directory.publish(
            models=(*own.models, ModelName(name, manifest.root, manifest.layers, size)),
            stored=(*own.stored, manifest.root),
            capacity=Capacity(2, MEMORY, True),
        )

    async def ask(self, model: str) -> Summary:
        request = GenerateRequest(model=model, prompt="Hello", raw=True, max_tokens=24)
        return await self.gateway.generate(request, Client().emit)


@pytest.mark.ci
@pytest.mark.trio
async def test_the_worker_frees_an_idle_model_and_loads_the_one_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked, "SLOT_WANTED", 0.0)
    for module in (asked, turn):
        monkeypatch.setattr(module, "SLOT_STAY", 0.5)
    monkeypatch.setattr(turn, "SLOT_STAY_LOADS", 0.1)
    references = {name: Checkpoint(tmp_path / name, rms_norm_eps=eps) for name, eps in EPS.items()}
    node = Turns(tmp_path / "node", None)
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(node.run, (), None))
            for name in "ab":
                await node.add(tmp_path / name, name)
            for name in "abab":
                while True:
                    try:
                        said = await node.ask(name)
                        break
                    except Overloaded as refused:
                        await trio.sleep(refused.retry_s)
                assert list(said.token_ids) == references[name].greedy("Hello", 24)
                assert node.engine is not None
                usage = await node.engine.usage()
                assert usage["weight_bytes"] < MEMORY
                # Another slot may serve some layers of the other model, but not the whole model.
                own = node.directory.own()
                whole = [shard.root for shard in own.shards if shard.embedding and shard.head]
                assert whole == [model.root for model in own.models if model.name == name]
            nursery.cancel_scope.cancel()

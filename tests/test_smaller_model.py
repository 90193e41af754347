"""A node that serves a small model guesses with it what a chain of other nodes says."""

from functools import partial
from pathlib import Path

import pytest
import trio

from shoal.state.membership.record import ModelName
from shoal.tasks.engine.interface import Sampling
from shoal.tasks.engine.process import EngineProcess
from shoal.tasks.inference.conversation import guessing
from shoal.tasks.inference.courier import Courier
from shoal.tasks.inference.gateway import Gateway, GenerateRequest, Summary
from shoal.tasks.inference.models import Models
from shoal.tasks.inference.sources import ModelSources
from shoal.tasks.inference.stage import Stage
from shoal.tasks.placement.demand import Backing
from shoal.tasks.serving.interface import DeviceShare, ServingDevices, ServingSettings
from shoal.tasks.serving.slots import Slots
from shoal.transport.host.real import RealHost
from tests.test_swarm_text import LAYERS, Checkpoint, Client, Node, _sees


class Guesser(Node):
    """A node that serves another model, the whole of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        host, courier = RealHost(), Courier(self.endpoint)
        self.engine = EngineProcess(host, threads=1)
        self.stage = Stage(host, courier, self.engine)
        sources = ModelSources(self.library, self.exchange, self.directory)
        self.models = Models(host, sources)
        self.gateway = Gateway(host, courier, self.directory, self.models)
        self.serving = Slots(
            host,
            ServingDevices(self.stage, [DeviceShare(self.engine, 0)]),
            sources,
            ServingSettings(memory=2**28, model="less", layers=(0, LAYERS), dtype="float32"),
            backing=Backing,
        )

    async def _add(self, checkpoint: Path) -> None:
        name, manifest = await self.library.add(checkpoint, "less")
        bytes_ = manifest.weight_bytes(True, 0, manifest.layers, True)
        self.directory.publish(
            models=(ModelName(name, manifest.root, manifest.layers, bytes_),),
            stored=(manifest.root,),
        )


async def _ask(node: Node, sampling: Sampling, user: str = "") -> Summary:
    request = GenerateRequest(
        "small", "Hello there", raw=True, max_tokens=60, sampling=sampling, user=user
    )
    return await node.gateway.generate(request, Client().emit)


@pytest.mark.trio
@pytest.mark.parametrize("temperature", [0.0, 0.9])
async def test_a_smaller_model_guesses_and_the_text_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    monkeypatch.setattr(guessing, "SAID_SPEED", 0.0)  # it is as large here
    folder, less = tmp_path / "model", tmp_path / "less"
    Checkpoint(folder)
    Checkpoint(less, rms_norm_eps=1e-5)  # another model that says nearly the same
    first, last = (Node(tmp_path / str(at), (at, at + 2)) for at in (0, 2))
    asks = Guesser(tmp_path / "asks", None)
    sampling = Sampling(temperature=temperature, seed=3)
    with trio.fail_after(300):
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(first.run, (), folder))
            await nursery.start(partial(last.run, (first.address,), None))
            await nursery.start(partial(asks.run, (first.address,), less))
            for node in (first, asks):
                await _sees(node, 3)
            alone = await _ask(first, sampling)
            # Each user has another history. A busy machine may delay the guesses of one answer.
            said = [await _ask(asks, sampling, user) for user in "abc"]
            nursery.cancel_scope.cancel()
    # The text is not compared: what replaces bytes that are no text depends on how they come.
    assert {each.token_ids for each in said} == {alone.token_ids}
    assert alone.tokens > 20
    assert max(each.drafts.right for each in said) > alone.tokens / 2 > 2 * alone.drafts.right

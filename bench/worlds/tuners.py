"""Real daemons on this machine that serve the embedded model for a trainer in this process."""

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
import transformers
import trio

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests/

from shoal.node.daemon.daemon import Node, run_node
from shoal.node.defaults import EMBEDDED_ROOT
from shoal.node.settings.config import NodeConfig
from shoal.tasks.engine.adapters import AdapterTerms, module_shapes
from shoal.tasks.engine.families import architecture
from shoal.tasks.engine.interface import Parts
from shoal.tasks.tuning.chain.parts import names_of, shape_of
from shoal.tasks.tuning.interface import AdapterTensors, Batch, TensorName
from shoal.transport.address import Address
from shoal.transport.host.real import RealHost
from tests.cli.daemons import Daemon, daemons

TINY: Final = Path(__file__).parents[2] / "shoal" / "models" / "tiny"
ARCH: Final = architecture(json.loads((TINY / "config.json").read_text()))
ROOT: Final = EMBEDDED_ROOT


def start_stages(start: object, folder: Path, layers: Sequence[str], dtype: str) -> list[Daemon]:
    """Start a daemon with one thread for each range of layers, and wait until all serve."""
    found: list[Daemon] = []
    for index, each in enumerate(layers):
        words = ["--no-lan", "--model", "tiny", "--layers", each, "--memory", "1GiB"]
        words += ["--dtype", dtype, "--threads", "1"]
        if found:
            words += ["--bootstrap", found[0].address]
        found.append(start(folder / str(index), *words))  # type: ignore[operator]
        found[-1].wait_until(lambda status: bool(status["addresses"]))
    for node in found:
        node.wait_until(lambda status: status["serving"]["phase"] == "serving")
    return found


@asynccontextmanager
async def trainer(folder: Path, layers: Sequence[str], dtype: str) -> AsyncIterator[Node]:
    """Run daemons for the layers, and a node of this process without an engine that knows them."""
    with daemons() as start:
        found = await trio.to_thread.run_sync(start_stages, start, folder, layers, dtype)
        config = NodeConfig(
            data=folder / "trainer",
            listen="127.0.0.1",
            bootstrap=(Address.parse(found[0].address),),
            model="none",
        )
        run = partial(run_node, RealHost(), config, engine_factory=lambda *_: None)
        async with trio.open_nursery() as nursery:
            node: Node = await nursery.start(run)
            while _shards(node) < len(layers):  # noqa: ASYNC110
                await trio.sleep(0.1)
            yield node
            node.stop()


def _shards(node: Node) -> int:
    return sum(len(record.shards) for record in node.directory.members().values())


def adapter(rank: int = 8, seed: int = 1) -> AdapterTensors:
    """Return a random adapter of all projections of the embedded model."""
    layers, modules = tuple(range(ARCH.layers)), tuple(module_shapes(ARCH))
    terms = AdapterTerms(ROOT, rank, 2.0 * rank, False, "F32", modules, layers)
    rng = np.random.default_rng(seed)
    return AdapterTensors(
        terms,
        {
            name: rng.standard_normal(shape_of(name, terms, ARCH), np.float32) * np.float32(0.05)
            for name in names_of(terms, Parts(True, 0, ARCH.layers, True))
        },
    )


def batch(rows: int, length: int, seed: int = 2) -> Batch:
    """Return random tokens, whose targets are the tokens after them."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, ARCH.vocab, (rows, length)).astype(np.int32)
    targets = np.roll(tokens, -1, 1)
    targets[:, -1] = -1
    return Batch(tokens, targets)


class LocalModel:
    """The embedded model in this process, with an adapter, for torch's autograd."""

    def __init__(self, given: AdapterTensors, dtype: torch.dtype = torch.float32) -> None:
        """Load the model. Its weights are rounded to `dtype`, and computed in float32."""
        model = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=dtype).float()
        self.model = model.requires_grad_(False)
        self.leaves = {
            name: torch.from_numpy(each.copy()).requires_grad_()
            for name, each in given.tensors.items()
        }
        scale = given.terms.scale
        for layer, block in enumerate(model.model.layers):
            for module in given.terms.modules:
                part = block.self_attn if module[0] in "qkvo" else block.mlp
                down, up = (self.leaves[TensorName(layer, module, side)] for side in ("A", "B"))
                getattr(part, module).register_forward_hook(
                    lambda _, x, out, a=down, b=up: out + scale * (x[0] @ a.t()) @ b.t()
                )

    def gradients(self, given: Batch) -> tuple[float, dict[TensorName, np.ndarray]]:
        """Return the loss of a batch, and its derivatives."""
        tokens = torch.from_numpy(given.tokens).long()
        targets = torch.from_numpy(given.targets).flatten().long()
        logits = self.model(tokens, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets, ignore_index=-1, reduction="sum"
        )
        found = torch.autograd.grad(loss, list(self.leaves.values()))
        pairs = zip(self.leaves, found, strict=True)
        return float(loss.detach()), {name: each.numpy() for name, each in pairs}

"""Cost of a token beside its forward pass: one daemon with all layers, and three in a chain.

Real daemons (`shoal node`) on loopback compared with the same forward pass in a bare loop of this
process, interleaved. Elapsed times are in reference ms (`yardstick.py`, elapsed too). Goals: at
most 0.2 reference ms added per token for the embedded model; a random 125 million parameter shape
at 0.95 of the bare loop's speed; at most 2 reference ms per hop and token over three daemons.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import trio
from safetensors.torch import save_file
from yardstick import Yardstick

from shoal.cli.client import request
from shoal.cli.swarm import LocalSwarm
from shoal.dht.content.library import Library
from shoal.node.control.messages.generation import GeneratedText, Run
from shoal.node.control.messages.models import AddModel
from shoal.node.control.messages.node import Status
from shoal.tasks.engine.compute.torchcompute import TorchCompute
from shoal.tasks.engine.families import architecture, tensor_shapes
from shoal.tasks.engine.interface import LoadShard, Parts, Sampling
from shoal.tasks.engine.kv.blocks import BlockPool, BlockTable, blocks_for
from shoal.tasks.engine.sampling import choose
from shoal.tasks.engine.shard import Piece
from shoal.tasks.placement.shard import choose_dtype, shard_of
from shoal.transport.host.real import RealHost

MEASURES = ("tasks", "dht", "transport", "node", "cli", "shoal/models")

TINY = Path(__file__).resolve().parent.parent / "shoal" / "models" / "tiny"
PROMPTS = ("In the beginning", "And God said", "Return the", "The LORD", "A function that")
GOALS = {"added_reference_ms": 0.2, "ratio": 0.95, "hop_reference_ms": 2.0}
KV_BYTES = 2**28
START_SECONDS = 60.0
# 12 layers of GPT-2's width in Llama's shape, embedding and head tied: 124 million parameters.
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 768,
    "intermediate_size": 2048,
    "max_position_embeddings": 1024,
    "model_type": "llama",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "num_key_value_heads": 12,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "vocab_size": 50304,
}


@dataclass(frozen=True)
class Case:
    """A model folder, the shard with all of its layers, and how many tokens to time."""

    name: str
    folder: Path
    shard: LoadShard
    tokens: int

    @property
    def layers(self) -> int:
        return self.shard.parts.stop


class Bare:
    """The engine's own forward pass, cache and sampling, called in a loop."""

    def __init__(self, case: Case) -> None:
        self._model = TorchCompute(architecture(case.shard.config), case.shard)
        self._tokens = case.tokens

    def token_ms(self, prompt_tokens: int) -> float:
        """Return the milliseconds per token after the first, at the positions that the daemons
        computed.
        """
        with torch.inference_mode():
            return self._token_ms(prompt_tokens)

    def _token_ms(self, prompt_tokens: int) -> float:
        model, size = self._model, prompt_tokens + self._tokens
        model.allocate(blocks_for(size), 0)
        model.costs()  # decides how products are padded
        table = BlockTable(BlockPool(blocks_for(size)), size)
        ids = model.fed_back(*[1] * prompt_tokens)
        position, began = 0, 0.0
        for step in range(self._tokens):
            table.prepare(position, position + len(ids))
            piece = Piece(table, ids, 0, len(ids), position, decode=step > 0)
            (x,) = model.forward([piece])
            position += len(ids)
            table.fill(position)
            token, _ = choose(model.logits(x[-1:])[0].numpy(), Sampling(), position)
            ids = model.fed_back(token)
            if step == 0:
                began = time.perf_counter()
        return 1e3 * (time.perf_counter() - began) / (self._tokens - 1)


async def _case(name: str, folder: Path, store: Path, tokens: int) -> Case:
    library = Library(RealHost(), store)
    await library.open()
    _, manifest = await library.add(folder, name)
    arch = architecture(manifest.config)
    whole = Parts(True, 0, arch.layers, True)
    dtype = choose_dtype(manifest, "auto")  # the daemons choose the same
    shard = shard_of(manifest, arch, whole, dtype, 2**40, library.store.path)
    return Case(name, folder, shard, tokens)


def _write_shape(folder: Path) -> Path:
    """Write a folder with random weights of SHAPE, and the embedded model's tokenizer."""
    folder.mkdir()
    shutil.copy(TINY / "tokenizer.json", folder)
    (folder / "config.json").write_text(json.dumps(SHAPE))
    arch = architecture(SHAPE)
    torch.manual_seed(0)
    tensors = {
        name: torch.randn(shape, dtype=torch.bfloat16) * 0.02
        for name, shape in tensor_shapes(arch, Parts(True, 0, arch.layers, True)).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class Daemons:
    """A chain of daemons on loopback that divide one case's layers equally."""

    def __init__(self, swarm: LocalSwarm, case: Case, count: int) -> None:
        self._swarm = swarm
        self._case = case
        cuts = [case.layers * index // count for index in range(count + 1)]
        self._start(f"{cuts[0]}:{cuts[1]}")
        first = self._wait(lambda status: bool(status.addresses))
        if case.folder != TINY:  # the daemons have TINY already
            request(self._data, AddModel(path=str(case.folder), name=case.name), wait=True)
        for start, stop in pairwise(cuts[1:]):
            self._start(f"{start}:{stop}", "--bootstrap", first.addresses[0])

    def ready(self) -> None:
        """Wait until every layer is served."""
        self._wait(self._complete)

    @property
    def _data(self) -> Path:
        return self._swarm.nodes[0].data

    def _start(self, layers: str, *more: str) -> None:
        self._swarm.start(
            ["--listen", "127.0.0.1:0", "--threads", "1", "--model", self._case.name,
             "--layers", layers, *more]
        )  # fmt: skip

    def _complete(self, status: Status) -> bool:
        return any(model.complete and model.name == self._case.name for model in status.models)

    def _wait(self, ready: Callable[[Status], bool]) -> Status:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            status = self._swarm.nodes[0].status()
            if status is not None and ready(status):
                return status
            time.sleep(0.05)
        raise SystemExit(f"the daemons were not ready in {START_SECONDS:g} s")

    def ask(self, prompt: str) -> GeneratedText:
        """Return the most likely continuation, and its figures."""
        case = self._case
        ask = Run(model=case.name, prompt=prompt, raw=True, max_tokens=case.tokens)
        return request(self._data, ask, wait=True)


def _long_prompt(daemons: Daemons, case: Case) -> tuple[str, int]:
    """Return a prompt whose text does not end early, and its tokens."""
    for prompt in PROMPTS:
        answer = daemons.ask(prompt)
        if answer.tokens == case.tokens:
            return prompt, answer.prompt_tokens
    raise SystemExit(f"no prompt of {len(PROMPTS)} gave {case.tokens} tokens")


def _interleaved(
    case: Case, sides: dict[str, Daemons], rounds: int, stick: Yardstick
) -> tuple[dict[str, list[float]], list[float]]:
    """Return the milliseconds per token of the bare loop and of each side, and the hops that they
    report.
    """
    bare = Bare(case)
    prompt, prompt_tokens = _long_prompt(next(iter(sides.values())), case)
    taken: dict[str, list[float]] = {"bare": [], **{name: [] for name in sides}}
    hops: list[float] = []
    for _ in range(rounds):
        taken["bare"].append(bare.token_ms(prompt_tokens))
        stick.sample(5)
        for name, daemons in sides.items():
            answer = daemons.ask(prompt)
            taken[name].append(1e3 / answer.tokens_per_s)
            if name == "three":
                hops.append(answer.hop_ms)
    return taken, hops


def _added(taken: dict[str, list[float]], side: str) -> float:
    """Return the median, over the rounds, of the time that a side took longer than the bare loop
    just before it.
    """
    return median(ours - bare for bare, ours in zip(taken["bare"], taken[side], strict=True))


def _tiny(case: Case, one: Daemons, three: Daemons, rounds: int) -> dict[str, Any]:
    stick = Yardstick(time.perf_counter)
    taken, hops = _interleaved(case, {"one": one, "three": three}, rounds, stick)
    added, hop = _added(taken, "one"), _added(taken, "three") / 3
    return {
        "added_reference_ms": stick.reference_ms(added),
        "hop_reference_ms": stick.reference_ms(hop),
        "added_ms": added,
        "hop_ms": hop,
        "reference_ms": stick.ms,
        "reported_hop_ms": median(hops),
        "tiny_ms": {name: [round(ms, 4) for ms in times] for name, times in taken.items()},
    }


def _shape(case: Case, one: Daemons, rounds: int) -> dict[str, Any]:
    taken, _ = _interleaved(case, {"one": one}, rounds, Yardstick(time.perf_counter))
    return {
        "ratio": median(bare / one for bare, one in zip(taken["bare"], taken["one"], strict=True)),
        "shape_ms": {name: [round(ms, 3) for ms in times] for name, times in taken.items()},
    }


def _measure(folder: Path, quick: bool) -> dict[str, Any]:
    tiny = trio.run(_case, "tiny", TINY, folder / "tiny", 100)
    written = _write_shape(folder / "shape")
    shape = trio.run(_case, "shape", written, folder / "store", 16 if quick else 64)
    with ExitStack() as stack:  # all start at once, and are idle while others are measured
        one, three, large = (
            Daemons(stack.enter_context(LocalSwarm()), case, count)
            for case, count in ((tiny, 1), (tiny, 3), (shape, 1))
        )
        for daemons in (one, three, large):
            daemons.ready()
        value = _tiny(tiny, one, three, 16 if quick else 60)
        return value | _shape(shape, large, 8 if quick else 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 50 s")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="shoal-hop-"))
    try:
        value = _measure(folder, quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ok = (
        value["added_reference_ms"] <= GOALS["added_reference_ms"]
        and value["ratio"] >= GOALS["ratio"]
        and value["hop_reference_ms"] <= GOALS["hop_reference_ms"]
    )
    figures = {name: round(value.pop(name), 4) for name in GOALS}
    print(json.dumps({"name": "hop", "value": figures, "goal": GOALS, "ok": ok, **value}))
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()

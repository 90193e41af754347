"""The engine's logits against transformers, for every family, and against itself.

Small random models of every family that `shoal` knows, with and without a sliding window, in
float32 and bfloat16. The engine's core computes each prompt and its greedy answer in the ways in
which daemons compute them: a whole shard or 2 to 4 in a chain, alone or beside 7 other sessions,
its prompt in one part or in several, with or without a cached prefix. Each model also answers with
a LoRA adapter, beside sessions with another one and with none; the reference is then transformers
with the adapter merged into the weights (W + scale B A).

`value` is the largest difference of float32 logits from those of transformers, and of the mean of
the pooled states from the mean of its last hidden states; goal 1e-4. `ok` also
asks that the greedy text in float32 is that of transformers; that in bfloat16 without an adapter,
given the same tokens, the engine's choice differs from transformers' only where both logits are
within 2 units of the last place (merged weights are rounded in other places); and that each row of
logits has the same bits in all of these ways. Of transformers' two forms of the delta rule
(Qwen3Next) the reference is the one that goes position by position; the distance to the other is
`worst_chunked`. That one subtracts sums of logarithms, and is up to six times as far from the same
rule in float64 as the engine and the first form are. `error_bfloat16` is the mean distance of the
engine's and of transformers' logits from those that the same weights give in float32: both round.

`other_choices_of` shows what the 2 units ask for in bfloat16: the number of rows that would be
beyond them if the engine's logits were those of the same weights in float32, and if they were those
of transformers itself, token by token with its cache. `other_choices_by_type` has the engine's rows
by the type of the model.
"""

import argparse
import copy
import itertools
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from transformers.models.qwen3_next import modeling_qwen3_next
from worlds.adapters import Adapter, random_adapter
from worlds.engines import write_tensor

from shoal.tasks.engine import families
from shoal.tasks.engine.core import Core
from shoal.tasks.engine.interface import DType, LoadShard, Parts, Span, TensorSource, Want
from shoal.tasks.engine.messages import adapter_payload, load_payload, span_frame
from shoal.tasks.engine.scheduling.costs import StepCosts
from shoal.tasks.engine.spans.answers import FrameOutput
from shoal.tasks.engine.wire import Buffer, Header
from shoal.tasks.inference.names import PrefixNames

MEASURES = ("tasks/engine", "tasks/inference/names.py", "transport/host")

GOAL: Final = 1e-4
ROOT: Final = "ab" * 32
TINY: Final[dict[str, Any]] = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
FAMILIES: Final[dict[str, dict[str, object]]] = {
    "Llama": {},
    "Llama tied": {"tie_word_embeddings": True},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Mistral": {"sliding_window": 24},
    "Phi3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "Gemma2": {"head_dim": 16, "sliding_window": 24},
    "Gemma3": {"head_dim": 16, "sliding_window": 24, "sliding_window_pattern": 2},
    "Mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen3Moe": {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32},
    "GptOss": {
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "sliding_window": 24,
        "initializer_range": 0.15,
    },
    "Qwen3Next": {
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "initializer_range": 0.15,
    },
}
RECURRENT: Final = ("Qwen3Next",)  # without prefixes and adapters
CHUNKED_RULE: Final = modeling_qwen3_next.torch_chunk_gated_delta_rule
# Classes of configs that are not named like the family.
CONFIGS: Final[dict[str, str]] = {"Gemma3": "Gemma3TextConfig"}
NEW: Final = 24  # tokens of a greedy answer
MATES: Final = 7
ADAPTERS: Final = ((1, 4), (2, 11))  # (seed, rank)
STEP_COSTS: Final = {"whole": StepCosts(0.0, 0.0, 0.0), "parts": StepCosts(0.0, 0.02, 0.0)}


@dataclass
class Checkpoint:
    """A random model of transformers, and its tensors as chunk files."""

    model: Any
    config: dict[str, Any]
    tensors: list[TensorSource]
    dtype: DType
    folder: Path
    adapters: tuple[Adapter, ...] = ()
    adapter: str = ""  # root of the one that the answers use

    def shard(self, parts: Parts) -> LoadShard:
        needed = families.tensor_shapes(families.architecture(self.config), parts)
        tensors = tuple(each for each in self.tensors if needed.keys() & set(each.roles))
        return LoadShard(ROOT, parts, self.config, tensors, self.dtype, 1 << 24)

    def mean(self, tokens: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return the mean of the last hidden states."""
        with torch.inference_mode():
            found: torch.Tensor = self.model.model(torch.tensor([tokens])).last_hidden_state[0]
        means: np.ndarray[Any, Any] = found.float().mean(0).numpy()
        return means

    def logits(self, tokens: Sequence[int], *, exact: bool = False) -> np.ndarray[Any, Any]:
        """Return the logits. If `exact`, compute them from the same weights in float32."""
        model = copy.deepcopy(self.model).float() if exact else self.model
        with torch.inference_mode():
            found: torch.Tensor = model(torch.tensor([tokens])).logits[0]
        rows: np.ndarray[Any, Any] = found.float().numpy()
        return rows

    def continued(self, tokens: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return the logits as transformers computes them token by token, with its cache."""
        cache, rows = None, []
        with torch.inference_mode():
            for token in tokens:
                found = self.model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
                cache = found.past_key_values
                rows.append(found.logits[0, 0].float().numpy())
        return np.stack(rows)


def _name(header: Header) -> bytes:
    """Return the name of the session of a frame."""
    assert isinstance(header[1], bytes)
    return header[1]


def checkpoint(folder: Path, name: str, dtype: DType, seed: int) -> Checkpoint:
    """Make a random model of a family."""
    torch.manual_seed(seed)
    family = name.split()[0]
    settings = getattr(transformers, CONFIGS.get(family, f"{family}Config"))(
        **{**TINY, **FAMILIES[name]}
    )
    kind = getattr(transformers, f"{family}ForCausalLM")
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    model = kind(settings).to(kinds[dtype])
    for role, parameter in model.named_parameters():
        if role.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    # Read again: `.to` rounds the rotary frequencies too, which from_pretrained does not.
    model = kind.from_pretrained(folder, dtype=kinds[dtype]).eval()
    tensors = [
        write_tensor(folder, (role,), tensor)
        for path in sorted(folder.glob("*.safetensors"))
        for role, tensor in load_file(path).items()
    ]
    config = json.loads((folder / "config.json").read_text())
    given = () if family in RECURRENT else ADAPTERS
    adapters = tuple(random_adapter(config, ROOT, seed, rank) for seed, rank in given)
    return Checkpoint(model, config, tensors, dtype, folder, adapters)


def adapted(model: Checkpoint) -> Checkpoint:
    """Return a model whose answers use its first adapter."""
    first = model.adapters[0]
    return replace(model, model=first.merged(model.model), adapter=first.root)


class Chain:
    """Cores of 1 to 4 shards of a model, one after the other."""

    def __init__(self, model: Checkpoint, shards: int, costs: StepCosts) -> None:
        layers = TINY["num_hidden_layers"]
        cuts = [int(layers) * index // shards for index in range(shards + 1)]
        self.frames: list[list[tuple[Header, bytes]]] = [[] for _ in range(shards)]
        self.cores = []
        for index in range(shards):
            parts = Parts(index == 0, cuts[index], cuts[index + 1], index == shards - 1)
            core = Core(FrameOutput(self._keeper(index)))
            core.handle(("load", 1, 0), memoryview(bytearray(load_payload(model.shard(parts)))))
            core.shards[0].costs = costs
            for adapter in model.adapters:
                load = adapter_payload(adapter.load(model.folder, parts))
                core.handle(("adapt", 1, 0), memoryview(bytearray(load)))
                assert self.frames[index].pop()[0][0] == "ok"
            self.cores.append(core)

    def _keeper(self, index: int) -> Any:
        def emit(header: Header, payload: Buffer) -> None:
            self.frames[index].append((header, bytes(payload)))

        return emit

    def open(self, name: bytes, tokens: int, names: bytes = b"", adapter: str = "") -> int:
        """Open a session in every core, and return the shortest cached prefix."""
        cached = []
        for core, frames in zip(self.cores, self.frames, strict=True):
            core.handle(
                (
                    "open",
                    1,
                    name,
                    tokens,
                    "gateway",
                    False,
                    b"",
                    0,
                    None,
                    adapter,
                    False,
                    False,
                    True,
                    None,
                    "",
                ),
                memoryview(names),
            )
            header = frames.pop()[0]
            assert header[0] == "ok", header
            cached.append(int(str(header[2])))
        return min(cached)

    def close(self, name: bytes, names: bytes = b"") -> None:
        for core in self.cores:
            core.handle(("close", 1, name), memoryview(names))

    def logits(
        self, spans: dict[bytes, tuple[int, Sequence[int]]], wanted: Want = "logits"
    ) -> dict[bytes, Any]:
        """Compute a span (start, tokens) of several sessions at once.

        Return for each its logits, or what is `wanted` instead, as one row for each position.
        """
        inputs: dict[bytes, Any] = {name: tokens for name, (_, tokens) in spans.items()}
        for index, core in enumerate(self.cores):
            last = index == len(self.cores) - 1
            for name, data in inputs.items():
                start, tokens = spans[name]
                given = {"tokens": tuple(data)} if index == 0 else {"hidden": data}
                want = wanted if last else "hidden"
                header, payload = span_frame(Span(name, 1, start, len(tokens), want=want, **given))
                core.handle(tuple(header), memoryview(bytearray(payload)))
            while core.busy:
                core.step()
            frames, self.frames[index] = self.frames[index], []
            self.frames[index][:] = []
            inputs = {_name(header): data for header, data in frames if header[0] == "hidden"}
            assert len(inputs) == len(spans), [header for header, _ in frames]
        width = int(str(TINY["hidden_size" if wanted == "pooled" else "vocab_size"]))
        return {
            name: np.frombuffer(data, np.float32).reshape(-1, width)
            for name, data in inputs.items()
        }

    def mean(self, tokens: Sequence[int], adapter: str) -> Any:
        """Return the mean of the final states of a prompt, which is computed in two spans."""
        name, half = b"pooled".ljust(16, b"."), len(tokens) // 2
        self.open(name, len(tokens), adapter=adapter)
        first = self.logits({name: (0, tokens[:half])}, "pooled")[name][0]
        second = self.logits({name: (half, tokens[half:])}, "pooled")[name][0]
        self.close(name)
        return (first + second) / len(tokens)


@dataclass
class Found:
    """Findings of the comparison for one dtype."""

    worst: float = 0.0
    worst_mean: float = 0.0
    worst_adapted: float = 0.0  # of those with an adapter
    worst_chunked: float = 0.0  # from transformers' delta rule in chunks
    errors: dict[str, list[float]] = field(default_factory=lambda: {"ours": [], "theirs": []})
    """In bfloat16: the mean distance from the logits of the same weights in float32."""
    texts: int = 0
    wrong_texts: int = 0
    rows: int = 0
    wrong_choices: Counter[str] = field(default_factory=Counter)  # by type of model
    choices_of: Counter[str] = field(default_factory=Counter)  # of others than the engine
    other_bits: int = 0
    details: list[str] = field(default_factory=list)


def answers(
    chain: Chain, model: Checkpoint, tokens: Sequence[int], *, mates: int, cached: bool
) -> Iterator[Any]:
    """Yield the logits of the prompt, and then of each greedy token, as a chain computes them."""
    rng = np.random.default_rng(len(tokens))
    width = int(str(TINY["vocab_size"]))
    names = PrefixNames(b"secret").of(ROOT, tokens) if cached else b""
    others = {bytes([number + 1]) * 16: 0 for number in range(mates)}
    most = len(tokens) + NEW
    if cached:  # an earlier session with the same beginning
        chain.open(b"earlier".ljust(16, b"."), most, names, model.adapter)
        chain.logits({b"earlier".ljust(16, b"."): (0, tokens)})
        chain.close(b"earlier".ljust(16, b"."), names)
    name = b"mine".ljust(16, b".")
    found = chain.open(name, most, names, model.adapter)
    start = min(found, max(0, (len(tokens) - 2) // 16 * 16))
    assert bool(start) == (cached and len(tokens) >= 18)  # the last two are computed anyway
    kinds = itertools.cycle(("", *(adapter.root for adapter in model.adapters)))
    for other in others:
        chain.open(other, 256, adapter=next(kinds))
    spans: dict[bytes, tuple[int, Sequence[int]]] = {name: (start, tokens[start:])}
    position = len(tokens)
    for _ in range(NEW + 1):
        for other, at in others.items():
            size = int(rng.integers(1, 20)) if at == 0 else 1
            if at + size <= 256:
                spans[other] = at, [int(each) for each in rng.integers(0, width, size)]
                others[other] = at + size
        rows = chain.logits(spans)[name]
        yield start, rows
        token = int(rows[-1].argmax())
        spans, start = {name: (position, [token])}, position
        position += 1
    chain.close(name)
    for other in others:
        chain.close(other)


def compare(model: Checkpoint, tokens: Sequence[int], found: Found, quick: bool) -> None:
    """Compare all ways of computing one prompt with transformers, and with each other."""
    reference: dict[int, Any] = {}
    text: list[int] = []
    for shards in (1, 2) if quick else (1, 2, 3, 4):
        for costs in STEP_COSTS:
            chain = Chain(model, shards, STEP_COSTS[costs])
            off = float(np.abs(chain.mean(tokens, model.adapter) - model.mean(tokens)).max())
            found.worst_mean = max(found.worst_mean, off)
            for mates in (0, MATES):
                for cached in (False, True) if model.adapters else (False,):
                    way = f"{shards} shards, {costs}, {mates} mates, cached {cached}"
                    made = []
                    for start, rows in answers(chain, model, tokens, mates=mates, cached=cached):
                        made.append(int(rows[-1].argmax()))
                        for offset, row in enumerate(rows):
                            known = reference.setdefault(start + offset, row)
                            if not np.array_equal(known, row):
                                found.other_bits += 1
                                found.details.append(f"bits at {start + offset}: {way}")
                    text = text or made
                    found.texts += 1
                    if made != text:
                        found.wrong_texts += 1
                        found.details.append(f"text: {way}")
    theirs = model.logits([*tokens, *text[:-1]])
    ours = np.stack([reference[at] for at in range(len(theirs))])
    if model.config["model_type"] == "qwen3_next":
        with chunked():
            other = model.logits([*tokens, *text[:-1]])
        found.worst_chunked = max(found.worst_chunked, float(np.abs(ours - other).max()))
    off = float(np.abs(ours - theirs).max())
    found.worst = max(found.worst, off)
    if model.adapter:
        found.worst_adapted = max(found.worst_adapted, off)
    found.rows += len(theirs)
    if model.dtype == "bfloat16" and not model.adapter:
        exact = model.logits([*tokens, *text[:-1]], exact=True)
        for side, rows in (("ours", ours), ("theirs", theirs)):
            found.errors[side].append(float(np.abs(rows - exact).mean()))
        continued = model.continued([*tokens, *text[:-1]])
        for name, rows in (("float32", exact), ("transformers_with_cache", continued)):
            found.choices_of[name] += other_choices(rows, theirs, ties=True)
    if model.dtype == "float32" or not model.adapter:
        others = other_choices(ours, theirs, ties=model.dtype == "bfloat16")
        found.wrong_choices[model.config["model_type"]] += others


@contextmanager
def chunked() -> Iterator[None]:
    """Have transformers compute the delta rule in chunks, as it does by default."""
    modeling_qwen3_next.torch_chunk_gated_delta_rule = CHUNKED_RULE
    try:
        yield
    finally:
        by_position()


def by_position() -> None:
    """Have transformers compute the delta rule position by position."""
    module = modeling_qwen3_next
    module.torch_chunk_gated_delta_rule = module.torch_recurrent_gated_delta_rule


def other_choices(rows: Any, theirs: Any, *, ties: bool) -> int:
    """Count the rows whose likeliest token is not that of transformers. With `ties`, count only
    those that are no ties."""
    pairs = [
        each for each in zip(rows, theirs, strict=True) if each[0].argmax() != each[1].argmax()
    ]
    return sum(not (ties and is_tie(mine, other)) for mine, other in pairs)


def is_tie(mine: Any, other: Any) -> bool:
    """Return whether the two choices are within 2 units of the last place of bfloat16."""
    first, second = mine.argmax(), other.argmax()
    unit = 2.0 ** (np.floor(np.log2(np.abs(other[second]))) - 7)
    return bool(abs(other[second] - other[first]) <= 2 * unit)


def measure(quick: bool) -> dict[str, Any]:
    found: dict[DType, Found] = {"float32": Found(), "bfloat16": Found()}
    sizes = (37,) if quick else (17, 37, 96)
    for dtype in found:
        for number, name in enumerate(FAMILIES):
            with tempfile.TemporaryDirectory() as folder:
                plain = checkpoint(Path(folder), name, dtype, 7 + number)
                models = (plain, adapted(plain)) if plain.adapters else (plain,)
                for model, size in itertools.product(models, sizes):
                    rng = np.random.default_rng(size)
                    tokens = [int(each) for each in rng.integers(0, 211, size)]
                    compare(model, tokens, found[dtype], quick)
    exact, half = found["float32"], found["bfloat16"]
    for each in (*exact.details[:5], *half.details[:5]):
        print(each, file=sys.stderr)
    worst = max(exact.worst, exact.worst_mean)
    others = {dtype: each.wrong_choices.total() for dtype, each in found.items()}
    ok = worst <= GOAL and not any(others.values())
    return {
        "name": "engine_logits",
        "value": float(f"{worst:.2g}"),
        "goal": GOAL,
        "ok": ok and not any(each.wrong_texts + each.other_bits for each in found.values()),
        "families": list(FAMILIES),
        "worst_adapted": float(f"{exact.worst_adapted:.2g}"),
        "texts": {dtype: each.texts for dtype, each in found.items()},
        "other_texts": {dtype: each.wrong_texts for dtype, each in found.items()},
        "rows": {dtype: each.rows for dtype, each in found.items()},
        "other_choices": others,
        "other_choices_by_type": dict(+half.wrong_choices),
        "other_choices_of": dict(half.choices_of),
        "rows_with_other_bits": {dtype: each.other_bits for dtype, each in found.items()},
        "worst_chunked": float(f"{exact.worst_chunked:.2g}"),
        "worst_mean": float(f"{exact.worst_mean:.2g}"),
        "worst_bfloat16": float(f"{half.worst:.2g}"),
        "error_bfloat16": {
            side: float(f"{statistics.mean(each):.3g}") for side, each in half.errors.items()
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one prompt, chains of 1 and 2")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    by_position()
    with torch.inference_mode():
        result = measure(args.quick)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""Gradients of training passes against torch's autograd on transformers' models."""

from typing import Any, cast

import numpy as np
import pytest
import torch

from shoal.tasks.engine.adapters import AdapterTerms, Module, module_shapes
from shoal.tasks.engine.compute import products
from shoal.tasks.engine.compute.backward import head, matrices
from shoal.tasks.engine.compute.backward.matrices import PANEL
from shoal.tasks.engine.compute.backward.pacing import (
    SUMMED,
    PassSpeed,
    ProductRate,
    Work,
    product,
    reverse,
)
from shoal.tasks.engine.compute.backward.shardpass import ShardTuner, finite
from shoal.tasks.engine.compute.model import ShardModel
from shoal.tasks.engine.compute.native import choice
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.families import architecture
from shoal.tasks.engine.interface import DType, Parts
from shoal.tasks.engine.layouts import Layout
from shoal.tasks.engine.passes import PassOrder, tensor_sizes
from shoal.tasks.engine.scheduling.costs import StepCosts
from tests.tasks.engine.conftest import Checkpoint, Make
from tests.tasks.engine.quantised_model import fitting_of, quantised

RANK = 3
COSTS = StepCosts(1e-3, 1e-4, 1e-7)
NOT_COUNTED = -1


def terms_of(made: Checkpoint, modules: tuple[Module, ...] | None = None) -> AdapterTerms:
    arch = architecture(made.config)
    every = tuple(module_shapes(arch))
    return AdapterTerms(
        "ab" * 32, RANK, 6.0, False, "F32", modules or every, tuple(range(arch.layers))
    )


def tensors_of(made: Checkpoint, terms: AdapterTerms) -> torch.Tensor:
    """All tensors of an adapter, in the order of its file."""
    arch = architecture(made.config)
    sizes = tensor_sizes(terms, arch, made.whole)
    made_of = torch.Generator().manual_seed(3)
    return torch.randn(sum(sizes), generator=made_of) * 0.1


def place(model: Any, layer: int, module: Module) -> torch.nn.Linear:
    part = "self_attn" if module.split("_")[0] in ("q", "k", "v", "o", "qkv") else "mlp"
    found: torch.nn.Linear = getattr(getattr(model.model.layers[layer], part), module)
    return found


def reference(
    made: Checkpoint, terms: AdapterTerms, values: torch.Tensor, tokens: Any, targets: Any
) -> tuple[float, torch.Tensor]:
    """The loss, and its derivatives by all tensors, by autograd in float32."""
    arch = architecture(made.config)
    leaf = values.clone().requires_grad_()
    model, at, handles = made.model.float(), 0, []
    for layer in terms.layers:
        for module in terms.modules:
            outputs, inputs = module_shapes(arch)[module]
            a = leaf[at : at + RANK * inputs].view(RANK, inputs)
            at += RANK * inputs
            b = leaf[at : at + RANK * outputs].view(outputs, RANK)
            at += RANK * outputs
            handles.append(place(model, layer, module).register_forward_hook(
                lambda _, given, out, a=a, b=b: out + terms.scale * (given[0] @ a.t()) @ b.t()
            ))  # fmt: skip
    try:
        logits = model(torch.tensor(tokens), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), torch.tensor(targets).flatten().long(),
            ignore_index=NOT_COUNTED, reduction="sum",
        )  # fmt: skip
        (found,) = torch.autograd.grad(loss, leaf)
    finally:
        for handle in handles:
            handle.remove()
    return float(loss.detach()), found


def run(each: Any, unit_s: float = 1e-4) -> tuple[float, int, bytearray, int]:
    units = 0
    with torch.inference_mode():
        while each.next_s is not None:
            each.advance(unit_s)
            units += 1
    loss, counted, data = each.answer()
    return loss, counted, bytearray(data), units


def through(
    made: Checkpoint, splits: list[Parts], terms: AdapterTerms, values: torch.Tensor, tokens: Any,
    targets: Any, *, dtype: DType = "float32", wire: DType = "float32", results: bool = True,
) -> tuple[float, torch.Tensor]:  # fmt: skip
    """Compute loss and derivatives through shards of the model."""
    arch = architecture(made.config)
    rows, length = tokens.shape
    stages = []
    first = 0
    for parts in splits:
        with torch.inference_mode():
            tuner = ShardTuner(ShardModel(arch, made.shard(parts, dtype=dtype)), COSTS)
        sizes = tensor_sizes(terms, arch, parts)
        some = values[first : first + sum(sizes)].clone()
        first += sum(sizes)
        adapter = tuner.adapter(terms, memoryview(some.numpy()).cast("B"))
        stages.append((tuner, adapter, bytes([1]) * len(sizes)))

    def order(back: bool, wanted: bytes, given: bool) -> PassOrder:
        return PassOrder(0, rows, length, back, given, True, True, wire, wanted)

    data, kept = bytearray(tokens.astype(np.int32).tobytes()), []
    for tuner, adapter, wanted in stages[:-1]:
        each = tuner.begin(
            order(False, wanted, True), adapter, memoryview(data), None, results=results
        )
        _, _, data, _ = run(each)
        kept.append(each.kept())
    tuner, adapter, wanted = stages[-1]
    data += targets.astype(np.int32).tobytes()
    each = tuner.begin(order(True, wanted, True), adapter, memoryview(data), None, results=results)
    loss, counted, data, units = run(each)
    assert counted == int((targets >= 0).sum()) and units > 20
    found = list[torch.Tensor]()
    for index in reversed(range(len(stages))):
        tuner, adapter, wanted = stages[index]
        if index < len(stages) - 1:
            each = tuner.begin(
                order(True, wanted, False), adapter, memoryview(data), kept[index], results=results
            )
            _, _, data, _ = run(each)
        width = (
            0
            if tuner.parts.embedding
            else rows * length * arch.hidden * (4 if wire == "float32" else 2)
        )
        found.insert(0, torch.frombuffer(data[width:] or bytearray(4), dtype=torch.float32).clone())
        data = data[:width]
    return loss, torch.cat(found)


def batch(made: Checkpoint, rows: int = 3, length: int = 21) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    vocab = int(made.config["vocab_size"])
    tokens = rng.integers(0, vocab, (rows, length))
    targets = rng.integers(0, vocab, (rows, length))
    targets[0, :4] = NOT_COUNTED
    targets[1, 12:] = NOT_COUNTED  # padding
    return tokens, targets


def distance(got: torch.Tensor, wanted: torch.Tensor) -> float:
    assert got.shape == wanted.shape
    return float((got - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_the_pace_does_not_change_a_bit(monkeypatch: pytest.MonkeyPatch, kernels: str) -> None:
    """A machine that is busier, or measures other rates, cuts a pass into other units."""
    if kernels == "torch":
        monkeypatch.setattr(choice, "kernels", lambda: None)
    torch.manual_seed(3)
    matrix = matrices.frozen(products.linear_of(torch.randn(1500, 96), None))
    gradient, x, rate = torch.randn(40, 1500), torch.randn(40, 96), ProductRate(1e-9, 1e-10)
    found, units = [], []
    for unit_s in (1e-6, 3e-4, 10.0):
        pace = PassSpeed(rate, rate, 1e-8, unit_s)
        parts = [list(pace.tiles(matrix, 40, rate, step)) for step in (PANEL, SUMMED)]
        units.append(len(parts[1]))
        results = [done(product(matrix, x, pace)), done(reverse(matrix, gradient, pace))]
        found.append(torch.cat([each.flatten() for each in results]))
    assert units[0] > units[1] > units[2]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def done(work: Work[torch.Tensor]) -> torch.Tensor:
    """Return the result of work without pauses."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        return cast("torch.Tensor", end.value)


FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {"attention_bias": True, "mlp_bias": True}),
    ("Llama", {"tie_word_embeddings": True}),
    ("Qwen2", {"use_sliding_window": False}),
    ("Qwen3", {"head_dim": 16}),
    ("Mistral", {"sliding_window": 8}),
    ("Phi3", {}),
    ("Gemma2", {"head_dim": 8, "sliding_window": 8}),
    ("Gemma3", {"head_dim": 8, "sliding_window": 8}),
]


@pytest.mark.parametrize(("family", "config"), FAMILIES, ids=str)
@pytest.mark.parametrize("splits", [1, 3])
def test_gradients_are_those_of_autograd(
    checkpoint: Make, family: str, config: dict[str, Any], splits: int
) -> None:
    made = checkpoint(family, **{**config, "initializer_range": 0.15})
    terms = terms_of(made)
    values, (tokens, targets) = tensors_of(made, terms), batch(made)
    loss, wanted = reference(made, terms, values, tokens, targets)
    got_loss, got = through(made, made.splits(splits), terms, values, tokens, targets)
    assert got_loss == pytest.approx(loss, rel=1e-5)
    assert distance(got, wanted) < 1e-5


@pytest.mark.parametrize("kernels", ["native", "torch", "plain"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8", "int4"])
def test_every_layout_of_the_weights(
    checkpoint: Make,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    kernels: str,
) -> None:
    """The weights are exact in each layout, so the gradients are those of the same weights."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    made = checkpoint("Llama", dtype=dtype, hidden_size=64, intermediate_size=96, head_dim=16)
    if precision in ("int8", "int4"):
        layout = Layout("int8", 32) if precision == "int8" else Layout("int4", 32)
        made = quantised(made, fitting_of(made, layout), tmp_path_factory.mktemp(precision))
    if kernels != "native":
        monkeypatch.setattr(choice, "kernels", lambda: None)
    if kernels == "plain":
        monkeypatch.setattr(products, "packs", lambda *_: False)
    terms = terms_of(made)
    values, (tokens, targets) = tensors_of(made, terms), batch(made)
    loss, wanted = reference(made, terms, values, tokens, targets)
    engine: DType = "bfloat16" if precision == "bfloat16" else "float32"
    got_loss, got = through(
        made,
        made.splits(2),
        terms,
        values,
        tokens,
        targets,
        dtype=engine,
        results=kernels != "torch",
    )
    assert got_loss == pytest.approx(loss, rel=1e-5)
    assert distance(got, wanted) < 1e-5
    _, got = through(
        made, made.splits(2), terms, values, tokens, targets, dtype=engine, wire="bfloat16"
    )
    assert 1e-5 < distance(got, wanted) < 2e-2


def test_logits_stand_in_memory_for_some_positions_only(
    checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut into many pieces, the head gives the same."""
    made = checkpoint("Llama")
    terms = terms_of(made, ("q_proj", "down_proj"))
    values, (tokens, targets) = tensors_of(made, terms), batch(made)
    loss, wanted = reference(made, terms, values, tokens, targets)
    monkeypatch.setattr(head, "LOGITS", 1)
    monkeypatch.setattr(head, "LEAST", 2)
    largest = []
    entropies = head.FrozenHead.entropies

    def watched(self: Any, logits: torch.Tensor, *rest: Any, **more: Any) -> Any:
        largest.append(len(logits))
        return entropies(self, logits, *rest, **more)

    monkeypatch.setattr(head.FrozenHead, "entropies", watched)
    got_loss, got = through(made, made.splits(2), terms, values, tokens, targets)
    assert max(largest) == 2 and len(largest) > 20
    assert got_loss == pytest.approx(loss, rel=1e-5) and distance(got, wanted) < 1e-5


@pytest.mark.parametrize("family", ["Mixtral", "GptOss", "Qwen3Next"])
def test_other_layers_are_refused_by_name(checkpoint: Make, family: str) -> None:
    made = checkpoint(family)
    with torch.inference_mode():
        model = ShardModel(architecture(made.config), made.shard())
        with pytest.raises(EngineError, match=model.arch.family) as refused:
            ShardTuner(model, COSTS)
    assert refused.value.code == "no-backward"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_that_are_not_finite_are_found_and_large_sums_are_not_such(
    dtype: torch.dtype,
) -> None:
    values = torch.full((100,), 3e38, dtype=dtype)
    assert finite(values) and finite(values[:0])
    for bad in (torch.nan, torch.inf, -torch.inf):
        assert not finite(torch.cat((values, torch.tensor([bad, -torch.inf], dtype=dtype))))
        assert not finite(torch.tensor([1.0, bad], dtype=dtype))

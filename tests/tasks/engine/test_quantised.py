"""Quantised shards in the engine: logits of transformers with the values that they stand for."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from shoal.tasks.engine.compute.native import choice
from shoal.tasks.engine.compute.products import Quantised
from shoal.tasks.engine.compute.quantised import embedded, product_of
from shoal.tasks.engine.compute.weights import Weights
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.families.shapes import stored_tensors
from shoal.tasks.engine.interface import Parts
from shoal.tasks.engine.layouts import INT4, INT8, INT8_SMALL, Layout, Layouts
from shoal.tasks.models.quantise import quantise, values
from tests.tasks.engine.quantised_model import fitting_of, quantised
from tests.tasks.engine.test_llama import TOKENS, close

LAYOUTS = [INT8, INT8_SMALL, INT4]
MIXED = {
    "model.layers.1.self_attn.v_proj": INT8_SMALL,
    "model.layers.2.self_attn.k_proj": None,
    "model.layers.2.mlp.up_proj": INT8,
    "model.layers.0.mlp.down_proj": INT8_SMALL,
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda each: each.name)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.usefixtures("exact_products")
def test_logits_equal_those_of_the_rounded_weights_over_every_split(
    layout: Layout, tied: bool, checkpoint: Any, chain: Any, tmp_path: Path
) -> None:
    plain = checkpoint("Llama", tie_word_embeddings=tied)
    made = quantised(plain, fitting_of(plain, layout), tmp_path)
    expected = made.logits(TOKENS)
    assert not close(plain.logits(TOKENS), expected)  # the rounding is seen
    whole = chain(made, made.splits(1)).logits(TOKENS)
    assert close(whole, expected)
    for count in (2, 4):
        assert torch.equal(chain(made, made.splits(count)).logits(TOKENS), whole)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda each: each.name)
def test_native_kernels_round_the_inputs_only(
    layout: Layout, checkpoint: Any, chain: Any, tmp_path: Path
) -> None:
    if choice.kernels() is None:
        pytest.skip("there are no native kernels here")
    plain = checkpoint("Llama")
    made = quantised(plain, fitting_of(plain, layout), tmp_path)
    expected = made.logits(TOKENS)
    found = chain(made, made.splits(1)).logits(TOKENS)
    # As much as 8-bit weights do, with inputs as short as these.
    assert (found - expected).norm() < 0.1 * expected.norm()


@pytest.mark.usefixtures("exact_products")
def test_projections_in_different_layouts_are_joined(
    checkpoint: Any, chain: Any, tmp_path: Path
) -> None:
    plain = checkpoint("Qwen2")  # with biases
    others = {**fitting_of(plain, INT4).others, **MIXED}
    made = quantised(plain, Layouts(INT4, others), tmp_path)
    assert close(chain(made, made.splits(2)).logits(TOKENS), made.logits(TOKENS))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda each: each.name)
def test_a_row_does_not_depend_on_its_batch(
    layout: Layout, checkpoint: Any, driver: Any, tmp_path: Path
) -> None:
    """A prompt in parts and beside other sessions has the bits of the same prompt alone."""
    from shoal.tasks.engine.interface import Span

    plain = checkpoint("Llama")
    made = quantised(plain, fitting_of(plain, layout), tmp_path)
    node = driver(made.shard())
    alone = node.open(b"alone")
    expected = node.hidden(Span(alone, 1, 0, len(TOKENS), tokens=tuple(TOKENS), want="logits"))
    names = [node.open(bytes([65 + number])) for number in range(5)]
    for at, name in enumerate(names):
        some = tuple(TOKENS[: len(TOKENS) - at])
        node.submit(Span(name, 1, 0, len(some), tokens=some, want="logits"))
    width = 4 * int(made.config["vocab_size"])
    for event in node.events():
        rows = min(event.count, len(TOKENS)) * width
        assert bytes(event.data) == bytes(expected[:rows])


def test_the_class_of_exactness_names_the_precision(
    checkpoint: Any, driver: Any, tmp_path: Path
) -> None:
    plain = checkpoint("Llama")
    classes = {driver(plain.shard()).shard.compute.exactness}
    for layout in (INT8, INT4):
        made = quantised(plain, fitting_of(plain, layout), tmp_path)
        classes.add(driver(made.shard()).shard.compute.exactness)
    assert len(classes) == 3


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda each: each.name)
def test_embeddings_and_joined_products_have_the_values(layout: Layout) -> None:
    weight = torch.randn(70, 64).numpy()
    parts = {end: torch.from_numpy(part) for end, part in quantise(weight, layout).items()}
    table = Quantised(layout.precision, parts[""], parts[".scale"], parts.get(".minimum"))
    expected = torch.from_numpy(values(quantise(weight, layout), layout))
    tokens = torch.tensor([3, 69, 0, 3])
    assert torch.equal(embedded(table, tokens, torch.float32), expected[tokens])
    x, bias, other = torch.randn(5, 64), torch.randn(80), torch.randn(10, 64)
    joined = product_of([table, other], bias)(x)
    assert torch.allclose(joined, x @ torch.cat((expected, other)).T + bias, atol=1e-4)


def test_lies_about_quantised_tensors_are_refused(checkpoint: Any, tmp_path: Path) -> None:
    plain = checkpoint("Llama")
    made = quantised(plain, fitting_of(plain, INT4), tmp_path)
    shard = made.shard(Parts(True, 0, 1, False))
    from shoal.tasks.engine.families import architecture, tensor_shapes

    arch = architecture(shard.config)
    shapes = tensor_shapes(arch, shard.parts)
    role = "model.layers.0.mlp.up_proj.weight"

    def refused(tensors: Any) -> str:
        with pytest.raises(EngineError) as failure:
            Weights(tensors, shapes, "float32", layouts=arch.layouts).matrices(role)
        return failure.value.code

    def changed(name: str, **change: Any) -> tuple[Any, ...]:
        return tuple(
            replace(each, **change) if each.roles == (name,) else each for each in shard.tensors
        )

    assert refused(changed(role, dtype="I8")) == "bad-tensor"
    assert refused(changed(role, dtype="F32")) == "bad-tensor"
    assert refused(changed(f"{role}.scale", dtype="F32")) == "bad-tensor"
    assert refused(changed(f"{role}.scale", shape=(1, 1))) == "bad-tensor"
    without = tuple(each for each in shard.tensors if each.roles != (f"{role}.minimum",))
    assert refused(without) == "missing-tensor"
    scale = next(each for each in shard.tensors if each.roles == (f"{role}.scale",))
    from tests.tasks.engine.conftest import cut_tensor

    bad = cut_tensor(torch.full(scale.shape, torch.inf).half(), scale.roles, tmp_path / "bad")
    assert refused(tuple(bad if each is scale else each for each in shard.tensors)) == "bad-tensor"


def test_memory_is_that_of_the_stored_bytes(checkpoint: Any, driver: Any, tmp_path: Path) -> None:
    plain = checkpoint("Llama")
    made = quantised(plain, fitting_of(plain, INT4), tmp_path)
    node = driver(made.shard())
    arch = node.shard.compute.arch
    stored = stored_tensors(arch, made.whole)
    sizes = {"U8": 1, "F16": 2, None: 4}
    exact = sum(sizes[dtype] * torch.Size(shape).numel() for dtype, shape in stored.values())
    assert node.shard.weight_bytes == exact
    assert dataclasses.replace(arch, layouts=Layouts()).layouts.precision == ""

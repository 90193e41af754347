"""What precisions cost, and that a node without room says which one would fit."""

from dataclasses import replace
from typing import Any

from shoal.tasks.engine.families import architecture
from shoal.tasks.engine.layouts import INT4, Layouts
from shoal.tasks.placement.coverage import LayerSizes
from shoal.tasks.placement.holes import no_fit
from shoal.tasks.placement.precision import smaller, way_out

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_hidden_layers": 22,
    "vocab_size": 32_000,
}
ARCH = architecture(CONFIG)


def test_each_precision_needs_less_and_loses_more() -> None:
    int8, int4 = smaller(ARCH, "bfloat16")
    plain = LayerSizes.of(ARCH, "bfloat16")
    assert (int8.precision, int4.precision) == ("int8", "int4")
    assert int4.everything < 0.4 * plain.everything < int8.everything < 0.6 * plain.everything
    assert int4.smallest < int8.smallest < plain.smallest
    assert 0 < int8.loss < int4.loss


def test_a_quantised_model_is_not_quantised_again() -> None:
    assert not smaller(replace(ARCH, layouts=Layouts(INT4)), "bfloat16")


def test_a_node_without_room_says_which_precision_fits() -> None:
    plain = LayerSizes.of(ARCH, "bfloat16")
    int8, int4 = smaller(ARCH, "bfloat16")
    assert "--to int8" in way_out(ARCH, "bfloat16", plain.smallest - 1)
    assert "--to int4" in way_out(ARCH, "bfloat16", int8.smallest - 1)
    assert way_out(ARCH, "bfloat16", int4.smallest - 1) == ""
    memory = int8.smallest - 1
    hint = no_fit(plain, memory, way_out(ARCH, "bfloat16", memory)).hint
    assert hint is not None and hint.startswith("offer more: `shoal node --memory ")
    assert hint.endswith("`shoal model quantize NAME --to int4` (at most 2 % more loss)")


def test_layers_in_different_layouts_count_as_the_largest() -> None:
    """So that a plan never gives a node more than it has room for."""
    others = {"model.layers.7.mlp.down_proj": None}
    mixed = replace(ARCH, layouts=Layouts(INT4, others))
    uniform = replace(ARCH, layouts=Layouts(INT4))
    assert LayerSizes.of(mixed, "bfloat16").layer > LayerSizes.of(uniform, "bfloat16").layer

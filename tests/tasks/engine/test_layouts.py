"""Quantised weights as a config.json describes them, and the bytes that they take."""

import dataclasses
from typing import Any

import pytest

from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.families import architecture, check_model, weight_bytes
from shoal.tasks.engine.families.shapes import stored_tensors
from shoal.tasks.engine.interface import Parts
from shoal.tasks.engine.layouts import INT4, INT8, INT8_SMALL, Layouts, layouts_of
from tests.tasks.engine.test_families import changed

STATED = Layouts(INT4, {"model.layers.0.mlp.down_proj": INT8_SMALL, "lm_head": None}).config()


def code(config: dict[str, Any]) -> str:
    with pytest.raises(EngineError) as failure:
        architecture(changed(quantization_config=config))
    return failure.value.code


def test_a_statement_is_read_back() -> None:
    layouts = layouts_of({"quantization_config": STATED})
    assert layouts.config() == STATED
    assert layouts.of("lm_head.weight", (8, 64)) is None
    assert layouts.of("model.layers.0.mlp.down_proj.weight", (8, 64)) is INT8_SMALL
    assert layouts.of("model.layers.1.mlp.down_proj.weight", (8, 64)) is INT4
    assert layouts.of("model.layers.1.mlp.down_proj.bias", (8,)) is None
    assert layouts.of("model.norm.weight", (64,)) is None
    assert layouts.precision == "int4+int8"


@pytest.mark.parametrize("method", [{"bits": 4}, {"quant_method": "awq"}, 4, [], "shoal"])
def test_other_methods_are_refused_with_the_way_out(method: Any) -> None:
    with pytest.raises(EngineError) as failure:
        architecture(changed(quantization_config=method))
    assert failure.value.code == "unsupported-architecture"
    assert "`shoal model quantize`" in str(failure.value.hint)


@pytest.mark.parametrize(
    "change",
    [
        {"layout": "int3/32"},
        {"layout": 7},
        {"layout": None},
        {"others": []},
        {"others": {"../x": "int4/32"}},
        {"others": {"x": "int4"}},
        {"others": {"x" * 300: "int4/32"}},
        {"others": {f"m{number}": "plain" for number in range((1 << 16) + 1)}},
    ],
)
def test_malformed_statements_are_refused(change: dict[str, Any]) -> None:
    assert code({**STATED, **change}) == "bad-config"


def test_columns_must_be_whole_groups() -> None:
    arch = architecture(changed(hidden_size=48, quantization_config=Layouts(INT4).config()))
    with pytest.raises(EngineError, match="no groups of 32"):
        stored_tensors(arch, Parts(True, 0, 1, False))


def test_bytes_of_a_shard_are_those_of_its_stored_tensors() -> None:
    plain = architecture(changed(tie_word_embeddings=True))
    whole = Parts(True, 0, plain.layers, True)
    sizes = {"I8": 1, "U8": 1, "F16": 2, None: 4}
    for layout in (INT8, INT8_SMALL, INT4):
        arch = dataclasses.replace(plain, layouts=Layouts(layout))
        expected = 0
        for dtype, shape in stored_tensors(arch, whole).values():
            count = 1
            for size in shape:
                count *= size
            expected += sizes[dtype] * count
        assert weight_bytes(arch, whole, "float32") == expected
        assert weight_bytes(arch, whole, "float32") < weight_bytes(plain, whole, "float32") / 3


def test_each_companion_must_be_there_in_its_shape() -> None:
    config = changed(quantization_config=Layouts(INT4).config())
    stored = stored_tensors(architecture(config), Parts(True, 0, 16, True))
    shapes = {role: shape for role, (_, shape) in stored.items()}
    check_model(config)(shapes)
    role = "model.layers.3.mlp.up_proj.weight.minimum"
    with pytest.raises(EngineError) as failure:
        check_model(config)({name: shape for name, shape in shapes.items() if name != role})
    assert failure.value.code == "missing-tensor"
    with pytest.raises(EngineError) as failure:
        check_model(config)({**shapes, role: (1, 1)})
    assert failure.value.code == "bad-tensor"

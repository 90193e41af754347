"""AWQ and GPTQ folders: the values that their formulas give, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from shoal.dht.errors import ModelError
from shoal.node.daemon.embedded import embedded_folder
from shoal.tasks.engine.families import architecture, tensor_shapes
from shoal.tasks.engine.interface import Parts
from shoal.tasks.models.packed import packed_model
from shoal.tasks.models.quantise import values
from shoal.transport.host.real import RealHost
from tests.tasks.models.test_gguf import CONFIG

N, K = 64, 256
BASE = "model.layers.0.mlp.up_proj"
Array = np.ndarray[Any, Any]


def random_parts(group: int, seed: int = 1) -> tuple[Array, Array, Array]:
    """Levels (K x N), zeros (groups x N), scales (groups x N)."""
    rng = np.random.default_rng(seed)
    levels = rng.integers(0, 16, (K, N), np.uint32)
    zeros = rng.integers(1, 16, (K // group, N), np.uint32)
    scales = rng.uniform(0.001, 0.02, (K // group, N)).astype(np.float16)
    return levels, zeros, scales


def expected(levels: Array, zeros: Array, scales: Array, group: int) -> Array:
    wide = np.repeat(scales.astype(np.float32), group, 0)
    found: Array = (wide * (levels.astype(np.float32) - np.repeat(zeros, group, 0))).T
    return found


def packed_columns(values_: Array, order: tuple[int, ...]) -> Array:
    """8 columns in each word: nibble i has column order[i]."""
    split = values_.reshape(len(values_), -1, 8)
    word = np.zeros(split.shape[:2], np.uint32)
    for nibble, column in enumerate(order):
        word |= split[:, :, column] << np.uint32(4 * nibble)
    packed: Array = word.view(np.int32)
    return packed


def awq(group: int) -> tuple[dict[str, Array], Array]:
    levels, zeros, scales = random_parts(group)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    tensors = {
        f"{BASE}.qweight": packed_columns(levels, order),
        f"{BASE}.qzeros": packed_columns(zeros, order),
        f"{BASE}.scales": scales,
    }
    return tensors, expected(levels, zeros, scales, group)


def gptq(group: int, *, added: int = 1, act_order: bool = False) -> tuple[dict[str, Array], Array]:
    levels, zeros, scales = random_parts(group)
    straight = tuple(range(8))
    index = np.arange(K, dtype=np.int32) // group
    tensors = {
        f"{BASE}.qweight": packed_columns(levels.T, straight).T.copy(),
        f"{BASE}.qzeros": packed_columns((zeros - added) & 15, straight),
        f"{BASE}.scales": scales,
        f"{BASE}.g_idx": index[::-1].copy() if act_order else index,
        f"{BASE}.bias": np.zeros(N, np.float16),
    }
    return tensors, expected(levels, zeros, scales, group)


def folder_of(tmp_path: Path, tensors: dict[str, Array], **told: Any) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    rest = {"model.norm.weight": np.ones(8, np.float16)}
    save_file({**tensors, **rest}, folder / "model.safetensors")
    quantised = {"bits": 4, "group_size": 128, **told}
    config = {"num_hidden_layers": 1, "quantization_config": quantised}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def found(folder: Path) -> Array:
    model = packed_model(RealHost().files, folder)
    assert "quantization_config" not in model.config
    assert {output.role for output in model.outputs} == {f"{BASE}.weight", "model.norm.weight"}
    (output,) = (each for each in model.outputs if each.layout is not None)
    (parts,) = output.pieces()
    assert output.shape == (N, K) and output.layout is not None
    assert output.stored() == {
        output.role + end: ({"": "U8"}.get(end, "F16"), part.shape)  # type: ignore[union-attr]
        for end, part in parts.items()
    }
    return values(parts, output.layout)  # type: ignore[arg-type]


def near(ours: Array, theirs: Array) -> bool:
    """Equal up to rounding the minimum, of at most 15 scales, to float16."""
    return bool(np.abs(ours - theirs).max() <= 0.02 * 15 * 2**-11)


@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_awq_has_its_values(group: int, tmp_path: Path) -> None:
    tensors, theirs = awq(group)
    folder = folder_of(tmp_path, tensors, quant_method="awq", version="GEMM", group_size=group)
    assert near(found(folder), theirs)


@pytest.mark.parametrize(("told", "added"), [({}, 1), ({"checkpoint_format": "gptq_v2"}, 0)])
@pytest.mark.parametrize("group", [32, 128, -1])
def test_gptq_has_its_values(group: int, told: dict[str, Any], added: int, tmp_path: Path) -> None:
    tensors, theirs = gptq(group if group > 0 else K, added=added)
    folder = folder_of(tmp_path, tensors, quant_method="gptq", group_size=group, **told)
    assert near(found(folder), theirs)


@pytest.mark.parametrize(
    "told",
    [
        {"bits": 8},
        {"bits": None},
        {"group_size": 48},
        {"group_size": 16},
        {"group_size": "128"},
        {"quant_method": "gptq", "desc_act": True},
        {"version": "marlin"},
    ],
)
def test_what_cannot_be_converted_is_refused(told: dict[str, Any], tmp_path: Path) -> None:
    folder = folder_of(tmp_path, awq(128)[0], **{"quant_method": "awq", **told})
    with pytest.raises(ModelError) as failure:
        found(folder)
    assert failure.value.code == "unsupported-quantization"
    assert "`shoal model quantize`" in str(failure.value.hint)


def test_act_order_is_found_in_the_index(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, gptq(128, act_order=True)[0], quant_method="gptq")
    with pytest.raises(ModelError, match="act-order"):
        found(folder)


@pytest.mark.parametrize("end", [".qzeros", ".scales"])
def test_tensors_must_fit_together(end: str, tmp_path: Path) -> None:
    tensors = awq(128)[0]
    lie = {**tensors, BASE + end: tensors[BASE + end][:1]}
    with pytest.raises(ModelError) as failure:
        found(folder_of(tmp_path, lie, quant_method="awq"))
    assert failure.value.code == "bad-tensor"
    del lie[BASE + end]
    (tmp_path / "other").mkdir()
    with pytest.raises(ModelError) as failure:
        found(folder_of(tmp_path / "other", lie, quant_method="awq"))
    assert failure.value.code == "missing-tensor"


def test_scales_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    tensors = awq(128)[0]
    tensors[f"{BASE}.scales"][0, 0] = np.inf
    with pytest.raises(ModelError) as failure:
        found(folder_of(tmp_path, tensors, quant_method="awq"))
    assert failure.value.code == "bad-tensor"


def awq_folder(folder: Path) -> Path:
    """A whole small model, whose projections are quantised by AWQ."""
    arch = architecture(CONFIG)
    rng, tensors = np.random.default_rng(2), dict[str, Array]()
    for role, shape in tensor_shapes(arch, Parts(True, 0, arch.layers, True)).items():
        if not role.endswith("_proj.weight"):
            tensors[role] = rng.standard_normal(shape).astype(np.float16)
            continue
        outputs, inputs = shape
        base, order = role.removesuffix(".weight"), (0, 2, 4, 6, 1, 3, 5, 7)
        levels = rng.integers(0, 16, (inputs, outputs), np.uint32)
        zeros = rng.integers(0, 16, (inputs // 128, outputs), np.uint32)
        tensors[f"{base}.qweight"] = packed_columns(levels, order)
        tensors[f"{base}.qzeros"] = packed_columns(zeros, order)
        tensors[f"{base}.scales"] = np.full((inputs // 128, outputs), 0.01, np.float16)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    told = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": told}))
    (folder / "tokenizer.json").write_bytes((embedded_folder() / "tokenizer.json").read_bytes())
    return folder

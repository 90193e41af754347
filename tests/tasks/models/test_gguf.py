"""GGUF files: each type against the `gguf` package, whole models against transformers, and lies."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.dht.errors import ModelError, NotEnoughDisk
from shoal.tasks.engine.families import architecture, tensor_shapes
from shoal.tasks.engine.interface import Parts
from shoal.tasks.models.gguf.blocks import LAYOUTS, stored_parts
from shoal.tasks.models.gguf.config import config_of
from shoal.tasks.models.gguf.families import family_of
from shoal.tasks.models.gguf.header import (
    HEADER_LIMIT,
    KINDS,
    METADATA_LIMIT,
    Header,
    TensorType,
    read_header,
)
from shoal.tasks.models.gguf.metadata import Metadata
from shoal.tasks.models.gguf.model import gguf_model
from shoal.tasks.models.output import Converted, Output, floats_of, write_folder
from shoal.tasks.models.quantise import values
from tests.tasks.models.ggufs import (
    NUMBERS,
    File,
    blocks,
    expected_values,
    model_file,
    model_metadata,
    text,
    value,
)

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
FAMILIES = {
    "llama": {},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
}
ALL = ["Q4_K", "Q6_K", "Q5_K", "Q8_0", "Q4_0", "F16", "BF16", "F32"]


def small(kinds: list[str] | None = None, family: str = "llama", **change: Any) -> File:
    config = {**CONFIG, **FAMILIES[family], **change}
    arch = architecture(config)
    shapes = tensor_shapes(arch, Parts(True, 0, arch.layers, True))
    return model_file(config, shapes, kinds or ["Q4_K"], family=family)


def kind_of(name: str) -> TensorType:
    return KINDS[NUMBERS[name]]


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_each_type_has_the_values_of_the_gguf_package(name: str) -> None:
    raw = blocks(name, 16, 512, np.random.default_rng(1), 1.0)
    expected = expected_values(File({}, {"x": (name, (16, 512), raw)}), "x")
    found = values(stored_parts(raw, kind_of(name), 16), LAYOUTS[name])
    error = np.abs(found - expected)
    if name in ("Q8_0", "Q4_0"):
        assert (error <= 1e-7 * np.abs(expected).max()).all()
    elif name == "Q5_K":  # rounded again: half a step of 8 bits
        step = np.abs(expected.reshape(-1, 32)).max(1) / 127
        assert (error.reshape(-1, 32) <= 0.51 * step[:, None] + 127 * step[:, None] / 2**11).all()
    else:  # scale and minimum are rounded to 11 bits
        assert (error <= np.abs(expected).max() * 2**-10).all()
        assert error.mean() < 2**-12 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_float_types_are_read_exactly(name: str) -> None:
    raw = blocks(name, 4, 64, np.random.default_rng(1), 1.0)
    expected = expected_values(File({}, {"x": (name, (4, 64), raw)}), "x")
    assert (floats_of(raw, name) == expected.reshape(-1)).all()


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_model_has_the_values_of_its_file(family: str, tmp_path: Path) -> None:
    """Read whole, with the rows of `llama` in transformers' order."""
    file = small(ALL, family)
    model = gguf_model(file.write(tmp_path / "model.gguf"))
    assert len(model.outputs) == len(file.tensors)
    by_role = {output.role: output for output in model.outputs}
    heads = {"attn_q": 4, "attn_k": 2}
    from tests.tasks.models.ggufs import tensor_name

    for role, output in by_role.items():
        name = tensor_name(role)
        expected = expected_values(file, name)
        part = name.split(".")[2] if name.startswith("blk.") else ""
        if family == "llama" and part in heads:
            split = expected.reshape(heads[part], 32, 2, *expected.shape[1:])
            expected = split.swapaxes(1, 2).reshape(expected.shape)
        found = []
        for parts in output.pieces():
            if output.layout is None:
                found.append(floats_of(parts[""], output.dtype))  # type: ignore[arg-type]
            else:
                found.append(values(parts, output.layout).reshape(-1))  # type: ignore[arg-type]
        near = np.concatenate(found).reshape(expected.shape)
        assert np.abs(near - expected).max() <= 0.02 * np.abs(expected).max(), role
        assert np.abs(near - expected).mean() <= 0.004 * np.abs(expected).max(), role


def test_the_notes_say_what_is_converted(tmp_path: Path) -> None:
    notes = gguf_model(small(["Q4_K", "Q5_K", "F16"]).write(tmp_path / "x.gguf")).notes
    assert any(note.startswith("Q4_K: ") and "natively as int4/32" in note for note in notes)
    assert any(note.startswith("Q5_K: ") and "converted to int8/32" in note for note in notes)
    assert any(note.startswith("F16: ") and "stored as they are" in note for note in notes)


def test_the_config_is_that_of_the_model(tmp_path: Path) -> None:
    path = small(["Q8_0"], "qwen2").write(tmp_path / "x.gguf")
    header = read_header(path)
    meta = Metadata(header)
    config = config_of(meta, family_of(meta), header, {})
    assert config["rms_norm_eps"] == 1e-5 and config["vocab_size"] == 320
    assert config["tie_word_embeddings"] is False
    architecture(config)


# Lies. Each is refused with a code and a hint, and before memory is taken.


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as failure:
        gguf_model(path)
    assert failure.value.hint
    return failure.value.code


PLAIN = small(["Q8_0"])
LIES: dict[str, dict[str, Any]] = {
    "version": {"version": 4},
    "many tensors": {"tensors": 1 << 60},
    "many entries": {"entries": 1 << 60},
    "overlap": {"places": {"blk.0.attn_q.weight": 0, "blk.0.attn_k.weight": 0}},
    "unaligned": {"places": {"blk.0.attn_q.weight": 7}},
    "dimensions": {"shapes": {"blk.0.attn_q.weight": (256, 1, 1, 1, 1)}},
    "no dimensions": {"shapes": {"blk.0.attn_q.weight": ()}},
    "zero rows": {"shapes": {"blk.0.attn_q.weight": (256, 0)}},
    "huge rows": {"shapes": {"blk.0.attn_q.weight": (256, 1 << 62)}},
    "half a block": {"shapes": {"blk.0.attn_q.weight": (250, 256)}},
}


def with_experts(shape: tuple[int, ...], told: int) -> File:
    """A Mixtral with one stacked tensor of experts in Q4_K."""
    raw = blocks("Q4_K", shape[0] * shape[1], shape[2], np.random.default_rng(4), 1.0)
    tensors = {"blk.0.ffn_up_exps.weight": ("Q4_K", shape, raw)}
    more = {"llama.expert_count": told, "llama.expert_used_count": 2}
    keep = {name: each for name, each in PLAIN.tensors.items() if ".ffn_up" not in name}
    gates = {name: each for name, each in keep.items() if ".ffn_" not in name or "norm" in name}
    return File({**PLAIN.metadata, **more}, {**gates, **tensors})


def test_each_expert_has_its_part_of_the_stacked_tensor(tmp_path: Path) -> None:
    file = with_experts((3, 512, 256), 3)
    model = gguf_model(file.write(tmp_path / "x.gguf"))
    name = "blk.0.ffn_up_exps.weight"
    expected = expected_values(file, name)
    for number in range(3):
        role = f"model.layers.0.block_sparse_moe.experts.{number}.w3.weight"
        (output,) = (each for each in model.outputs if each.role == role)
        assert output.layout is not None
        found = np.concatenate([values(parts, output.layout) for parts in output.pieces()])  # type: ignore[arg-type]
        assert np.abs(found - expected[number]).max() <= np.abs(expected).max() * 2**-10


@pytest.mark.parametrize(
    ("told", "code"), [(4, "bad-gguf"), (0, "bad-gguf"), (1 << 15, "bad-gguf")]
)
def test_another_number_of_experts_is_refused(told: int, code: str, tmp_path: Path) -> None:
    assert refused(with_experts((3, 32, 256), told).write(tmp_path / "x.gguf")) == code


def test_a_stack_of_what_is_no_expert_is_refused(tmp_path: Path) -> None:
    file = with_experts((2, 32, 256), 2)
    file.tensors["blk.0.attn_k.weight"] = file.tensors.pop("blk.0.ffn_up_exps.weight")
    assert refused(file.write(tmp_path / "x.gguf")) == "unsupported-tensor"


@pytest.mark.parametrize("family", [None, 7, ["llama"]])
def test_a_file_without_the_name_of_its_family_is_refused(family: Any) -> None:
    metadata = {} if family is None else {"general.architecture": family}
    with pytest.raises(ModelError) as failure:
        Metadata(Header(metadata, {}))
    assert (failure.value.code, bool(failure.value.hint)) == ("bad-gguf", True)


@pytest.mark.parametrize("lie", list(LIES))
def test_a_lying_header_is_refused(lie: str, tmp_path: Path) -> None:
    assert refused(PLAIN.write(tmp_path / "x.gguf", **LIES[lie])) == "bad-gguf"


def test_a_tensor_out_of_range_is_refused(tmp_path: Path) -> None:
    far = {"blk.0.attn_q.weight": 1 << 40}
    assert refused(PLAIN.write(tmp_path / "x.gguf", places=far)) == "truncated"
    data = PLAIN.encode()
    for cut in (3, 20, 500, len(data) - 40):
        (tmp_path / "cut.gguf").write_bytes(data[:cut])
        assert refused(tmp_path / "cut.gguf") == "truncated", cut


@pytest.mark.parametrize(("number", "name"), [(10, "Q2_K"), (99, "99"), (1 << 31, "2147483648")])
def test_an_unknown_type_is_named(number: int, name: str, tmp_path: Path) -> None:
    path = PLAIN.write(tmp_path / "x.gguf", kinds={"blk.0.attn_q.weight": number})
    assert refused(path) == "unsupported-dtype"
    with pytest.raises(ModelError, match=rf"has the type {name}, supported are F32"):
        read_header(path)


BOMBS = {
    "text": struct.pack("<IQ", 8, 1 << 62),
    "large text": struct.pack("<IQ", 8, 5 << 20),
    "array of texts": struct.pack("<IIQ", 9, 8, 1 << 40),
    "array of numbers": struct.pack("<IIQ", 9, 0, HEADER_LIMIT + 1),
    "array of arrays": struct.pack("<IIQ", 9, 9, 1),
    "unknown value": struct.pack("<I", 13),
    "no UTF-8": struct.pack("<IQ", 8, 2) + b"\xff\xfe",
}


@pytest.mark.parametrize("bomb", list(BOMBS))
def test_a_value_that_lies_about_its_size_is_refused(bomb: str, tmp_path: Path) -> None:
    file = File({"general.architecture": "llama", "bomb": BOMBS[bomb]})
    assert refused(file.write(tmp_path / "x.gguf")) == "bad-gguf"


def test_repeated_names_are_refused(tmp_path: Path) -> None:
    twice = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (text("a") + value(1))
    (tmp_path / "x.gguf").write_bytes(twice)
    assert refused(tmp_path / "x.gguf") == "bad-gguf"
    entry = text("t") + struct.pack("<IQIQ", 1, 8, 0, 0)
    (tmp_path / "y.gguf").write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + 2 * entry + bytes(96)
    )
    assert refused(tmp_path / "y.gguf") == "bad-gguf"


@pytest.mark.parametrize("alignment", [0, 3, 1 << 20, "x"])
def test_an_alignment_is_a_small_power_of_two(alignment: Any, tmp_path: Path) -> None:
    file = File({**PLAIN.metadata, "general.alignment": alignment}, PLAIN.tensors)
    assert refused(file.write(tmp_path / "x.gguf")) == "bad-gguf"


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count"])
@pytest.mark.parametrize("told", [None, "many", 1 << 31, [float("inf")] * 2, [4.0, 4.0]])
def test_sizes_are_checked(key: str, told: Any, tmp_path: Path) -> None:
    metadata = {**PLAIN.metadata, f"llama.{key}": told}
    if told is None:
        del metadata[f"llama.{key}"]
    assert refused(File(metadata, PLAIN.tensors).write(tmp_path / "x.gguf")) == "bad-gguf"


TOKENS = PLAIN.metadata["tokenizer.ggml.tokens"]
TOKENIZERS: dict[str, dict[str, Any]] = {
    "too few tokens": {"tokenizer.ggml.tokens": TOKENS[:-1]},
    "a token twice": {"tokenizer.ggml.tokens": [*TOKENS[:-1], TOKENS[5]]},
    "a long token": {"tokenizer.ggml.tokens": [*TOKENS[:-1], "x" * 2000]},
    "unknown merge": {"tokenizer.ggml.merges": ["q zebra"]},
    "no merges": {"tokenizer.ggml.merges": [1]},
    "end out of range": {"tokenizer.ggml.eos_token_id": 5000},
}


@pytest.mark.parametrize("lie", list(TOKENIZERS))
def test_a_tokenizer_must_match_its_vocabulary(lie: str, tmp_path: Path) -> None:
    file = File({**PLAIN.metadata, **TOKENIZERS[lie]}, PLAIN.tensors)
    assert refused(file.write(tmp_path / "x.gguf")) in ("bad-tokenizer", "bad-gguf")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"general.architecture": "rwkv"}, "unsupported-architecture"),
        ({"tokenizer.ggml.model": "bert"}, "unsupported-tokenizer"),
        ({"tokenizer.ggml.pre": "mystery"}, "unsupported-tokenizer"),
        ({"llama.expert_count": 8}, "bad-gguf"),
        ({"llama.rope.dimension_count": 32}, "unsupported-architecture"),
        ({"llama.attention.key_length": 0, "llama.attention.value_length": 0},
         "unsupported-architecture"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0},
         "unsupported-architecture"),
        ({"split.count": 3}, "split-gguf"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused(
    change: dict[str, Any], code: str, tmp_path: Path
) -> None:
    file = File({**PLAIN.metadata, **change}, PLAIN.tensors)
    assert refused(file.write(tmp_path / "x.gguf")) == code


def test_unknown_tensors_are_refused(tmp_path: Path) -> None:
    for name in ("blk.0.ffn_gate_exps.weight", "blk.00.attn_q.weight", "other", "output.bias"):
        tensors = {**PLAIN.tensors, name: ("F32", (4,), bytes(16))}
        path = File(PLAIN.metadata, tensors).write(tmp_path / "x.gguf")
        assert refused(path) == "unsupported-tensor", name


def test_experts_count_as_tensors(tmp_path: Path) -> None:
    """A small file could claim so many experts that their descriptions fill the memory."""
    experts = {"llama.block_count": 1, "llama.expert_count": 1 << 15,
               "llama.expert_used_count": 2}  # fmt: skip
    stacked = ("F16", (1 << 15, 1, 1), bytes(1 << 16))
    tensors = {f"blk.{layer}.ffn_up_exps.weight": stacked for layer in range(4)}
    file = File({**PLAIN.metadata, **experts}, {**PLAIN.tensors, **tensors})
    with pytest.raises(ModelError, match=r"the file has 1310.. tensors"):
        gguf_model(file.write(tmp_path / "x.gguf"))


def test_scales_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    kind, shape, raw = PLAIN.tensors["blk.0.ffn_up.weight"]
    spoilt = b"\x00\x7c" + raw[2:]  # infinity
    tensors = {**PLAIN.tensors, "blk.0.ffn_up.weight": (kind, shape, spoilt)}
    model = gguf_model(File(PLAIN.metadata, tensors).write(tmp_path / "x.gguf"))
    (output,) = (each for each in model.outputs if each.role.endswith("0.mlp.up_proj.weight"))
    with pytest.raises(ModelError) as failure:
        list(output.pieces())
    assert failure.value.code == "bad-tensor"


def test_frequencies_of_llama_3_become_its_scaling(tmp_path: Path) -> None:
    import torch

    from shoal.tasks.engine.compute.rotary import frequencies
    from shoal.tasks.engine.families.reader import JsonReader
    from shoal.tasks.engine.families.rope import read_rope

    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    scaled = JsonReader({"rope_theta": 500000.0, "rope_scaling": scaling})
    plain = JsonReader({"rope_theta": 500000.0})
    divisors = frequencies(read_rope(plain, 131072), 64) / frequencies(
        read_rope(scaled, 131072), 64
    )
    assert isinstance(divisors, torch.Tensor)
    metadata = {**PLAIN.metadata, "llama.rope.freq_base": 500000.0}
    raw = divisors.float().numpy().tobytes()
    tensors = {"rope_freqs.weight": ("F32", (32,), raw), **PLAIN.tensors}
    model = gguf_model(File(metadata, tensors).write(tmp_path / "x.gguf"))
    assert model.config["rope_scaling"] == scaling
    strange = np.linspace(1, 9, 32).astype("<f4").tobytes()
    tensors["rope_freqs.weight"] = ("F32", (32,), strange)
    path = File(metadata, tensors).write(tmp_path / "x.gguf")
    assert refused(path) == "unsupported-architecture"


def test_a_file_that_claims_more_than_the_disk_has_is_not_begun(tmp_path: Path) -> None:
    """A sparse file has all the bytes that it claims."""

    def pieces() -> Iterator[dict[str, bytes]]:
        raise AssertionError("it was read")

    claimed = Output("x.weight", (1 << 31, 1 << 20), None, "F32", pieces)
    with pytest.raises(NotEnoughDisk):
        write_folder(tmp_path, Converted({}, {}, [claimed]), lambda *_: None)


def test_metadata_of_the_helper_is_complete() -> None:
    assert model_metadata(CONFIG, "llama").keys() == PLAIN.metadata.keys()


def test_counts_above_their_limits_are_refused_although_all_entries_are_there(
    tmp_path: Path,
) -> None:
    many = File({"general.architecture": "llama", **{f"k{n}": n for n in range(METADATA_LIMIT)}})
    with pytest.raises(ModelError, match="it claims 0 tensors and 4097 entries"):
        read_header(many.write(tmp_path / "x.gguf"))


def test_an_offset_that_is_not_aligned_is_refused_although_it_fits(tmp_path: Path) -> None:
    file = File({}, {"t": ("F32", (8,), bytes(64))})
    read_header(file.write(tmp_path / "x.gguf", places={"t": 32}))
    with pytest.raises(ModelError, match="is not aligned"):
        read_header(file.write(tmp_path / "x.gguf", places={"t": 8}))

"""Makes GGUF files of small random models for tests, if necessary with wrong counts and offsets."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, quants

NUMBERS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "BF16": 30}
SIZES = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q8_0": (32, 34),
         "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)}  # fmt: skip
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def blocks(kind: str, rows: int, columns: int, rng: np.random.Generator, scale: float) -> bytes:
    """Random bytes that are valid blocks: every integer occurs, scales have a sensible size."""
    values, size = SIZES[kind]
    if kind in ("F32", "F16", "BF16"):
        made = rng.standard_normal((rows, columns)).astype(np.float32) * scale
        return bytes(quants.quantize(made, GGMLQuantizationType[kind]).tobytes())
    data = rng.integers(0, 256, (rows * columns // values, size), np.uint8)
    places = {"Q4_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[kind]
    steps = {"Q4_0": 4, "Q8_0": 64, "Q4_K": 400, "Q5_K": 800, "Q6_K": 2000}[kind]
    for place in places:
        halves = rng.uniform(0.5, 1, len(data)) * scale / steps
        data[:, place : place + 2] = halves.astype(np.float16)[:, None].view(np.uint8)
    return data.tobytes()


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(item: Any) -> bytes:
    """A metadata value with its type in front."""
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + text(item)
    if isinstance(item, list) and item and isinstance(item[0], str):
        return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(text, item))
    if isinstance(item, list) and item and isinstance(item[0], float):
        return struct.pack("<IIQ", 9, 6, len(item)) + struct.pack(f"<{len(item)}f", *item)
    if isinstance(item, list):
        return struct.pack("<IIQ", 9, 5, len(item)) + struct.pack(f"<{len(item)}i", *item)
    raw: bytes = item
    return raw


@dataclass
class File:
    """A GGUF file. `tensors` maps a name to (type, shape with rows first, bytes)."""

    metadata: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = field(default_factory=dict)

    def encode(self, **lies: Any) -> bytes:
        """The bytes of the file. `lies` replace the counts, a tensor's place, size or type."""
        out = b"GGUF" + struct.pack(
            "<IQQ", lies.get("version", 3), lies.get("tensors", len(self.tensors)),
            lies.get("entries", len(self.metadata)),
        )  # fmt: skip
        for key, item in self.metadata.items():
            out += text(key) + value(item)
        data = b""
        for name, (kind, shape, raw) in self.tensors.items():
            place = lies.get("places", {}).get(name, len(data))
            dims = lies.get("shapes", {}).get(name, shape[::-1])
            number = lies.get("kinds", {}).get(name, NUMBERS[kind])
            out += text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
            out += struct.pack("<IQ", number, place)
            data += raw + b"\0" * (-len(raw) % 32)
        out += b"\0" * (-len(out) % 32)
        return out + data

    def write(self, path: Path, **lies: Any) -> Path:
        path.write_bytes(self.encode(**lies))
        return path


def bpe_tokens(count: int) -> tuple[list[str], list[int], list[str]]:
    """A byte-level vocabulary of `count` tokens with their types, and its merges."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    merges = [f"{a} {b}" for a in "ehtn" for b in "aeiour"]
    tokens = ["<s>", "</s>", *letters, *(merge.replace(" ", "") for merge in merges)]
    tokens += [f"[PAD{number}]" for number in range(count - len(tokens))]
    types = [3, 3] + [1] * (len(letters) + len(merges))
    return tokens[:count], (types + [5] * count)[:count], merges


def tokenizer_metadata(count: int) -> dict[str, Any]:
    tokens, types, merges = bpe_tokens(count)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }


def model_file(
    config: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    kinds: Sequence[str],
    *,
    seed: int = 3,
    family: str = "",
) -> File:
    """A file of a random model. The matrices have the types of `kinds` in turn."""
    family = family or str(config["model_type"])
    rng = np.random.default_rng(seed)
    file = File(model_metadata(config, family))
    turn = 0
    for role, shape in sorted(shapes.items()):
        name = tensor_name(role)
        if len(shape) == 1:
            raw = (rng.standard_normal(shape) * 0.1 + role.endswith("weight")).astype("<f4")
            file.tensors[name] = ("F32", tuple(shape), raw.tobytes())
        else:
            kind = kinds[turn % len(kinds)]
            turn += 1
            raw_bytes = blocks(kind, shape[0], shape[1], rng, 0.05)
            file.tensors[name] = (kind, tuple(shape), raw_bytes)
    return file


def model_metadata(config: Mapping[str, Any], family: str) -> dict[str, Any]:
    sizes = {
        "block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
    }  # fmt: skip
    return {
        "general.architecture": family,
        **{f"{family}.{key}": int(config[name]) for key, name in sizes.items()},
        f"{family}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{family}.rope.freq_base": 10000.0,
        f"{family}.attention.key_length": int(config["head_dim"]),
        f"{family}.attention.value_length": int(config["head_dim"]),
        **tokenizer_metadata(int(config["vocab_size"])),
    }


def tensor_name(role: str) -> str:
    base, _, end = role.rpartition(".")
    if base in ENDS:
        return f"{ENDS[base]}.{end}"
    _, _, layer, part = base.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{end}"


def expected_values(file: File, name: str) -> "np.ndarray[Any, Any]":
    """The values of a tensor as the `gguf` package reads them."""
    kind, shape, raw = file.tensors[name]
    rows = np.frombuffer(raw, np.uint8).reshape(*shape[:-1], -1)
    if kind == "F32":
        return rows.view("<f4").astype(np.float32)
    found: np.ndarray[Any, Any] = quants.dequantize(rows, GGMLQuantizationType[kind])
    return found

"""Llama models with random weights in bfloat16, as a Hugging Face folder and as a GGUF file.

All layers have the same weights, so that a store of content keeps one of them, and llama.cpp's RPC
workers receive each large matrix once. Both programs still read each layer from memory of its own.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

Values = NDArray[np.float32]

_UINT, _FLOAT, _TEXT = 4, 6, 8  # types of values in GGUF
_F32, _BF16 = 0, 30  # types of tensors in GGUF
_ALIGN = 32  # bytes
_NAMES: Final = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
"""GGUF's names of tensors by those of Hugging Face."""


@dataclass(frozen=True)
class Shape:
    """Shape of a model. `name` is what the model is called."""

    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    words: int
    context: int = 2048


SHAPES: Final = {
    "tiny": Shape("random-tiny", 8, 256, 704, 8, 4, 2_048),
    "125M": Shape("random-125M", 12, 768, 2048, 12, 4, 32_000),
    "1.1B": Shape("random-1.1B", 22, 2048, 5632, 32, 4, 32_000),
}


class RandomModel:
    """The weights of one shape. Two models of the same shape and seed are equal."""

    def __init__(self, shape: Shape, seed: int = 7) -> None:
        self.shape = shape
        self._random = np.random.default_rng(seed)
        self._known: dict[str, bytes] = {}

    def write_folder(self, folder: Path) -> None:
        """Write config.json, tokenizer.json and model.safetensors into a new folder."""
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self._config()))
        words = {word(number): number for number in range(self.shape.words)}
        tokenizer = Tokenizer(WordLevel(words, unk_token=word(0)))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        tokenizer.save(str(folder / "tokenizer.json"))
        header, at = {}, 0
        for name, size in self._sizes():
            end = at + 2 * int(np.prod(size))
            header[f"{name}.weight"] = {
                "dtype": "BF16", "shape": size, "data_offsets": [at, end]
            }  # fmt: skip
            at = end
        text = json.dumps(header).encode()
        with (folder / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for name, size in self._sizes():
                file.write(self._data(name, size))

    def write_gguf(self, path: Path) -> None:
        """Write a GGUF file of the same weights, without a tokenizer."""
        sizes = list(self._sizes())
        fields = list(self._fields())
        with path.open("wb") as file:
            file.write(b"GGUF" + struct.pack("<IQQ", 3, len(sizes), len(fields)))
            for field in fields:
                file.write(field)
            at = 0
            for name, size in sizes:
                kind, width = (_F32, 4) if len(size) == 1 else (_BF16, 2)
                dims = size[::-1]
                file.write(_text(f"{_gguf_name(name)}.weight"))
                file.write(struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, at))
                at += _padded(width * int(np.prod(size)))
            for name, size in sizes:
                file.write(b"\0" * (-file.tell() % _ALIGN))
                data = self._data(name, size)
                file.write(_widened(data) if len(size) == 1 else data)
            file.write(b"\0" * (-file.tell() % _ALIGN))

    def _config(self) -> dict[str, object]:
        shape = self.shape
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "vocab_size": shape.words, "hidden_size": shape.hidden,
            "intermediate_size": shape.inner, "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
            "max_position_embeddings": shape.context, "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        }  # fmt: skip

    def _sizes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and the size of each tensor."""
        shape = self.shape
        keys = shape.hidden // shape.heads * shape.kv_heads
        yield "model.embed_tokens", (shape.words, shape.hidden)
        for layer in range(shape.layers):
            for name, size in {
                "input_layernorm": (shape.hidden,), "self_attn.q_proj": (shape.hidden,) * 2,
                "self_attn.k_proj": (keys, shape.hidden), "self_attn.v_proj": (keys, shape.hidden),
                "self_attn.o_proj": (shape.hidden,) * 2,
                "post_attention_layernorm": (shape.hidden,),
                "mlp.gate_proj": (shape.inner, shape.hidden),
                "mlp.up_proj": (shape.inner, shape.hidden),
                "mlp.down_proj": (shape.hidden, shape.inner),
            }.items():  # fmt: skip
                yield f"model.layers.{layer}.{name}", size
        yield "model.norm", (shape.hidden,)
        yield "lm_head", (shape.words, shape.hidden)

    def _data(self, name: str, size: tuple[int, ...]) -> bytes:
        """Return a tensor in bfloat16, which is the same in each layer."""
        kind = name.split(".", 3)[-1] if ".layers." in name else name
        if kind not in self._known:
            values = np.ones(size, np.float32)
            if len(size) > 1:
                values = self._random.standard_normal(size, dtype=np.float32) * np.float32(0.02)
            self._known[kind] = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        return self._known[kind]

    def _fields(self) -> Iterator[bytes]:
        """Yield the metadata of a GGUF file."""
        shape = self.shape
        numbers = {
            "context_length": shape.context, "embedding_length": shape.hidden,
            "block_count": shape.layers, "feed_forward_length": shape.inner,
            "attention.head_count": shape.heads, "attention.head_count_kv": shape.kv_heads,
            "rope.dimension_count": shape.hidden // shape.heads, "vocab_size": shape.words,
        }  # fmt: skip
        for name, number in numbers.items():
            yield _text(f"llama.{name}") + struct.pack("<II", _UINT, number)
        epsilon = "llama.attention.layer_norm_rms_epsilon"
        yield _text(epsilon) + struct.pack("<If", _FLOAT, 1e-5)
        for name, text in {
            "general.architecture": "llama", "tokenizer.ggml.model": "no_vocab"
        }.items():  # fmt: skip
            yield _text(name) + struct.pack("<I", _TEXT) + _text(text)


def word(number: int) -> str:
    """Return the text of a token. The texts of a prompt's tokens are separated by spaces."""
    return f"w{number}"


def prompt(shape: Shape, count: int, seed: int) -> str:
    """Return a random prompt of `count` tokens."""
    numbers = np.random.default_rng(seed).integers(0, shape.words, count)
    return " ".join(map(word, numbers.tolist()))


def _gguf_name(name: str) -> str:
    if ".layers." not in name:
        return _NAMES[name]
    _, _, layer, kind = name.split(".", 3)
    return f"blk.{layer}.{_NAMES[kind]}"


def _widened(data: bytes) -> bytes:
    """Convert bfloat16 to float32."""
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).tobytes()


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data

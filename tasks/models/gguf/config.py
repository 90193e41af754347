"""From the metadata of a GGUF file to a config.json, and the names of its tensors.

Families: `llama` (also Mistral's files), `qwen2`, `qwen3`. In files of `llama`, the rows of the
query and key projections are in the order in which pairs of the rotary embedding are neighbours;
`RowOrder` is the way back.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from ....dht.defaults import LAYERS_LIMIT
from ....dht.errors import ModelError
from .header import AGAIN, GgufTensor, Header, Value

FAMILIES: Final[Mapping[str, str]] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_ENDS: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_PARTS: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER: Final = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.([a-z_]+)\.(weight|bias)")
_LLAMA3_CONTEXT: Final = 8192  # tokens for which Llama 3 was trained before its context grew
FREQUENCIES: Final = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Order of the rows of a projection: that of transformers for each head of `head_dim` rows.

    The file has the pairs of the rotary embedding side by side, transformers has halves.
    """

    head_dim: int

    def indices(self) -> NDArray[np.int64]:
        """Return, for each row of a head in the order of transformers, its row in the file."""
        found: NDArray[np.int64] = np.arange(self.head_dim).reshape(-1, 2).T.reshape(-1)
        return found


class Metadata:
    """Typed, bounded access to the metadata of one architecture."""

    def __init__(self, header: Header) -> None:
        """Raises ModelError `unsupported-architecture` if the family is not supported."""
        self._values = header.metadata
        self.family = ""
        self.family = self.text("general.architecture")
        if self.family not in FAMILIES:
            raise ModelError(
                "unsupported-architecture",
                f"GGUF files of {ascii(self.family)[:40]} are not supported",
                hint=f"supported are {', '.join(FAMILIES)}; for other families, add the model's "
                "Hugging Face folder",
            )

    def _get(self, key: str) -> Value | None:
        return self._values.get(key.replace("{}", self.family if "{}" in key else ""))

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            self._bad(key, "is no text")
        return value

    def integer(self, key: str, most: int, default: int | None = None) -> int:
        value = self._get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
            value = int(value[0])  # by layer, all the same
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            self._bad(key, f"is no integer of 0 to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or not math.isfinite(value):
            self._bad(key, "is no finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key)
        return value if isinstance(value, bool) else default

    def texts(self, key: str) -> list[str]:
        value = self._get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self._bad(key, "is no list of texts")
        return value

    def numbers(self, key: str) -> list[float]:
        value = self._get(key)
        return value.tolist() if isinstance(value, np.ndarray) else []

    def _bad(self, key: str, why: str) -> NoReturn:
        raise ModelError(
            "bad-gguf",
            f"the file's `{key.replace('{}', self.family)}` {why}",
            hint=AGAIN,
        )


def config_of(
    meta: Metadata, header: Header, frequencies: NDArray[np.float32] | None
) -> dict[str, object]:
    """Return the config.json of a file. `frequencies` are the divisors in `rope_freqs.weight`.

    Raises ModelError if a value is missing or cannot be computed.
    """
    if meta.integer("{}.expert_count", 1 << 16, 0):
        _unsupported("mixtures of experts in GGUF files")
    heads = meta.integer("{}.attention.head_count", 1 << 12)
    hidden = meta.integer("{}.embedding_length", 1 << 20)
    if not heads or not hidden:
        _unsupported("a model without attention heads")
    head_dim = meta.integer("{}.attention.key_length", 1 << 12, hidden // heads)
    if meta.integer("{}.attention.value_length", 1 << 12, head_dim) != head_dim:
        _unsupported("values and keys of different sizes")
    if meta.integer("{}.rope.dimension_count", 1 << 12, head_dim) != head_dim:
        _unsupported("partial rotary embeddings")
    config: dict[str, object] = {
        "architectures": [FAMILIES[meta.family]],
        "model_type": meta.family,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": meta.integer("{}.block_count", LAYERS_LIMIT),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.integer("{}.attention.head_count_kv", 1 << 12, heads),
        "head_dim": head_dim,
        "intermediate_size": meta.integer("{}.feed_forward_length", 1 << 24),
        "vocab_size": _rows(header, "token_embd.weight"),
        "max_position_embeddings": meta.integer("{}.context_length", 1 << 24),
        "rms_norm_eps": _float32(meta.number("{}.attention.layer_norm_rms_epsilon")),
        "rope_theta": _float32(meta.number("{}.rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "torch_dtype": "bfloat16",
        "attention_bias": meta.family == "llama" and "blk.0.attn_q.bias" in header.tensors,
    }
    if window := meta.integer("{}.attention.sliding_window", 1 << 30, 0):
        config |= {"sliding_window": window}
        if meta.family == "llama":  # a Mistral
            config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
        else:
            config |= {"use_sliding_window": True, "max_window_layers": 0}
    if scaling := _scaling(meta, config, frequencies):
        config["rope_scaling"] = scaling
    return config


def _float32(value: float) -> float:
    """Return the shortest decimal number that is this float32: 1e-05 for 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _rows(header: Header, name: str) -> int:
    tensor = header.tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
        raise ModelError(
            "missing-tensor", f"the file has no matrix `{name}`", hint="download the file again"
        )
    return tensor.shape[0]


def _scaling(
    meta: Metadata, config: Mapping[str, object], frequencies: NDArray[np.float32] | None
) -> dict[str, object] | None:
    """Return the `rope_scaling` of a config, or None."""
    kind = meta.text("{}.rope.scaling.type", "none")
    factor = meta.number("{}.rope.scaling.factor", 1.0)
    if frequencies is not None:
        return _llama3(config, frequencies)
    if kind not in ("none", "linear", "yarn"):
        _unsupported(f"rotary embeddings scaled by {ascii(kind)[:40]}")
    if kind == "none" or factor == 1.0:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    context = meta.integer("{}.rope.scaling.original_context_length", 1 << 24)
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": context}


def _llama3(config: Mapping[str, object], divisors: NDArray[np.float32]) -> dict[str, object]:
    """Return the scaling of Llama 3.1 that has these divisors of the frequencies.

    The largest divisor is the factor. All others follow from it.
    """
    theta, head_dim = config["rope_theta"], config["head_dim"]
    assert isinstance(theta, float) and isinstance(head_dim, int)
    factor = float(divisors.max(initial=1.0))
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = ((_LLAMA3_CONTEXT / wavelengths - 1) / 3).clip(0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if expected.shape != divisors.shape or not np.allclose(expected, divisors, rtol=1e-3):
        _unsupported("frequencies of a rotary embedding that are not those of Llama 3")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }


def role_of(tensor: GgufTensor) -> str | None:
    """Return the parameter name of a tensor, or None for the divisors of frequencies.

    Raises ModelError `unsupported-tensor` if the name is unknown.
    """
    if tensor.name == FREQUENCIES:
        return None
    base, _, end = tensor.name.rpartition(".")
    if base in _ENDS and end == "weight":
        return f"{_ENDS[base]}.weight"
    found = _LAYER.fullmatch(tensor.name)
    if found and found[2] in _PARTS:
        return f"model.layers.{found[1]}.{_PARTS[found[2]]}.{found[3]}"
    raise ModelError(
        "unsupported-tensor",
        f"the file has a tensor {ascii(tensor.name)[:80]}, which its family does not need",
        hint="add the model's Hugging Face folder instead",
    )


def order_of(meta: Metadata, tensor: GgufTensor, head_dim: int) -> RowOrder | None:
    """Return the order of a tensor's rows, or None if it is that of transformers.

    Raises ModelError `bad-gguf` if the rows cannot be divided into heads.
    """
    found = _LAYER.fullmatch(tensor.name)
    if meta.family != "llama" or not found or found[2] not in ("attn_q", "attn_k"):
        return None
    if tensor.shape[0] % head_dim or head_dim % 2:
        raise ModelError(
            "bad-gguf", f"the rows of `{tensor.name}` are no heads of {head_dim}", hint=AGAIN
        )
    return RowOrder(head_dim)


def _unsupported(what: str) -> NoReturn:
    raise ModelError(
        "unsupported-architecture",
        f"this engine cannot compute {what}",
        hint="`shoal model list --supported` shows what it can compute",
    )

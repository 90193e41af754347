"""From the metadata of a GGUF file to a config.json, and the roles of its tensors."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....dht.defaults import LAYERS_LIMIT
from ....dht.errors import ModelError
from .families import LONG_FACTORS, SHORT_FACTORS, GgufFamily, Vectors
from .header import AGAIN, GgufTensor, Header
from .metadata import Metadata, unsupported

_ENDS: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER: Final = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.([a-z_0-9]+)\.(weight|bias)")
_LLAMA3_CONTEXT: Final = 8192  # tokens for which Llama 3 was trained before its context grew
FREQUENCIES: Final = "rope_freqs.weight"
VECTORS: Final = (FREQUENCIES, SHORT_FACTORS, LONG_FACTORS)
"""Tensors that become a part of the config."""


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


def config_of(
    meta: Metadata, family: GgufFamily, header: Header, vectors: Vectors
) -> dict[str, object]:
    """Return the config.json of a file. `vectors` are the tensors in VECTORS that it has.

    Raises ModelError if a value is missing or cannot be computed.
    """
    heads = meta.integer("{}.attention.head_count", 1 << 12)
    hidden = meta.integer("{}.embedding_length", 1 << 20)
    if not heads or not hidden:
        unsupported("a model without attention heads")
    head_dim = meta.integer("{}.attention.key_length", 1 << 12, hidden // heads)
    if not head_dim:
        unsupported("attention heads without keys")
    if meta.integer("{}.attention.value_length", 1 << 12, head_dim) != head_dim:
        unsupported("values and keys of different sizes")
    turned = meta.integer("{}.rope.dimension_count", 1 << 12, head_dim)
    if turned != head_dim and family.model_type != "phi3":
        unsupported("partial rotary embeddings")
    wide = meta.integer("{}.expert_feed_forward_length", 1 << 24, 0)
    config: dict[str, object] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": meta.integer("{}.block_count", LAYERS_LIMIT),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.integer("{}.attention.head_count_kv", 1 << 12, heads),
        "head_dim": head_dim,
        "intermediate_size": meta.integer("{}.feed_forward_length", 1 << 24, wide or None),
        "vocab_size": _rows(header, "token_embd.weight"),
        "max_position_embeddings": meta.integer("{}.context_length", 1 << 24),
        "rms_norm_eps": _float32(meta.number("{}.attention.layer_norm_rms_epsilon")),
        "rope_theta": _float32(meta.number("{}.rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "torch_dtype": "bfloat16",
        "attention_bias": family.paired and "blk.0.attn_q.bias" in header.tensors,
    }
    config |= family.special(meta, config, vectors)
    if "rope_scaling" not in config and (scaling := _scaling(meta, config, vectors)):
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
    meta: Metadata, config: Mapping[str, object], vectors: Vectors
) -> Mapping[str, object] | None:
    """Return the `rope_scaling` of a config, or None."""
    kind = meta.text("{}.rope.scaling.type", "none")
    factor = meta.number("{}.rope.scaling.factor", 1.0)
    if FREQUENCIES in vectors:
        return _llama3(config, vectors[FREQUENCIES])
    if kind not in ("none", "linear", "yarn"):
        unsupported(f"rotary embeddings scaled by {ascii(kind)[:40]}")
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
        unsupported("frequencies of a rotary embedding that are not those of Llama 3")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }


def split_experts(tensor: GgufTensor, experts: int) -> Iterator[GgufTensor]:
    """Yield a tensor, or those of a layer's experts if it has all of them.

    Raises ModelError `bad-gguf` if it has other experts than the model.
    """
    if len(tensor.shape) != 3:
        yield tensor
        return
    if tensor.shape[0] != experts:
        raise ModelError(
            "bad-gguf",
            f"{ascii(tensor.name)[:80]} has {tensor.shape[0]} matrices, and the model {experts} "
            "experts",
            hint=AGAIN,
        )
    size = tensor.size // experts
    for number in range(experts):
        offset = tensor.offset + number * size
        yield replace(tensor, shape=tensor.shape[1:], offset=offset, size=size, expert=number)


def role_of(family: GgufFamily, tensor: GgufTensor) -> str:
    """Return the parameter name of a tensor. Raises ModelError `unsupported-tensor` if its family
    has no such tensor."""
    base, _, end = tensor.name.rpartition(".")
    if base in _ENDS and end == "weight" and tensor.expert is None:
        return f"{_ENDS[base]}.weight"
    found = _LAYER.fullmatch(tensor.name)
    module = family.parts.get(found[2]) if found else None
    if found is None or module is None or ("{}" in module) != (tensor.expert is not None):
        raise ModelError(
            "unsupported-tensor",
            f"the file has a tensor {ascii(tensor.name)[:80]}, which its family does not need",
            hint="add the model's Hugging Face folder instead",
        )
    return f"model.layers.{found[1]}.{module.format(tensor.expert)}.{found[3]}"


def order_of(family: GgufFamily, tensor: GgufTensor, head_dim: int) -> RowOrder | None:
    """Return the order of a tensor's rows, or None if it is that of transformers.

    Raises ModelError `bad-gguf` if the rows cannot be divided into heads.
    """
    found = _LAYER.fullmatch(tensor.name)
    if not family.paired or not found or found[2] not in ("attn_q", "attn_k"):
        return None
    if tensor.shape[0] % head_dim or head_dim % 2:
        raise ModelError(
            "bad-gguf", f"the rows of `{tensor.name}` are no heads of {head_dim}", hint=AGAIN
        )
    return RowOrder(head_dim)

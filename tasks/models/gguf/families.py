"""Families of models in GGUF files: the names of their tensors, and what is special in each.

`general.architecture` names the family. llama.cpp stores some values differently: in files of
`llama`, the rows of queries and keys are in another order, and the weights of Gemma's norms have
1 added.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....dht.errors import ModelError
from ...engine.families.experts import MOST_EXPERTS
from .metadata import Metadata, unsupported

Config = dict[str, object]
Vectors = Mapping[str, NDArray[np.float32]]
"""Short tensors of the whole model, by name, which become a part of its config."""

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
_GEMMA: Final = {
    **_PARTS,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_QWEN_EXPERTS: Final = {
    **_PARTS,
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_MIXTRAL: Final = {
    **_PARTS,
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
_PHI: Final = {**_PARTS, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
SHORT_FACTORS: Final = "rope_factors_short.weight"
LONG_FACTORS: Final = "rope_factors_long.weight"


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """One family.

    `architecture` and `model_type` are those of config.json. `parts` has the module of each tensor
    of a layer; `{}` stands for the number of an expert. `paired`: rows of queries and keys have the
    pairs of the rotary embedding side by side. `norm_offset` was added to the weights of norms.
    `special` returns the keys of config.json that only this family has.
    """

    architecture: str
    model_type: str
    special: Callable[[Metadata, Config, Vectors], Config]
    parts: Mapping[str, str]
    paired: bool = False
    norm_offset: float = 0.0


def family_of(meta: Metadata) -> GgufFamily:
    """Return the family of a file. Raises ModelError `unsupported-architecture` for others."""
    name = meta.architecture
    if name not in FAMILIES:
        raise ModelError(
            "unsupported-architecture",
            f"GGUF files of {ascii(name)[:40]} are not supported",
            hint=f"supported are {', '.join(FAMILIES)}; for other families, add the model's "
            "Hugging Face folder",
        )
    experts = meta.integer("{}.expert_count", 1 << 16, 0)
    if name == "llama" and experts:
        return _MIXTRAL_FAMILY
    if name == "llama" and meta.integer("{}.attention.sliding_window", 1 << 30, 0):
        return replace(FAMILIES[name], architecture="MistralForCausalLM", model_type="mistral")
    if experts and name != "qwen3moe":
        unsupported(f"mixtures of experts in GGUF files of {name}")
    return FAMILIES[name]


def experts_of(meta: Metadata) -> int:
    """Return the number of experts of each layer, or 0. Raises ModelError above the limit."""
    layers = max(1, meta.integer("{}.block_count", 1 << 16))
    return meta.integer("{}.expert_count", MOST_EXPERTS // layers, 0)


def _windowed(meta: Metadata, config: Config, _: Vectors) -> Config:
    """Qwen: all layers have the window, if there is one."""
    window = meta.integer("{}.attention.sliding_window", 1 << 30, 0)
    told: Config = {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}
    return told if window else {}


def _llama(meta: Metadata, config: Config, _: Vectors) -> Config:
    window = meta.integer("{}.attention.sliding_window", 1 << 30, 0)
    return {"sliding_window": window} if window else {}


def _mixtral(meta: Metadata, config: Config, _: Vectors) -> Config:
    window = meta.integer("{}.attention.sliding_window", 1 << 30, 0)
    return {
        "num_local_experts": experts_of(meta),
        "num_experts_per_tok": meta.integer("{}.expert_used_count", MOST_EXPERTS),
        "sliding_window": window or None,
    }


def _qwen_experts(meta: Metadata, config: Config, vectors: Vectors) -> Config:
    return {
        **_windowed(meta, config, vectors),
        "num_experts": experts_of(meta),
        "num_experts_per_tok": meta.integer("{}.expert_used_count", MOST_EXPERTS),
        "moe_intermediate_size": meta.integer("{}.expert_feed_forward_length", 1 << 24),
        "norm_topk_prob": True,  # as llama.cpp computes all of them
    }


def _gemma(meta: Metadata, config: Config, largest: int) -> Config:
    """Return what both Gemmas have. The model with `largest` layers scales its scores by the
    hidden size for each head, the others by the size of a head; files do not say which."""
    hidden, heads, head_dim = (
        config[key] for key in ("hidden_size", "num_attention_heads", "head_dim")
    )
    assert isinstance(hidden, int) and isinstance(heads, int)
    scaled = hidden // heads if config["num_hidden_layers"] == largest else head_dim
    window = meta.integer("{}.attention.sliding_window", 1 << 30, 0)
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scaled,
        "sliding_window": window or None,
    }


def _gemma2(meta: Metadata, config: Config, _: Vectors) -> Config:
    return {
        **_gemma(meta, config, 46),
        "attn_logit_softcapping": meta.number("{}.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": meta.number("{}.final_logit_softcapping", 30.0),
    }


def _gemma3(meta: Metadata, config: Config, _: Vectors) -> Config:
    return {
        **_gemma(meta, config, 62),
        "sliding_window_pattern": meta.integer("{}.attention.sliding_window_pattern", 1 << 10, 6),
        "rope_local_base_freq": meta.number("{}.rope.freq_base_swa", 10000.0),
        "final_logit_softcapping": meta.number("{}.final_logit_softcapping", 0.0) or None,
    }


def _phi3(meta: Metadata, config: Config, vectors: Vectors) -> Config:
    window = meta.integer("{}.attention.sliding_window", 1 << 30, 0)
    head_dim, context = config["head_dim"], config["max_position_embeddings"]
    assert isinstance(head_dim, int) and isinstance(context, int)
    turned = meta.integer("{}.rope.dimension_count", head_dim, head_dim)
    told: Config = {
        "sliding_window": window or None,
        "partial_rotary_factor": turned / head_dim,
        "original_max_position_embeddings": meta.integer(
            "{}.rope.scaling.original_context_length", 1 << 24, context
        ),
    }
    if SHORT_FACTORS in vectors and LONG_FACTORS in vectors:
        factors = (vectors[name].tolist() for name in (SHORT_FACTORS, LONG_FACTORS))
        told["rope_scaling"] = {
            "type": "longrope",
            **dict(zip(("short_factor", "long_factor"), factors, strict=True)),
        }
    return told


_MIXTRAL_FAMILY: Final = GgufFamily("MixtralForCausalLM", "mixtral", _mixtral, _MIXTRAL, True)
FAMILIES: Final[Mapping[str, GgufFamily]] = {
    "llama": GgufFamily("LlamaForCausalLM", "llama", _llama, _PARTS, paired=True),
    "qwen2": GgufFamily("Qwen2ForCausalLM", "qwen2", _windowed, _PARTS),
    "qwen3": GgufFamily("Qwen3ForCausalLM", "qwen3", _windowed, _PARTS),
    "qwen3moe": GgufFamily("Qwen3MoeForCausalLM", "qwen3_moe", _qwen_experts, _QWEN_EXPERTS),
    "gemma2": GgufFamily("Gemma2ForCausalLM", "gemma2", _gemma2, _GEMMA, norm_offset=1.0),
    "gemma3": GgufFamily("Gemma3ForCausalLM", "gemma3_text", _gemma3, _GEMMA, norm_offset=1.0),
    "phi3": GgufFamily("Phi3ForCausalLM", "phi3", _phi3, _PHI),
}
"""By `general.architecture`. Files of `llama` may also be of Mistral or Mixtral."""

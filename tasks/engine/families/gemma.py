"""Fields of `config.json` that are common to the Gemma families."""

from dataclasses import replace
from typing import Final

from .architecture import Architecture, Names
from .dense import Defaults, dense
from .reader import JsonReader, unsupported

GEMMA: Final = Defaults(
    head_dim=256,
    heads=8,
    kv_heads=4,
    tied=True,
    act_key="hidden_activation",
    act="gelu_pytorch_tanh",
)
_NAMES: Final = Names(
    mixed_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    output_norm="post_feedforward_layernorm",
)


def gemma(reader: JsonReader, family: str) -> Architecture:
    """Return the architecture of a Gemma without its windows. Raises EngineError."""
    if reader.flag("use_bidirectional_attention", False):
        raise unsupported("attention to later positions")
    arch = dense(reader, family, GEMMA)
    bias = reader.flag("attention_bias", False)
    return replace(
        arch,
        names=_NAMES,
        qkv_bias=bias,
        output_bias=bias,
        activation="gelu_tanh",
        norm_offset=1.0,
        wide_norms=True,
        embedding_scale=arch.hidden**0.5,
        attention_scale=reader.number("query_pre_attn_scalar", 1e-6, 1e6, default=256) ** -0.5,
    )


def window_of(reader: JsonReader) -> int:
    """Return the sliding window in positions. Raises EngineError."""
    return reader.integer("sliding_window", 1, 1 << 30, default=4096, null=0)

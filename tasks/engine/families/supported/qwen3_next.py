"""Qwen 3 Next: three of four layers are recurrent, the others have gated attention."""

from dataclasses import replace

from ..architecture import Architecture, ExpertNames, Recurrent
from ..dense import FULL, Defaults, dense
from ..experts import read_experts
from ..family import Family
from ..qwen import with_sparse_layers
from ..reader import JsonReader, unsupported

_RECURRENT = "linear_attention"
_DEFAULTS = Defaults(head_dim=256, partial=True)


def _read(reader: JsonReader) -> Architecture:
    experts = read_experts(reader, "moe_intermediate_size", active=10, names=ExpertNames())
    experts = replace(
        experts,
        normed=reader.flag("norm_topk_prob", True),
        shared=reader.integer("shared_expert_intermediate_size", 1, 1 << 20, default=512),
    )
    bias = reader.flag("attention_bias", False)
    usual = {"partial_rotary_factor": 0.25} | dict(reader.values)
    arch = with_sparse_layers(dense(JsonReader(usual), "qwen3_next", _DEFAULTS), reader, experts)
    recurrent, every = _recurrent(reader), _recurrent_layers(reader, arch.layers)
    kinds = zip(arch.kinds, every, strict=True)
    return replace(
        arch,
        kinds=tuple(replace(kind, recurrent=recurrent if has else None) for kind, has in kinds),
        qk_norm=True,
        qkv_bias=bias,
        output_bias=bias,
        gated_attention=True,
        norm_offset=1.0,
        wide_norms=True,
    )


def _recurrent(reader: JsonReader) -> Recurrent:
    found = Recurrent(
        reader.integer("linear_num_key_heads", 1, 1 << 10, default=16),
        reader.integer("linear_num_value_heads", 1, 1 << 10, default=32),
        reader.integer("linear_key_head_dim", 1, 1 << 10, default=128),
        reader.integer("linear_value_head_dim", 1, 1 << 10, default=128),
        reader.integer("linear_conv_kernel_dim", 2, 64, default=4),
    )
    if found.value_heads % found.key_heads:
        reader.refuse("linear_num_value_heads", "is no multiple of `linear_num_key_heads`")
    return found


def _recurrent_layers(reader: JsonReader, layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it is recurrent."""
    every = reader.integer("full_attention_interval", 1, 1 << 10, default=4)
    kinds = reader.strings("layer_types", layers)
    if kinds is None:
        return tuple((layer + 1) % every != 0 for layer in range(layers))
    for kind in kinds:
        if kind not in (_RECURRENT, FULL):
            raise unsupported(f"layers of type `{kind[:80]}`")
    return tuple(kind == _RECURRENT for kind in kinds)


FAMILY = Family("qwen3_next", "Qwen3NextForCausalLM", _read)

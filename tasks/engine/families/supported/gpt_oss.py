"""gpt-oss: experts in MXFP4, attention with sinks, and a window in every other layer."""

from dataclasses import replace
from typing import Final

from ..architecture import Architecture, ExpertNames
from ..dense import Defaults, dense, sliding_layers, with_windows
from ..experts import read_experts
from ..family import Family
from ..reader import JsonReader, quant_method
from ..shapes import MXFP4_GROUP

_DEFAULTS: Final = Defaults(head_dim=64, eps=1e-5, theta=150_000.0)
_METHOD: Final = "mxfp4"
_ROPE: Final = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _read(reader: JsonReader) -> Architecture:
    names = ExpertNames(router="mlp.router")
    experts = replace(
        read_experts(reader, "intermediate_size", active=4, names=names),
        stacked=True,
        mxfp4=quant_method(reader.values) == _METHOD,
        choose_first=True,
        swiglu_limit=reader.number("swiglu_limit", 1e-3, 1e6, default=7.0),
        swiglu_alpha=reader.number("swiglu_alpha", 1e-3, 1e3, default=1.702),
    )
    bias = reader.flag("attention_bias", True)
    arch = dense(_with_rope(reader), "gpt_oss", _DEFAULTS)
    if experts.mxfp4 and (arch.hidden % MXFP4_GROUP or experts.wide % MXFP4_GROUP):
        reader.refuse("hidden_size", f"or `intermediate_size` is no multiple of {MXFP4_GROUP}")
    arch = replace(
        arch,
        kinds=tuple(replace(kind, experts=experts) for kind in arch.kinds),
        qkv_bias=bias,
        output_bias=bias,
        wide_norms=True,
        sinks=True,
    )
    window = reader.integer("sliding_window", 1, 1 << 30, default=128, null=0)
    slides = sliding_layers(reader, [layer % 2 == 0 for layer in range(arch.layers)])
    return with_windows(arch, window, slides)


def _with_rope(reader: JsonReader) -> JsonReader:
    """Return a reader of the config with the family's rotary embedding, unless it has its own."""
    values = reader.values
    if values.get("rope_scaling") or values.get("rope_parameters"):
        return reader
    return JsonReader({**values, "rope_parameters": _ROPE})


FAMILY = Family("gpt_oss", "GptOssForCausalLM", _read, frozenset({_METHOD}))

"""Qwen 3 with experts."""

from dataclasses import replace

from ..architecture import Architecture, ExpertNames
from ..dense import Defaults, dense, with_windows
from ..experts import read_experts
from ..family import Family
from ..qwen import with_sparse_layers
from ..reader import JsonReader


def _read(reader: JsonReader) -> Architecture:
    experts = read_experts(reader, "moe_intermediate_size", active=8, names=ExpertNames())
    experts = replace(experts, normed=reader.flag("norm_topk_prob", False))
    bias = reader.flag("attention_bias", False)
    arch = with_sparse_layers(dense(reader, "qwen3_moe", Defaults()), reader, experts)
    arch = replace(arch, qk_norm=True, qkv_bias=bias, output_bias=bias)
    if not reader.flag("use_sliding_window", False):
        return arch
    window = reader.integer("sliding_window", 1, 1 << 30, default=4096, null=0)
    return with_windows(arch, window, (True,) * arch.layers)


FAMILY = Family("qwen3_moe", "Qwen3MoeForCausalLM", _read)

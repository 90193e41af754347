"""Mixtral: a Mistral whose feed-forward parts are experts."""

from dataclasses import replace
from typing import Final

from ..architecture import Architecture, ExpertNames
from ..dense import Defaults, dense, with_windows
from ..experts import read_experts
from ..family import Family
from ..reader import JsonReader

_NAMES: Final = ExpertNames("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2")


def _read(reader: JsonReader) -> Architecture:
    experts = read_experts(reader, "intermediate_size", active=2, names=_NAMES)
    experts = replace(experts, wide_weights=True)
    arch = dense(reader, "mixtral", Defaults(eps=1e-5, theta=1e6))
    arch = replace(arch, kinds=tuple(replace(kind, experts=experts) for kind in arch.kinds))
    window = reader.integer("sliding_window", 1, 1 << 30, default=0)
    return with_windows(arch, window, (True,) * arch.layers)


FAMILY = Family("mixtral", "MixtralForCausalLM", _read)

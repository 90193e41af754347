"""Phi 3, 3.5 and 4: a Llama whose projections are stored as one tensor, and partly turned heads.

Within the context for which the model was trained, LongRoPE divides the frequencies by its short
factors. Beyond it, all positions would need its long factors, also those whose keys are cached.
Therefore the context ends there.
"""

from dataclasses import replace

from ..architecture import Architecture, Names
from ..dense import Defaults, dense, with_windows
from ..family import Family
from ..reader import JsonReader
from ..rope import original_context

_NAMES = Names(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))


def _read(reader: JsonReader) -> Architecture:
    arch = dense(reader, "phi3", Defaults(eps=1e-5, partial=True))
    if arch.kinds[0].rope.kind == "longrope":
        arch = replace(arch, context=min(arch.context, original_context(reader, arch.context)))
    window = reader.integer("sliding_window", 1, 1 << 30, default=0)
    return replace(with_windows(arch, window, (True,) * arch.layers), names=_NAMES)


FAMILY = Family("phi3", "Phi3ForCausalLM", _read)

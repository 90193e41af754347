"""Gemma 3 (text): most layers have a window and a rotary embedding of their own."""

from collections.abc import Mapping
from dataclasses import replace

from ..architecture import Architecture, Rope
from ..dense import FULL, SLIDING, sliding_layers, with_windows
from ..family import Family
from ..gemma import gemma, window_of
from ..reader import JsonReader
from ..rope import read_rope


def _read(reader: JsonReader) -> Architecture:
    without = JsonReader({**reader.values, "rope_parameters": None, "rope_scaling": None})
    arch = gemma(without, "gemma3")
    every = reader.integer("sliding_window_pattern", 1, 1 << 10, default=6)
    slides = sliding_layers(reader, [(layer + 1) % every != 0 for layer in range(arch.layers)])
    near, far = _ropes(reader, arch.context)
    kinds = zip(arch.kinds, slides, strict=True)
    arch = replace(
        arch,
        qk_norm=True,
        kinds=tuple(replace(kind, rope=near if has else far) for kind, has in kinds),
        logit_cap=reader.number("final_logit_softcapping", 1e-3, 1e6, default=0.0),
    )
    return with_windows(arch, window_of(reader), slides)


def _ropes(reader: JsonReader, context: int) -> tuple[Rope, Rope]:
    """Return the rotary embeddings of the layers with a window and of the others."""
    each = reader.values.get("rope_parameters")
    if each is None:  # as configs were written until 2025
        theta = {"rope_theta": reader.values.get("rope_local_base_freq")}
        scaled = {key: reader.values.get(key) for key in ("rope_theta", "rope_scaling")}
        near, far = JsonReader(theta), JsonReader(scaled)
    elif isinstance(each, Mapping):
        near, far = (JsonReader({"rope_parameters": each.get(kind)}) for kind in (SLIDING, FULL))
    else:
        reader.refuse("rope_parameters", "is not an object")
    return read_rope(near, context, theta=1e4), read_rope(far, context, theta=1e6)


FAMILY = Family("gemma3_text", "Gemma3ForCausalLM", _read)

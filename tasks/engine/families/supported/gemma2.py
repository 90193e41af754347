"""Gemma 2: every other layer has a window, and attention scores and logits are capped."""

from dataclasses import replace

from ..architecture import Architecture
from ..dense import sliding_layers, with_windows
from ..family import Family
from ..gemma import gemma, window_of
from ..reader import JsonReader


def _read(reader: JsonReader) -> Architecture:
    arch = gemma(reader, "gemma2")
    slides = sliding_layers(reader, [layer % 2 == 0 for layer in range(arch.layers)])
    return replace(
        with_windows(arch, window_of(reader), slides),
        attention_cap=reader.number("attn_logit_softcapping", 1e-3, 1e6, default=50.0, null=0.0),
        logit_cap=reader.number("final_logit_softcapping", 1e-3, 1e6, default=30.0, null=0.0),
    )


FAMILY = Family("gemma2", "Gemma2ForCausalLM", _read)

"""Mistral: a Llama whose layers may have a sliding window."""

from ..architecture import Architecture
from ..dense import dense, with_windows
from ..family import Family
from ..reader import JsonReader


def _read(reader: JsonReader) -> Architecture:
    window = reader.integer("sliding_window", 1, 1 << 30, default=4096, null=0)
    arch = dense(reader, "mistral")
    return with_windows(arch, window, (True,) * arch.layers)


FAMILY = Family("mistral", "MistralForCausalLM", _read)

"""Qwen 2 and 2.5: a Llama with biases of queries, keys and values."""

from dataclasses import replace

from ..architecture import Architecture
from ..dense import dense
from ..family import Family
from ..qwen import with_late_windows
from ..reader import JsonReader


def _read(reader: JsonReader) -> Architecture:
    return replace(with_late_windows(dense(reader, "qwen2"), reader), qkv_bias=True)


FAMILY = Family("qwen2", "Qwen2ForCausalLM", _read)

"""Qwen 3: a Llama with norms of queries and keys."""

from dataclasses import replace

from ..architecture import Architecture
from ..dense import Defaults, dense
from ..family import Family
from ..qwen import with_late_windows
from ..reader import JsonReader


def _read(reader: JsonReader) -> Architecture:
    bias = reader.flag("attention_bias", False)
    arch = with_late_windows(dense(reader, "qwen3", Defaults(head_dim=128)), reader)
    return replace(arch, qk_norm=True, qkv_bias=bias, output_bias=bias)


FAMILY = Family("qwen3", "Qwen3ForCausalLM", _read)

"""Llama 2 and 3, and the many models of their shape."""

from dataclasses import replace

from ..architecture import Architecture
from ..dense import dense
from ..family import Family
from ..reader import JsonReader


def _read(reader: JsonReader) -> Architecture:
    bias = reader.flag("attention_bias", False)
    return replace(
        dense(reader, "llama"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=reader.flag("mlp_bias", False),
    )


FAMILY = Family("llama", "LlamaForCausalLM", _read)

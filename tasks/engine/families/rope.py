"""Reads the rotary embedding of a `config.json`."""

import math
from collections.abc import Mapping

from .architecture import Rope
from .reader import Reader, unsupported

_ORIGINAL = "original_max_position_embeddings"


def read_rope(config: Reader, context: int) -> Rope:
    """Parse `rope_theta` with `rope_scaling`, or the newer `rope_parameters`.

    `context` is in tokens. Raises EngineError.
    """
    scaling = config.values.get("rope_scaling") or config.values.get("rope_parameters") or {}
    if not isinstance(scaling, Mapping):
        config.refuse("rope_scaling", "is not an object")
    # Values inside the object have priority over those next to it, as in transformers.
    reader = Reader({"rope_theta": config.values.get("rope_theta"), **scaling}, "rotary parameter")
    theta = reader.number("rope_theta", 1.0001, 1e15, default=1e4)
    partial = Reader({**config.values, **scaling}).number("partial_rotary_factor", 0, 1, default=1)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if partial != 1.0:
        raise unsupported("partial rotary embeddings")
    if kind in ("default", "dynamic"):  # `dynamic` differs only beyond the context
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", reader.number("factor", 1e-3, 1e6))
    original = _original_context(config, reader, context)
    if kind == "llama3":
        return _llama3(reader, theta, original)
    if kind == "yarn":
        return _yarn(reader, theta, original, context)
    raise unsupported(f"rotary embeddings of type `{str(kind)[:80]}`")


def _original_context(config: Reader, reader: Reader, context: int) -> int:
    """Return the context in tokens for which the model was trained before it was extended."""
    inside = reader.integer(_ORIGINAL, 1, 1 << 24, default=context)
    return config.integer(_ORIGINAL, 1, 1 << 24, default=inside)


def _llama3(reader: Reader, theta: float, original: int) -> Rope:
    low = reader.number("low_freq_factor", 1e-6, 1e6)
    high = reader.number("high_freq_factor", 1e-6, 1e6)
    if not low < high:
        reader.refuse("low_freq_factor", "is not below `high_freq_factor`")
    return Rope(
        theta,
        "llama3",
        reader.number("factor", 1e-3, 1e6),
        original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(reader: Reader, theta: float, original: int, context: int) -> Rope:
    factor = reader.number("factor", 1e-3, 1e6, default=context / original)
    mscale = reader.number("mscale", 0, 1e3, default=0.0)
    mscale_all = reader.number("mscale_all_dim", 0, 1e3, default=0.0)
    attention = _yarn_scale(factor, 1.0)
    if mscale and mscale_all:
        attention = _yarn_scale(factor, mscale) / _yarn_scale(factor, mscale_all)
    return Rope(
        theta,
        "yarn",
        factor,
        original,
        beta_fast=reader.number("beta_fast", 0, 1e6, default=32.0) or 32.0,
        beta_slow=reader.number("beta_slow", 0, 1e6, default=1.0) or 1.0,
        truncate=reader.flag("truncate", True),
        attention_factor=reader.number("attention_factor", 1e-6, 1e6, default=attention),
    )


def _yarn_scale(factor: float, mscale: float) -> float:
    """Return YaRN's factor for attention scores (Peng 2023)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

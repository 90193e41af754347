"""Reads the rotary embedding of a `config.json`."""

import math
from collections.abc import Mapping

from .architecture import Rope
from .reader import JsonReader, unsupported

_ORIGINAL = "original_max_position_embeddings"


def read_rope(config: JsonReader, context: int, *, theta: float = 1e4, turned: int = 0) -> Rope:
    """Parse `rope_theta` with `rope_scaling`, or the newer `rope_parameters`.

    `context` is in tokens, `theta` is the default, and `turned` is the number of values of a head
    that are turned; only LongRoPE needs it. Raises EngineError.
    """
    scaling = rope_values(config)
    # Values inside the object have priority over those next to it, as in transformers.
    reader = JsonReader(
        {"rope_theta": config.values.get("rope_theta"), **scaling}, "rotary parameter"
    )
    theta = reader.number("rope_theta", 1.0001, 1e15, default=theta)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("default", "dynamic"):  # `dynamic` differs only beyond the context
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", reader.number("factor", 1e-3, 1e6))
    original = original_context(config, context)
    if kind == "llama3":
        return _llama3(reader, theta, original)
    if kind == "yarn":
        return _yarn(reader, theta, original, context)
    if kind in ("longrope", "su") and turned:
        return _longrope(reader, theta, original, context, turned)
    raise unsupported(f"rotary embeddings of type `{str(kind)[:80]}`")


def rope_values(config: JsonReader) -> Mapping[str, object]:
    """Return the object with the rotary parameters, which may be empty. Raises EngineError."""
    scaling = config.values.get("rope_scaling") or config.values.get("rope_parameters") or {}
    if not isinstance(scaling, Mapping):
        config.refuse("rope_scaling", "is not an object")
    return scaling


def rotated(config: JsonReader, head_dim: int) -> int:
    """Return how many values of each head are turned. Raises EngineError."""
    reader = JsonReader({**config.values, **rope_values(config)})
    part = reader.number("partial_rotary_factor", 0, 1, default=1.0)
    if part == 1.0:
        return head_dim
    found = int(head_dim * part)
    if found < 2 or found % 2:
        raise unsupported(f"a rotary embedding of {found} values")
    return found


def original_context(config: JsonReader, context: int) -> int:
    """Return the context in tokens for which the model was trained before it was extended."""
    reader = JsonReader(rope_values(config), "rotary parameter")
    inside = reader.integer(_ORIGINAL, 1, 1 << 24, default=context)
    return config.integer(_ORIGINAL, 1, 1 << 24, default=inside)


def _llama3(reader: JsonReader, theta: float, original: int) -> Rope:
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


def _yarn(reader: JsonReader, theta: float, original: int, context: int) -> Rope:
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
        beta_fast=_rotations(reader, "beta_fast", 32.0),
        beta_slow=_rotations(reader, "beta_slow", 1.0),
        truncate=reader.flag("truncate", True),
        attention_factor=reader.number("attention_factor", 1e-6, 1e6, default=attention),
    )


def _rotations(reader: JsonReader, key: str, default: float) -> float:
    """Return a number of rotations, for which 0 stands for the default.

    Smaller ones than 1e-6 would lead to infinite frequencies.
    """
    found = reader.number(key, 0, 1e6, default=default) or default
    if found < 1e-6:
        reader.refuse(key, "is neither 0 nor a number of 1e-06 to 1e+06")
    return found


def _longrope(reader: JsonReader, theta: float, original: int, context: int, turned: int) -> Rope:
    factor = reader.number("factor", 1e-3, 1e6, default=context / original)
    scale = 1.0
    if factor > 1 and original > 1:
        scale = math.sqrt(1 + math.log(factor) / math.log(original))
    return Rope(
        theta,
        "longrope",
        attention_factor=reader.number("attention_factor", 1e-6, 1e6, default=scale),
        factors=reader.numbers("short_factor", turned // 2, 1e-3, 1e6),
    )


def _yarn_scale(factor: float, mscale: float) -> float:
    """Return YaRN's factor for attention scores (Peng 2023)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

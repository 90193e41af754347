"""Checks a model's `config.json` and returns its `Architecture`.

A config may come from a hostile peer. Therefore the type and bounds of every value are checked, and
a model that this engine cannot compute exactly is refused. Names and defaults are those of the
configuration classes of the four families in transformers. Does not import torch, because the
daemon uses this module too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from .defaults import SHARED_HEAD_BYTES
from .errors import EngineError
from .interface import DType, Parts
from .layouts import FLOATS, Layouts, layouts_of

Family = Literal["llama", "qwen2", "qwen3", "mistral"]
RopeKind = Literal["default", "linear", "llama3", "yarn"]
Config = Mapping[str, object]

SUPPORTED: Mapping[str, Family] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MistralForCausalLM": "mistral",
}
DTYPE_BYTES: Mapping[DType, int] = {"float32": 4, "bfloat16": 2}
EMBEDDING = "model.embed_tokens.weight"
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding with frequencies `theta ** (-2i/d)`, which `kind` rescales.

    `linear` divides all frequencies by `factor` (position interpolation, Chen 2023). `llama3`
    divides the frequencies of long wavelengths and interpolates those of middle ones (Llama 3.1).
    `yarn` interpolates by the number of rotations within the original context, and multiplies
    cosines and sines by `attention_factor` (Peng 2023).
    """

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_context: int = 0  # in tokens; only for llama3 and yarn
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Architecture:
    """Parameters of a model's forward pass. Sizes are in elements, `context` in tokens."""

    family: Family
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    eps: float
    rope: Rope
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied: bool
    windows: tuple[int, ...]  # by layer: positions a token attends to, with its own; 0: all
    layouts: Layouts = FLOATS  # how the weights are stored


def architecture(config: Config) -> Architecture:
    """Check a config.json and return its architecture.

    Raises EngineError `bad-config` if a value is invalid, and `unsupported-architecture` if this
    engine cannot compute the model.
    """
    family = _family(config)
    reader = _Reader(config)
    reader.refuse_unless("hidden_act", "silu")
    hidden = reader.integer("hidden_size", 1, 1 << 16)
    heads = reader.integer("num_attention_heads", 1, 1 << 12)
    layers = reader.integer("num_hidden_layers", 1, 1 << 10)
    context = reader.integer("max_position_embeddings", 1, 1 << 24)
    bias = family != "mistral" and reader.flag("attention_bias", False)
    checked = Architecture(
        family=family,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=reader.integer("num_key_value_heads", 1, 1 << 12, default=heads),
        head_dim=reader.integer("head_dim", 2, 1 << 12, default=_head_dim(family, hidden, heads)),
        intermediate=reader.integer("intermediate_size", 1, 1 << 20),
        vocab=reader.integer("vocab_size", 1, 1 << 22),
        context=context,
        eps=reader.number("rms_norm_eps", 1e-12, 1.0, default=1e-6),
        rope=_rope(config, context),
        qkv_bias=family == "qwen2" or bias,
        output_bias=family != "qwen2" and bias,
        mlp_bias=family == "llama" and reader.flag("mlp_bias", False),
        qk_norm=family == "qwen3",
        tied=reader.flag("tie_word_embeddings", False),
        windows=_windows(reader, family, layers, context),
        layouts=layouts_of(config),
    )
    _check_heads(checked)
    return checked


def _family(config: Config) -> Family:
    """Return the family of the model. Raises EngineError if the config names none or an unsupported
    one."""
    names = config.get("architectures")
    if names is None and isinstance(config.get("model_type"), str):
        named = [value for value in SUPPORTED.values() if value == config["model_type"]]
        if named:
            return named[0]
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise EngineError("bad-config", "config.json names no architecture (`architectures`)")
    if names[0] not in SUPPORTED:
        _unsupported(f"`{names[0][:80]}`")
    return SUPPORTED[names[0]]


def _unsupported(what: str) -> NoReturn:
    raise EngineError(
        "unsupported-architecture",
        f"this engine cannot compute {what}",
        hint=f"supported are {', '.join(SUPPORTED)} with silu",
    )


def _head_dim(family: Family, hidden: int, heads: int) -> int:
    return 128 if family == "qwen3" else hidden // heads


def _check_heads(arch: Architecture) -> None:
    if arch.heads % arch.kv_heads:
        raise EngineError(
            "bad-config",
            f"{arch.heads} attention heads cannot share {arch.kv_heads} key-value heads",
        )
    if arch.head_dim % 2:
        raise EngineError("bad-config", f"head_dim {arch.head_dim} is odd, rotary needs pairs")


def _windows(reader: "_Reader", family: Family, layers: int, context: int) -> tuple[int, ...]:
    """Return the sliding window of each layer in positions. 0 means the whole context."""
    window = 0
    if family == "mistral" or (family != "llama" and reader.flag("use_sliding_window", False)):
        window = reader.integer("sliding_window", 1, 1 << 30, default=4096, null=0)
    if not 0 < window < context:
        return (0,) * layers
    if family == "mistral":
        return (window,) * layers
    first = reader.integer("max_window_layers", 0, 1 << 10, default=28)
    kinds = reader.strings("layer_types", layers) or tuple(
        _SLIDING if layer >= first else _FULL for layer in range(layers)
    )
    for kind in kinds:
        if kind not in (_SLIDING, _FULL):
            _unsupported(f"layers of type `{kind[:80]}`")
    return tuple(window if kind == _SLIDING else 0 for kind in kinds)


def _rope(config: Config, context: int) -> Rope:
    """Parse `rope_theta` with `rope_scaling`, or the newer `rope_parameters`."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(scaling, Mapping):
        raise EngineError("bad-config", "the rotary parameters in config.json are not an object")
    # Values inside the object have priority over those next to it, as in transformers.
    reader = _Reader({"rope_theta": config.get("rope_theta"), **scaling}, "rotary parameter")
    theta = reader.number("rope_theta", 1.0001, 1e15, default=1e4)
    partial = _Reader({**config, **scaling}).number("partial_rotary_factor", 0, 1, default=1.0)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if partial != 1.0:
        _unsupported("partial rotary embeddings")
    if kind in ("default", "dynamic"):  # `dynamic` differs only beyond the context
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", reader.number("factor", 1e-3, 1e6))
    original = _original_context(config, reader, context)
    if kind == "llama3":
        return _llama3(reader, theta, original)
    if kind == "yarn":
        return _yarn(reader, theta, original, context)
    _unsupported(f"rotary embeddings of type `{str(kind)[:80]}`")


def _original_context(config: Config, reader: "_Reader", context: int) -> int:
    """Return the context in tokens for which the model was trained before it was extended."""
    key = "original_max_position_embeddings"
    inside = reader.integer(key, 1, 1 << 24, default=context)
    return _Reader(config).integer(key, 1, 1 << 24, default=inside)


def _llama3(reader: "_Reader", theta: float, original: int) -> Rope:
    low = reader.number("low_freq_factor", 1e-6, 1e6)
    high = reader.number("high_freq_factor", 1e-6, 1e6)
    if not low < high:
        raise EngineError("bad-config", "`low_freq_factor` must be below `high_freq_factor`")
    return Rope(
        theta,
        "llama3",
        reader.number("factor", 1e-3, 1e6),
        original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(reader: "_Reader", theta: float, original: int, context: int) -> Rope:
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


class _Reader:
    """Reader of a JSON object that checks the type and bounds of each value.

    If a key is absent or null, its default is returned. Any method raises EngineError if a value is
    invalid, or if a key without a default is absent.
    """

    def __init__(self, values: Mapping[str, object], what: str = "config.json's") -> None:
        self._values = values
        self._what = what

    def integer(
        self, key: str, low: int, high: int, *, default: int | None = None, null: int | None = None
    ) -> int:
        """Return an integer. `null` is the result for an explicit null, if that differs from
        absence."""
        value = self._values.get(key)
        if value is None:
            found = null if null is not None and key in self._values else default
            if found is None:
                self._bad(key, "is missing")
            return found
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self._bad(key, f"is not an integer of {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, *, default: float | None = None) -> float:
        value = self._values.get(key)
        if value is None:
            if default is None:
                self._bad(key, "is missing")
            return default
        # The bounds are checked before float(), which would overflow on a huge JSON integer.
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not low <= value <= high
        ):
            self._bad(key, f"is not a number of {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self._bad(key, "is not true or false")
        return value

    def strings(self, key: str, size: int) -> tuple[str, ...] | None:
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != size:
            self._bad(key, f"is not a list of {size} words")
        if not all(isinstance(item, str) for item in value):
            self._bad(key, f"is not a list of {size} words")
        return tuple(value)

    def refuse_unless(self, key: str, only: str) -> None:
        """Raise EngineError if the key is present and has another value than `only`."""
        value = self._values.get(key)
        if value is not None and value != only:
            _unsupported(f"`{key}` {str(value)[:80]!r}")

    def _bad(self, key: str, problem: str) -> NoReturn:
        raise EngineError(
            "bad-config",
            f"{self._what} `{key}` {problem}",
            hint="use the model's own config.json, as it was published",
        )


def check_parts(arch: Architecture, parts: Parts) -> None:
    """Raise EngineError `bad-config` unless the model has the layers of this shard."""
    if not 0 <= parts.start <= parts.stop <= arch.layers:
        raise EngineError(
            "bad-config",
            f"layers {parts.start}:{parts.stop} do not lie within the model's {arch.layers}",
        )


def kv_token_bytes(arch: Architecture, start: int, stop: int, dtype: DType) -> int:
    """Return the bytes of one token's keys and values in layers start:stop."""
    return 2 * (stop - start) * arch.kv_heads * arch.head_dim * DTYPE_BYTES[dtype]


def tensor_shapes(arch: Architecture, parts: Parts) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter that a shard needs, by its Hugging Face name.

    If the head is tied to the embedding, both are one parameter under the embedding's name.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    if parts.embedding or (parts.head and arch.tied):
        shapes[EMBEDDING] = (arch.vocab, arch.hidden)
    for layer in range(parts.start, parts.stop):
        shapes |= _layer_shapes(arch, f"model.layers.{layer}.")
    if parts.head:
        shapes["model.norm.weight"] = (arch.hidden,)
        if not arch.tied:
            shapes["lm_head.weight"] = (arch.vocab, arch.hidden)
    return shapes


def _layer_shapes(arch: Architecture, prefix: str) -> dict[str, tuple[int, ...]]:
    queries, keys = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, rows: int, columns: int, bias: bool) -> None:
        shapes[f"{prefix}{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{prefix}{name}.bias"] = (rows,)

    for name, rows in (("q", queries), ("k", keys), ("v", keys)):
        linear(f"self_attn.{name}_proj", rows, arch.hidden, arch.qkv_bias)
    linear("self_attn.o_proj", arch.hidden, queries, arch.output_bias)
    for name in ("gate", "up"):
        linear(f"mlp.{name}_proj", arch.intermediate, arch.hidden, arch.mlp_bias)
    linear("mlp.down_proj", arch.hidden, arch.intermediate, arch.mlp_bias)
    for name in ("input_layernorm", "post_attention_layernorm"):
        shapes[f"{prefix}{name}.weight"] = (arch.hidden,)
    if arch.qk_norm:
        for name in ("q_norm", "k_norm"):
            shapes[f"{prefix}self_attn.{name}.weight"] = (arch.head_dim,)
    return shapes


def stored_tensors(arch: Architecture, parts: Parts) -> dict[str, tuple[str | None, tuple[int, ...]]]:
    """Return the tensors that store a shard's parameters, by role: dtype and shape.

    A quantised weight has several (docs/spec/quantised.md). The dtype None means any float dtype.
    """
    return arch.layouts.stored(tensor_shapes(arch, parts))


def weight_bytes(arch: Architecture, parts: Parts, dtype: DType) -> int:
    """Return the most bytes that a shard's loaded weights may take.

    A table that embedding and head share (tied) counts once. A small one in bfloat16 counts twice,
    because `llama.py` may store it in two layouts (docs/adr/0007). Quantised weights are loaded as
    they are stored.
    """
    size = 0
    for role, shape in tensor_shapes(arch, parts).items():
        layout = arch.layouts.of(role, shape)
        size += layout.bytes(shape) if layout else DTYPE_BYTES[dtype] * math.prod(shape)
    both = arch.tied and parts.embedding and parts.head and dtype == "bfloat16"
    table = DTYPE_BYTES[dtype] * arch.vocab * arch.hidden
    twice = both and arch.layouts.of(EMBEDDING, (arch.vocab, arch.hidden)) is None
    return size + table if twice and table < SHARED_HEAD_BYTES else size


def check_model(config: Mapping[str, object]) -> Callable[[Mapping[str, Sequence[int]]], None]:
    """Check a model before its weights are read.

    The config is checked now. The returned function checks the shapes of the tensors, by parameter
    name. Both raise EngineError if the model is invalid or unsupported.
    """
    arch = architecture(config)

    def check_shapes(shapes: Mapping[str, Sequence[int]]) -> None:
        for role, (dtype, shape) in stored_tensors(arch, Parts(True, 0, arch.layers, True)).items():
            if role in shapes and tuple(shapes[role]) != shape:
                raise EngineError(
                    "bad-tensor",
                    f"`{role}` has the shape {list(shapes[role])}, "
                    f"config.json makes it {list(shape)}",
                    hint="the folder's config.json belongs to another model: download it again",
                )
            if dtype is not None and role not in shapes:
                raise EngineError(
                    "missing-tensor",
                    f"config.json says that a weight is quantised, but there is no `{role}`",
                    hint="download the folder again, or quantise the model again",
                )

    return check_shapes

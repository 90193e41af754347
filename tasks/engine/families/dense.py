"""Fields of `config.json` that are common to dense decoders."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .architecture import Architecture, LayerKind
from .reader import JsonReader, unsupported
from .rope import read_rope, rotated

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class Defaults:
    """Values of keys that a config leaves out, where a family differs from Llama."""

    head_dim: int = 0  # 0: hidden / heads
    kv_heads: int = 0  # 0: all heads
    heads: int | None = None
    eps: float = 1e-6
    theta: float = 1e4
    tied: bool = False
    act_key: str = "hidden_act"
    act: str = "silu"  # the only value that is computed
    partial: bool = False  # whether a part of a head may be turned


def dense(reader: JsonReader, family: str, defaults: Defaults = Defaults()) -> Architecture:
    """Return the architecture of a Llama with the sizes of a config.

    A family changes what is different with `dataclasses.replace`. Raises EngineError.
    """
    reader.refuse_unless(defaults.act_key, defaults.act)
    hidden = reader.integer("hidden_size", 1, 1 << 16)
    heads = reader.integer("num_attention_heads", 1, 1 << 12, default=defaults.heads)
    layers = reader.integer("num_hidden_layers", 1, 1 << 10)
    context = reader.integer("max_position_embeddings", 1, 1 << 24)
    usual = defaults.head_dim or hidden // heads
    head_dim = reader.integer("head_dim", 2, 1 << 12, default=usual)
    shared = defaults.kv_heads or heads
    kv_heads = reader.integer("num_key_value_heads", 1, 1 << 12, default=shared)
    turned = rotated(reader, head_dim)
    if turned != head_dim and not defaults.partial:
        raise unsupported("partial rotary embeddings")
    rope = read_rope(
        reader, context, theta=defaults.theta, turned=turned if defaults.partial else 0
    )
    return Architecture(
        family=family,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotated=turned,
        intermediate=reader.integer("intermediate_size", 1, 1 << 20),
        vocab=reader.integer("vocab_size", 1, 1 << 22),
        context=context,
        eps=reader.number("rms_norm_eps", 1e-12, 1.0, default=defaults.eps),
        tied=reader.flag("tie_word_embeddings", defaults.tied),
        kinds=(LayerKind(rope),) * layers,
    )


def with_windows(arch: Architecture, window: int, slides: Sequence[bool]) -> Architecture:
    """Return the architecture with a sliding window of `window` positions in the layers that slide.

    A window of the whole context, or of 0, is none.
    """
    if not 0 < window < arch.context:
        return arch
    kinds = zip(arch.kinds, slides, strict=True)
    return replace(
        arch, kinds=tuple(replace(kind, window=window if has else 0) for kind, has in kinds)
    )


def sliding_layers(reader: JsonReader, default: Sequence[bool]) -> tuple[bool, ...]:
    """Return for each layer whether `layer_types` says that it slides.

    Raises EngineError `unsupported-architecture` if a type is unknown.
    """
    kinds = reader.strings("layer_types", len(default))
    for kind in kinds or ():
        if kind not in (SLIDING, FULL):
            raise unsupported(f"layers of type `{kind[:80]}`")
    return tuple(default) if kinds is None else tuple(kind == SLIDING for kind in kinds)

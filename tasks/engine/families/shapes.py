"""Names and shapes of the tensors of a shard, and the memory that they and its KV take."""

import math
from collections.abc import Mapping

from ..defaults import SHARED_HEAD_BYTES
from ..errors import EngineError
from ..interface import DType, Parts
from ..layouts import Shape
from .architecture import Architecture, Experts, LayerKind

DTYPE_BYTES: Mapping[DType, int] = {"float32": 4, "bfloat16": 2}

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
"""Names of the tensors outside the layers."""

Shapes = dict[str, Shape]


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


def tensor_shapes(arch: Architecture, parts: Parts) -> Shapes:
    """Return the shape of each parameter that a shard needs, by its Hugging Face name.

    If the head is tied to the embedding, both are one parameter under the embedding's name.
    """
    shapes: Shapes = {}
    if parts.embedding or (parts.head and arch.tied):
        shapes[EMBEDDING] = (arch.vocab, arch.hidden)
    for layer in range(parts.start, parts.stop):
        prefix = layer_prefix(layer)
        own = _layer_shapes(arch, arch.kinds[layer])
        shapes |= {f"{prefix}{name}": shape for name, shape in own.items()}
    if parts.head:
        shapes[NORM] = (arch.hidden,)
        if not arch.tied:
            shapes[HEAD] = (arch.vocab, arch.hidden)
    return shapes


def layer_prefix(layer: int) -> str:
    """Return the beginning of the names of a layer's tensors."""
    return f"model.layers.{layer}."


def _layer_shapes(arch: Architecture, kind: LayerKind) -> Shapes:
    names, hidden = arch.names, arch.hidden
    shapes: Shapes = {f"{name}.weight": (hidden,) for name in names.norms}
    shapes |= _attention_shapes(arch)
    return shapes | (_expert_shapes(arch, kind.experts) if kind.experts else _mlp_shapes(arch))


def _attention_shapes(arch: Architecture) -> Shapes:
    names, hidden = arch.names, arch.hidden
    queries, keys = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    shapes: Shapes = {}
    sizes = (queries, keys, keys) if len(names.qkv) == 3 else (queries + 2 * keys,)
    for name, rows in zip(names.qkv, sizes, strict=True):
        shapes |= linear_shapes(name, rows, hidden, bias=arch.qkv_bias)
    shapes |= linear_shapes(names.output, hidden, queries, bias=arch.output_bias)
    if arch.qk_norm:
        shapes |= {
            f"{name}.weight": (arch.head_dim,) for name in (names.query_norm, names.key_norm)
        }
    return shapes


def _mlp_shapes(arch: Architecture) -> Shapes:
    names, hidden, wide = arch.names, arch.hidden, arch.intermediate
    shapes: Shapes = {}
    rows = 2 * wide // len(names.gate_up)
    for name in names.gate_up:
        shapes |= linear_shapes(name, rows, hidden, bias=arch.mlp_bias)
    return shapes | linear_shapes(names.down, hidden, wide, bias=arch.mlp_bias)


def _expert_shapes(arch: Architecture, experts: Experts) -> Shapes:
    names, hidden = experts.names, arch.hidden
    shapes = linear_shapes(names.router, experts.count, hidden)
    for expert in range(experts.count):
        for name in names.gate_up(expert):
            shapes |= linear_shapes(name, experts.wide, hidden)
        shapes |= linear_shapes(names.last(expert), hidden, experts.wide)
    return shapes


def linear_shapes(name: str, rows: int, columns: int, *, bias: bool = False) -> Shapes:
    """Return the shapes of a projection's tensors."""
    shapes: Shapes = {f"{name}.weight": (rows, columns)}
    return shapes | {f"{name}.bias": (rows,)} if bias else shapes


def stored_tensors(arch: Architecture, parts: Parts) -> dict[str, tuple[str | None, Shape]]:
    """Return the tensors that store a shard's parameters, by role: dtype and shape.

    A quantised weight has several (docs/spec/quantised.md). The dtype None means any float dtype.
    """
    return arch.layouts.stored(tensor_shapes(arch, parts))


def weight_bytes(arch: Architecture, parts: Parts, dtype: DType) -> int:
    """Return the most bytes that a shard's loaded weights may take.

    A table that embedding and head share (tied) counts once. A small one in bfloat16 counts twice,
    because `compute/model.py` may store it in two layouts (docs/adr/0007). Quantised weights are
    loaded as they are stored.
    """
    size, shapes = 0, tensor_shapes(arch, parts)
    for role, shape in shapes.items():
        layout = arch.layouts.of(role, shape)
        size += layout.bytes(shape) if layout else DTYPE_BYTES[dtype] * math.prod(shape)
    if arch.wide_norms:  # their weights are stored in float32
        vectors = (shape[0] for shape in shapes.values() if len(shape) == 1)
        size += (4 - DTYPE_BYTES[dtype]) * sum(vectors)
    both = arch.tied and parts.embedding and parts.head and dtype == "bfloat16"
    twice = both and arch.layouts.of(EMBEDDING, (arch.vocab, arch.hidden)) is None
    table = DTYPE_BYTES[dtype] * arch.vocab * arch.hidden
    return size + table if twice and table < SHARED_HEAD_BYTES else size

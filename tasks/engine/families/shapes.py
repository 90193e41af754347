"""Names and shapes of the tensors of a shard, and the memory that they and its KV take."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ..defaults import (
    NO_KV_POSITIONS,
    PACKED_COLUMNS,
    PACKED_ROWS,
    PADDING_BYTES,
    SHARED_HEAD_BYTES,
    STATE_SESSIONS,
    STATE_SLOTS,
)
from ..errors import EngineError
from ..interface import DType, Parts
from ..layouts import Shape
from .architecture import Architecture, Experts, LayerKind, Recurrent

DTYPE_BYTES: Mapping[DType, int] = {"float32": 4, "bfloat16": 2}

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
"""Names of the tensors outside the layers."""

MXFP4_GROUP = 32
"""Number of values of MXFP4 that share a scale."""

Shapes = dict[str, Shape]


def check_parts(arch: Architecture, parts: Parts) -> None:
    """Raise EngineError `bad-config` unless the model has the layers of this shard."""
    if not 0 <= parts.start <= parts.stop <= arch.layers:
        raise EngineError(
            "bad-config",
            f"layers {parts.start}:{parts.stop} do not lie within the model's {arch.layers}",
        )


def kv_token_bytes(arch: Architecture, start: int, stop: int, dtype: DType) -> int:
    """Return the bytes of one token's keys and values in layers start:stop.

    Recurrent layers have none.
    """
    layers = sum(kind.recurrent is None for kind in arch.kinds[start:stop])
    return 2 * layers * arch.kv_heads * arch.head_dim * DTYPE_BYTES[dtype]


def state_bytes(arch: Architecture, start: int, stop: int, dtype: DType) -> int:
    """Return the bytes of the states of one session in the recurrent layers of start:stop."""
    return sum(
        DTYPE_BYTES[dtype] * (each.kernel - 1) * each.channels
        + 4 * each.value_heads * each.key_dim * each.value_dim
        for each in (kind.recurrent for kind in arch.kinds[start:stop])
        if each is not None
    )


class KvRoom(NamedTuple):
    """How the memory for the KV of a shard is divided."""

    positions: int
    states: int  # slots for the states of recurrent layers


def kv_room(arch: Architecture, parts: Parts, dtype: DType, memory: int) -> KvRoom:
    """Divide `memory` bytes into positions of KV and states.

    A shard with both kinds gives half to states, but not more than for all sessions that could use
    the other half. A shard without attention has as many positions as its sessions can have.
    """
    token = kv_token_bytes(arch, parts.start, parts.stop, dtype)
    state = state_bytes(arch, parts.start, parts.stop, dtype)
    if not state:
        return KvRoom(memory // token if token else NO_KV_POSITIONS, 0)
    if not token:
        states = memory // state
        return KvRoom(states // STATE_SLOTS * arch.context, states)
    states = min(memory // 2 // state, STATE_SLOTS * STATE_SESSIONS)
    return KvRoom((memory - states * state) // token, states)


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
    shapes |= _recurrent_shapes(arch, kind.recurrent) if kind.recurrent else _attention_shapes(arch)
    return shapes | (_expert_shapes(arch, kind.experts) if kind.experts else _mlp_shapes(arch))


def _attention_shapes(arch: Architecture) -> Shapes:
    names, hidden = arch.names, arch.hidden
    queries, keys = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    shapes: Shapes = {}
    first = 2 * queries if arch.gated_attention else queries
    sizes = (first, keys, keys) if len(names.qkv) == 3 else (first + 2 * keys,)
    for name, rows in zip(names.qkv, sizes, strict=True):
        shapes |= linear_shapes(name, rows, hidden, bias=arch.qkv_bias)
    shapes |= linear_shapes(names.output, hidden, queries, bias=arch.output_bias)
    if arch.sinks:
        shapes[names.sinks] = (arch.heads,)
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


def _stacked_shapes(arch: Architecture, experts: Experts) -> Shapes:
    names, hidden, wide, count = experts.names, arch.hidden, experts.wide, experts.count
    shapes = linear_shapes(names.router, count, hidden, bias=True)
    for name, inputs, outputs in (
        (f"{names.each}.{names.stacked}", hidden, 2 * wide),
        (f"{names.each}.{names.down}", wide, hidden),
    ):
        shapes[f"{name}_bias"] = (count, outputs)
        if experts.mxfp4:
            groups = inputs // MXFP4_GROUP
            shapes[f"{name}_blocks"] = (count, outputs, groups, MXFP4_GROUP // 2)
            shapes[f"{name}_scales"] = (count, outputs, groups)
        else:
            shapes[name] = (count, inputs, outputs)
    return shapes


def _expert_shapes(arch: Architecture, experts: Experts) -> Shapes:
    if experts.stacked:
        return _stacked_shapes(arch, experts)
    names, hidden = experts.names, arch.hidden
    shapes = linear_shapes(names.router, experts.count, hidden)
    for expert in range(experts.count):
        for name in names.gate_up(expert):
            shapes |= linear_shapes(name, experts.wide, hidden)
        shapes |= linear_shapes(names.last(expert), hidden, experts.wide)
    if experts.shared:
        for name in (names.gate, names.up):
            shapes |= linear_shapes(f"{names.shared}.{name}", experts.shared, hidden)
        shapes |= linear_shapes(f"{names.shared}.{names.down}", hidden, experts.shared)
        shapes |= linear_shapes(names.shared_gate, 1, hidden)
    return shapes


def _recurrent_shapes(arch: Architecture, sizes: Recurrent) -> Shapes:
    names, hidden, heads = sizes.names, arch.hidden, sizes.value_heads
    values = heads * sizes.value_dim
    return {
        f"{names.inputs}.weight": (sizes.channels + values, hidden),
        f"{names.gates}.weight": (2 * heads, hidden),
        f"{names.convolution}.weight": (sizes.channels, 1, sizes.kernel),
        names.decay: (heads,),
        names.bias: (heads,),
        f"{names.norm}.weight": (sizes.value_dim,),
        f"{names.output}.weight": (hidden, values),
    }


def linear_shapes(name: str, rows: int, columns: int, *, bias: bool = False) -> Shapes:
    """Return the shapes of a projection's tensors: `rows` outputs of `columns` inputs."""
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
    parts_of = _stored_bytes if arch.layouts.precision else _plain_bytes
    size = parts_of(arch, parts, dtype)
    both = arch.tied and parts.embedding and parts.head and dtype == "bfloat16"
    twice = both and arch.layouts.of(EMBEDDING, (arch.vocab, arch.hidden)) is None
    table = DTYPE_BYTES[dtype] * arch.vocab * arch.hidden
    size += _padding_bytes(arch, parts, dtype)
    return size + table if twice and table < SHARED_HEAD_BYTES else size


def _padding_bytes(arch: Architecture, parts: Parts, dtype: DType) -> int:
    """Return the bytes by which a shard's matrices grow when the native kernels pack them.

    They fill outputs up to PACKED_ROWS, and inputs up to PACKED_COLUMNS. Published models grow by
    less than PADDING_BYTES a layer, which do not count; a hostile one, with a hidden size of 1, by
    a factor of 64.
    """

    def grown(shapes: Shapes) -> int:
        return max(0, DTYPE_BYTES[dtype] * _padding(shapes) - PADDING_BYTES)

    kinds = Counter(arch.kinds[parts.start : parts.stop])
    layers = sum(
        count * grown(_layer_shapes(arch, _converted(kind))) for kind, count in kinds.items()
    )
    return layers + grown(tensor_shapes(arch, Parts(parts.embedding, 0, 0, parts.head)))


def _padding(shapes: Shapes) -> int:
    """Return the values by which matrices grow when they are packed."""
    found = 0
    for role, shape in shapes.items():
        if len(shape) == 2 and role.endswith(".weight"):
            count, rows, columns = 1, *shape
        elif len(shape) == 3 and not role.endswith(".weight"):  # experts x inputs x outputs
            count, columns, rows = shape
        else:
            continue
        packed = -(-rows // PACKED_ROWS) * PACKED_ROWS * -(-columns // PACKED_COLUMNS)
        found += count * (packed * PACKED_COLUMNS - rows * columns)
    return found


def _converted(kind: LayerKind) -> LayerKind:
    """Return a kind of layers as it is loaded: without MXFP4, which is converted."""
    if kind.experts is None:
        return kind
    return replace(kind, experts=replace(kind.experts, mxfp4=False))


def _stored_bytes(arch: Architecture, parts: Parts, dtype: DType) -> int:
    """Return the bytes of weights of which some are quantised."""
    size, shapes = 0, tensor_shapes(arch, parts)
    for role, shape in shapes.items():
        layout = arch.layouts.of(role, shape)
        size += layout.bytes(shape) if layout else DTYPE_BYTES[dtype] * math.prod(shape)
    return size + _wide_bytes(arch, shapes, dtype)


def _plain_bytes(arch: Architecture, parts: Parts, dtype: DType) -> int:
    """Return the bytes of weights in a dtype. A layer may have thousands, so each kind of layer is
    counted once."""
    kinds = Counter(arch.kinds[parts.start : parts.stop])
    size = sum(count * _layer_bytes(arch, kind, dtype) for kind, count in kinds.items())
    ends = tensor_shapes(arch, Parts(parts.embedding, 0, 0, parts.head))
    return size + _bytes_of(arch, ends, dtype)


def _layer_bytes(arch: Architecture, kind: LayerKind, dtype: DType) -> int:
    return _bytes_of(arch, _layer_shapes(arch, _converted(kind)), dtype)


def _bytes_of(arch: Architecture, shapes: Shapes, dtype: DType) -> int:
    size = DTYPE_BYTES[dtype] * sum(map(math.prod, shapes.values()))
    return size + _wide_bytes(arch, shapes, dtype)


def _wide_bytes(arch: Architecture, shapes: Shapes, dtype: DType) -> int:
    """Return the bytes that norms need more, because their weights are stored in float32."""
    if not arch.wide_norms:
        return 0
    return (4 - DTYPE_BYTES[dtype]) * sum(each[0] for each in shapes.values() if len(each) == 1)

"""Work of a step on a part of a model: floating point operations, and bytes read from memory."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..engine.families import DTYPE_BYTES, Architecture, LayerKind, tensor_shapes
from ..engine.families.shapes import layer_prefix
from ..engine.interface import DType, Parts
from ..engine.layouts import Shape
from .rates import Precision


@dataclass(frozen=True, slots=True)
class EqualRows:
    """Rows of equal sessions in a step: each of `sessions` has `count` rows from `position` on.

    A row attends to its own position and to those before it.
    """

    count: int
    position: int
    sessions: int = 1

    @property
    def total(self) -> int:
        """Number of rows of all the sessions."""
        return self.count * self.sessions

    def tiled(self, tile: int) -> "EqualRows":
        """Return these rows filled up to whole tiles. A row alone continues a text and needs
        none."""
        if self.count == 1 or not self.count % tile:
            return self
        return EqualRows(-(-self.count // tile) * tile, self.position, self.sessions)

    def pairs(self, window: int) -> float:
        """Return the number of pairs of a row and a position to which it attends. `window` is the
        most positions of a row; 0: all."""
        first, last = self.position + 1, self.position + self.count
        if window and last > window:
            full = min(self.count, last - window)  # rows that attend to a whole window
            rest = self.count - full
            return self.sessions * (full * window + rest * (2 * first + rest - 1) / 2)
        return self.sessions * self.count * (first + last) / 2

    def read(self, window: int) -> float:
        """Return the number of positions whose keys and values are read, all sessions together."""
        end = self.position + self.count
        return self.sessions * (min(end, window + self.count - 1) if window else end)


class AttentionWork(NamedTuple):
    """Attention of the layers with one window (in positions; 0: none) in a shard.

    `pair_flops` are for each pair of a row and a position, and `kv_bytes` for each position.
    """

    window: int
    pair_flops: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class ShardWork:
    """Work of a shard, for any step.

    A row takes `row_flops` in the layers, and `head_flops` more where a token or logits are wanted.
    A step reads `weight_bytes`, and `head_bytes` more if it computes logits. Of `expert_bytes`, the
    weights of all experts, it reads what its rows choose: each row the share `expert_share`.
    """

    precision: Precision  # of the matrix products
    layers: int
    row_flops: int
    weight_bytes: int
    expert_bytes: int
    expert_share: float
    attention: tuple[AttentionWork, ...]
    state_bytes: int  # read and written for each session, in recurrent layers
    head_flops: int  # 0: the shard has no head
    head_bytes: int
    hidden_bytes: int  # of a row that goes to the next stage

    def flops(self, rows: int, heads: int) -> float:
        """Return the operations in the matrix products of a step with `rows` rows, which computes
        `heads` logits."""
        return float(rows * self.row_flops + heads * self.head_flops)

    def bytes(self, rows: int, heads: int) -> float:
        """Return the bytes of weights that a step reads."""
        read = self.weight_bytes + (self.head_bytes if heads else 0)
        if not self.expert_bytes:
            return float(read)
        return read + self.expert_bytes * (1.0 - (1.0 - self.expert_share) ** rows)

    def pair_flops(self, rows: Sequence[EqualRows]) -> float:
        """Return the operations in the attention of a step."""
        return sum(
            kind.pair_flops * each.pairs(kind.window) for kind in self.attention for each in rows
        )

    def kv_bytes(self, rows: Sequence[EqualRows]) -> float:
        """Return the bytes of keys, values and states that a step reads and writes."""
        read = sum(
            kind.kv_bytes * each.read(kind.window) for kind in self.attention for each in rows
        )
        return read + self.state_bytes * sum(each.sessions for each in rows)


class _Layer(NamedTuple):
    """Work of one layer; the fields of `ShardWork`."""

    flops: int
    weights: int
    experts: int
    share: float
    window: int
    pair_flops: int
    kv_bytes: int
    state_bytes: int


class _Size(NamedTuple):
    """Values of tensors, and the bytes that store them."""

    values: int
    bytes: int


class ModelWork:
    """Work of a model in one dtype. Made once; shards of it are then cheap to describe."""

    def __init__(self, arch: Architecture, dtype: DType) -> None:
        """Raises EngineError `bad-config` if a weight cannot have its layout."""
        self.arch, self.dtype = arch, dtype
        self._precision = _precision(arch, dtype)
        self._layers = _layers(arch, dtype)
        head = replace(arch, tied=False) if arch.tied else arch
        size = _size(head, tensor_shapes(head, Parts(False, 0, 0, True)), dtype)
        self._head_flops, self._head_bytes = 2 * size.values, size.bytes

    def of(self, parts: Parts) -> ShardWork:
        """Return the work of a shard. The embedding costs nothing."""
        layers = self._layers[parts.start : parts.stop]
        experts = sum(layer.experts for layer in layers)
        chosen = sum(layer.experts * layer.share for layer in layers)
        return ShardWork(
            self._precision,
            len(layers),
            sum(layer.flops for layer in layers),
            sum(layer.weights for layer in layers),
            experts,
            chosen / experts if experts else 0.0,
            _attention(layers),
            sum(layer.state_bytes for layer in layers),
            self._head_flops if parts.head else 0,
            self._head_bytes if parts.head else 0,
            self.arch.hidden * DTYPE_BYTES[self.dtype],
        )


def _precision(arch: Architecture, dtype: DType) -> Precision:
    """Return the precision of most matrix products."""
    used = arch.layouts.default
    return dtype if used is None else used.precision


def _attention(layers: Sequence[_Layer]) -> tuple[AttentionWork, ...]:
    windows = sorted({layer.window for layer in layers if layer.kv_bytes})
    return tuple(
        AttentionWork(
            window,
            sum(each.pair_flops for each in layers if each.window == window),
            sum(each.kv_bytes for each in layers if each.window == window),
        )
        for window in windows
    )


def _layers(arch: Architecture, dtype: DType) -> tuple[_Layer, ...]:
    """Return the work of each layer. Layers of one kind are alike unless their layouts differ."""
    kinds = {kind: _KindShapes.of(arch, kind) for kind in dict.fromkeys(arch.kinds)}
    if arch.layouts.is_mixed:
        return tuple(
            _layer(arch, kind, kinds[kind].sizes(arch, dtype, layer), dtype)
            for layer, kind in enumerate(arch.kinds)
        )
    known = {
        kind: _layer(arch, kind, shapes.sizes(arch, dtype, 0), dtype)
        for kind, shapes in kinds.items()
    }
    return tuple(known[kind] for kind in arch.kinds)


def _layer(arch: Architecture, kind: LayerKind, sizes: tuple[_Size, _Size], dtype: DType) -> _Layer:
    common, expert = sizes
    experts = kind.experts
    count, active = (experts.count, experts.active) if experts else (0, 0)
    wide, recurrent = DTYPE_BYTES[dtype], kind.recurrent
    pair = 0 if recurrent else 4 * arch.heads * arch.head_dim
    token = 0 if recurrent else 2 * arch.kv_heads * arch.head_dim * wide
    state = rule = 0
    if recurrent:  # the delta rule reads, corrects and writes the state: about 8 flop a value
        values = recurrent.value_heads * recurrent.key_dim * recurrent.value_dim
        state, rule = 8 * values, 8 * values  # float32, read and written
    return _Layer(
        2 * (common.values + active * expert.values) + rule,
        common.bytes,
        count * expert.bytes,
        active / count if count else 0.0,
        kind.window,
        pair,
        token,
        state,
    )


class _KindShapes(NamedTuple):
    """Shapes of the tensors of a kind of layers, by role without the layer's prefix: with one
    expert, and with two, because a layer may have thousands of equal ones."""

    one: Mapping[str, Shape]
    two: Mapping[str, Shape]

    @classmethod
    def of(cls, arch: Architecture, kind: LayerKind) -> "_KindShapes":
        if kind.experts is None:
            shapes = _shapes(arch, kind)
            return cls(shapes, shapes)
        # In memory, experts are not in MXFP4.
        one, two = (
            replace(kind, experts=replace(kind.experts, count=count, mxfp4=False))
            for count in (1, 2)
        )
        return cls(_shapes(arch, one), _shapes(arch, two))

    def sizes(self, arch: Architecture, dtype: DType, layer: int) -> tuple[_Size, _Size]:
        """Return the sizes of a layer without its experts, and of one expert."""
        prefix = layer_prefix(layer)
        one = _size(arch, self.one, dtype, prefix)
        if self.one is self.two:
            return one, _Size(0, 0)
        two = _size(arch, self.two, dtype, prefix)
        expert = _Size(two.values - one.values, two.bytes - one.bytes)
        return _Size(one.values - expert.values, one.bytes - expert.bytes), expert


def _shapes(arch: Architecture, kind: LayerKind) -> dict[str, Shape]:
    """Return the shapes of a layer's tensors, by role without the layer's prefix."""
    alone = replace(arch, kinds=(kind,))
    prefix = layer_prefix(0)
    found = tensor_shapes(alone, Parts(False, 0, 1, False))
    return {role.removeprefix(prefix): shape for role, shape in found.items()}


def _size(arch: Architecture, shapes: Mapping[str, Shape], dtype: DType, prefix: str = "") -> _Size:
    values = size = 0
    for name, shape in shapes.items():
        layout, count = arch.layouts.of(prefix + name, shape), math.prod(shape)
        values += count
        size += layout.bytes(shape) if layout else DTYPE_BYTES[dtype] * count
    return _Size(values, size)

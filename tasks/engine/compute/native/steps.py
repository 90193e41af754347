"""A step through the layers of a shard in one call of the native kernels."""

import ctypes
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from ...clock import clock
from ...defaults import COLD_BYTES
from ...families import Architecture
from ...kv.blocks import BLOCK
from ...shard import StepStopped, Stop
from ..attention import AttendingPiece
from ..kv import KvMemory
from ..layers import AttentionPart, DensePart
from ..model import Layer
from ..rotary import Rotary
from .calls import pieces_of, shape_of
from .library import (
    KINDS,
    Attending,
    Kernels,
    ModelShape,
    NativeLinear,
)


class NativeSteps:
    """The layers of a shard, as the kernels compute them."""

    def __init__(
        self, kernels: Kernels, arch: Architecture, layers: Sequence[Layer], rotary: Rotary
    ) -> None:
        """`layers` are those for which `computes` is true."""
        self._kernels = kernels
        self._rotary = rotary
        self._dtype = _dtype(layers)
        self._sizes = (
            len(layers),
            arch.hidden,
            arch.heads,
            arch.kv_heads,
            arch.head_dim,
            arch.intermediate,
        )
        self._arch = arch
        self._layers = layers
        self._norms = [_norms(layer) for layer in layers]
        self._cosines = self._sines = torch.empty(0, 1)
        self._model: ModelShape | None = None
        self._single: list[ModelShape] = []  # models of one layer each, with the same pointers
        self._memory: KvMemory | None = None

    def bind(self, memory: KvMemory) -> None:
        """Use the keys and values of `memory` from now on."""
        slots, dtype = int(memory.keys.shape[2]), KINDS[memory.keys.dtype]
        model = shape_of(self._sizes, slots, dtype, self._arch.eps)
        for index, layer in enumerate(self._layers):
            pointers = model.layer[index]
            names = ("input_norm", "mlp_norm", "query_norm", "key_norm")
            for name, norm in zip(names, self._norms[index], strict=True):
                setattr(pointers, name, None if norm is None else norm.data_ptr())
            for name, linear in _products(layer).items():
                setattr(pointers, name, ctypes.pointer(linear.matrix))
            pointers.keys = memory.keys[index].data_ptr()
            pointers.values = memory.values[index].data_ptr()
            pointers.window = _attention(layer).window
        self._model, self._memory = model, memory
        self._single = [_layer_of(model, index) for index in range(len(self._layers))]

    def forward(
        self, x: torch.Tensor, pieces: Sequence[AttendingPiece], stop: Stop | None = None
    ) -> torch.Tensor:
        """Compute all layers for the rows of pieces, and return the residual stream.

        `x` may be overwritten. Raises StepStopped if `stop` returns True between two layers.
        """
        assert self._model is not None
        end = max(piece.position + piece.count for piece in pieces)
        if end > len(self._cosines):
            self._cosines, self._sines = self._rotary.halves(end)
        those = [(each.table.blocks, each.count, each.position, each.decode) for each in pieces]
        step, held = pieces_of(self._model, those)
        x = x.contiguous()
        step.x = x.data_ptr()
        step.cosines, step.sines = self._cosines.data_ptr(), self._sines.data_ptr()
        if stop is None:
            self._kernels.step(step)
        else:
            for each in self._single:
                if stop():
                    raise StepStopped
                step.model = ctypes.pointer(each)
                self._kernels.step(step)
        del held
        return x

    def attended_seconds(self, rows: int) -> float:
        """Return the measured seconds in which each of `rows` rows of one session attends to one
        position in all layers.

        A row of a text reads keys and values that no cache has, because those of many sessions are
        read between two of its steps.
        """
        arch, size = self._arch, 64 * BLOCK
        each = 2 * arch.kv_heads * size * arch.head_dim * self._dtype.itemsize
        places = 3 if rows > 1 else max(3, COLD_BYTES // each)
        shape = 1 if rows > 1 else places
        keys, values = torch.ones(
            2, arch.kv_heads, shape * size, arch.head_dim, dtype=self._dtype
        ).unbind()
        model = shape_of(self._sizes, shape * size, KINDS[self._dtype], arch.eps)
        model.layer[0].keys, model.layer[0].values = keys.data_ptr(), values.data_ptr()
        queries = torch.zeros(rows, arch.heads, arch.head_dim)
        times = []
        for place in range(places):
            blocks = range(64) if rows > 1 else range(64 * place, 64 * place + 64)
            step, held = pieces_of(model, [(blocks, rows, size - rows, rows == 1)])
            attending = Attending(ctypes.pointer(step), 0, queries.data_ptr(), queries.data_ptr())
            began = clock()
            self._kernels.attend(attending)
            times.append(clock() - began)
            del held
        took = min(times) if rows > 1 else median(times)
        return took * len(self._layers) / (rows * size)


def computes(arch: Architecture, layers: Sequence[Layer]) -> bool:
    """Return whether the kernels compute these layers: plain ones, with native products."""
    other_norms = arch.wide_norms or arch.names.mixed_norm or arch.names.output_norm
    other_scores = arch.attention_scale or arch.attention_cap or arch.activation != "silu"
    other_turns = arch.rotated not in (0, arch.head_dim) or arch.head_dim % BLOCK
    if not layers or other_norms or other_scores or other_turns:
        return False
    if arch.sinks or arch.gated_attention or arch.recurrent:
        return False
    if not all(isinstance(layer.mlp, DensePart) for layer in layers):
        return False
    return all(
        isinstance(linear, NativeLinear) for layer in layers for linear in _products(layer).values()
    )


def _layer_of(model: ModelShape, index: int) -> ModelShape:
    """Return a model of one of the layers."""
    sizes = [getattr(model, name) for name, *_ in ModelShape._fields_[1:-1]]
    layer = ctypes.pointer(model.layer[index])
    return ModelShape(1, *sizes, layer)


def _attention(layer: Layer) -> AttentionPart:
    assert isinstance(layer.mixer, AttentionPart)  # as `computes` has checked
    return layer.mixer


def _dtype(layers: Sequence[Layer]) -> torch.dtype:
    dtype: torch.dtype = layers[0].input_norm.weight.dtype
    return dtype


def _products(layer: Layer) -> dict[str, Any]:
    attention, mlp = _attention(layer), layer.mlp
    return {
        "qkv": attention.qkv,
        "output": attention.output,
        "gate_up": mlp.gate_up,
        "down": mlp.down,
    }


def _norms(layer: Layer) -> list[torch.Tensor | None]:
    attention = _attention(layer)
    norms = (layer.input_norm, layer.mlp_norm, attention.query_norm, attention.key_norm)
    return [None if norm is None else norm.weight.float().contiguous() for norm in norms]

"""A shard in torch alone, from the weights that the native kernels have packed.

Slow: each matrix is unpacked a tile of outputs at a time, in each step. It serves to compute rows
again whose result was not finite, in case the kernels were wrong.
"""

import copy
from typing import Any, TypeVar

import torch
from torch.nn import functional as F

from ..backward.matrices import PANEL, frozen
from ..model import Layer
from ..products import BiasedLinear, StackedLinear
from .library import NativeLinear

P = TypeVar("P")
_TILE = 1 << 20  # weights that are unpacked at once


class TorchLinear:
    """The product of a packed matrix, computed by torch in float32."""

    def __init__(self, linear: NativeLinear) -> None:
        self._matrix = frozen(linear)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        matrix, rows = self._matrix, x.float()
        step = max(1, _TILE // matrix.inputs // PANEL) * PANEL
        out = x.new_empty(*x.shape[:-1], matrix.outputs)
        for first in range(0, matrix.outputs, step):
            end = min(first + step, matrix.outputs)
            bias = None if matrix.bias is None else matrix.bias[first:end]
            out[..., first:end] = F.linear(rows, matrix.tile(first, end), bias)
        return out


def reference_layer(layer: Layer) -> Layer:
    """Return a layer with the same weights, whose products torch computes."""
    found = copy.copy(layer)
    found.mixer, found.mlp = _in_torch(layer.mixer), _in_torch(layer.mlp)
    return found


def in_torch(linear: Any) -> Any:
    """Return a product that torch computes, or what is no product of the kernels unchanged."""
    if isinstance(linear, NativeLinear):
        return TorchLinear(linear)
    if isinstance(linear, StackedLinear):
        return StackedLinear([in_torch(part) for part in linear.parts])
    if isinstance(linear, BiasedLinear):
        return BiasedLinear(in_torch(linear.product), linear.bias)
    if isinstance(linear, list):
        return [in_torch(part) for part in linear]
    return linear


def _in_torch(part: P) -> P:
    """Return a copy of a part of a layer, with products that torch computes."""
    found = copy.copy(part)
    for name, value in vars(part).items():
        setattr(found, name, in_torch(value))
    return found

"""Work of a pass in units, between which the worker computes other things.

A pass is a generator. It yields the predicted seconds of its next unit, and does this unit when it
is resumed. Units are cut so that they take about `Pace.unit_s`, which may change between them.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch

from .matrices import PANEL, Frozen

T = TypeVar("T")
Work = Generator[float, None, T]

LEAST_ROWS = 8  # rows of a unit of operations on single values
_VALUE_S = 3e-9  # seconds for one value in an operation on single values, all its parts together


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds of a product for each weight: `weight_s`, whatever the rows, and `row_s` for each
    row."""

    weight_s: float
    row_s: float


@dataclass(slots=True)
class Pace:
    """Predicted seconds: `product` of products and `reverse` of their derivatives, `pair_s` for a
    position and one that it attends to in one layer with one of the heads of keys. `unit_s` is the
    target for one unit."""

    product: Rate
    reverse: Rate
    pair_s: float
    unit_s: float = 0.02

    def parts(self, count: int, each: float, least: int = 1) -> Iterator[tuple[int, int, float]]:
        """Yield (first, end, predicted seconds) of parts of `count` things that take `each` seconds
        one by one. A part has at least `least` of them."""
        first = 0
        while first < count:
            size = max(least, int(self.unit_s / each) if each > 0 else count)
            end = min(count, first + size)
            yield first, end, each * (end - first)
            first = end

    def rows(self, x: torch.Tensor) -> Iterator[tuple[int, int, float]]:
        """Yield parts of the rows of a tensor for an operation on single values."""
        return self.parts(len(x), _VALUE_S * x[0].numel() if len(x) else 0.0, LEAST_ROWS)

    def tiles(self, matrix: Frozen, rows: int, rate: Rate) -> Iterator[tuple[int, int, float]]:
        """Yield parts of the outputs of a matrix for a product with `rows` rows."""
        panels = -(-matrix.outputs // PANEL)
        each = (rate.weight_s + rate.row_s * rows) * matrix.inputs * PANEL
        for first, end, seconds in self.parts(panels, each):
            yield first * PANEL, min(end * PANEL, matrix.outputs), seconds


def product(matrix: Frozen, x: torch.Tensor, pace: Pace) -> Work[torch.Tensor]:
    """Compute `x W^T + b` for rows x inputs."""
    out = x.new_empty(len(x), matrix.outputs)
    for first, end, seconds in pace.tiles(matrix, len(x), pace.product):
        yield seconds
        out[:, first:end] = matrix.times(x, first, end)
        if matrix.bias is not None:
            out[:, first:end] += matrix.bias[first:end]
    return out


def reverse(matrix: Frozen, gradient: torch.Tensor, pace: Pace) -> Work[torch.Tensor]:
    """Compute the derivative by `x` of a product, from that by its outputs (rows x outputs)."""
    found = gradient.new_zeros(len(gradient), matrix.inputs)
    for first, end, seconds in pace.tiles(matrix, len(gradient), pace.reverse):
        yield seconds
        found.addmm_(gradient[:, first:end], matrix.tile(first, end))
    return found

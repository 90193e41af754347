"""Work of a pass in units, between which the worker computes other things.

A pass is a generator. It yields the predicted seconds of its next unit, and does this unit when it
is resumed. Units are cut so that they take about `PassSpeed.unit_s`, which may change between them.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch

from .matrices import PANEL, Frozen

T = TypeVar("T")
Work = Generator[float, None, T]

LEAST_ROWS = 8  # rows of a unit of operations on single values
SUMMED = 4 * PANEL  # outputs whose products are summed at once
_VALUE_S = 3e-9  # seconds for one value in an operation on single values, all its parts together


@dataclass(frozen=True, slots=True)
class ProductRate:
    """Time of a product of rows and a matrix, in seconds for each weight of the matrix: `weight_s`
    in any case, and `row_s` more for each row."""

    weight_s: float
    row_s: float


@dataclass(slots=True)
class PassSpeed:
    """Predicted seconds: `product` of products and `reverse` of their derivatives, `pair_s` for a
    position and one that it attends to in one layer with one of the heads of keys. `unit_s` is the
    target for one unit."""

    product: ProductRate
    reverse: ProductRate
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

    def tiles(
        self, matrix: Frozen, rows: int, rate: ProductRate, step: int = PANEL
    ) -> Iterator[tuple[int, int, float]]:
        """Yield parts of the outputs of a matrix for a product with `rows` rows. A part begins at a
        multiple of `step`."""
        steps = -(-matrix.outputs // step)
        each = (rate.weight_s + rate.row_s * rows) * matrix.inputs * step
        for first, end, seconds in self.parts(steps, each):
            yield first * step, min(end * step, matrix.outputs), seconds


def product(matrix: Frozen, x: torch.Tensor, pace: PassSpeed) -> Work[torch.Tensor]:
    """Compute `x W^T + b` for rows x inputs."""
    out = x.new_empty(len(x), matrix.outputs)
    for first, end, seconds in pace.tiles(matrix, len(x), pace.product):
        yield seconds
        out[:, first:end] = matrix.times(x, first, end)
        if matrix.bias is not None:
            out[:, first:end] += matrix.bias[first:end]
    return out


def reverse(matrix: Frozen, gradient: torch.Tensor, pace: PassSpeed) -> Work[torch.Tensor]:
    """Compute the derivative by `x` of a product, from that by its outputs (rows x outputs).

    The sum has steps of SUMMED outputs, whatever the pace. So the same inputs give the same bits on
    a machine that is busier or measures other rates.
    """
    found = gradient.new_zeros(len(gradient), matrix.inputs)
    for first, end, seconds in pace.tiles(matrix, len(gradient), pace.reverse, SUMMED):
        yield seconds
        tile = matrix.tile(first, end)
        for start in range(first, end, SUMMED):
            some = slice(start, min(start + SUMMED, end))
            found.addmm_(gradient[:, some], tile[start - first : some.stop - first])
    return found

"""Quantised weights in torch: their values, and products with them without a native kernel.

A product dequantises the weight tile by tile, so that the memory for float values is bounded. The
tiles do not depend on the number of rows. Layouts: docs/spec/quantised.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional as F

from ..layouts import Layout
from .products import Linear, linear_of

TILE_VALUES: Final = 1 << 20  # values that are dequantised at a time


@dataclass(frozen=True, slots=True)
class Quantised:
    """A weight of N rows and K columns, as it is stored."""

    layout: Layout
    values: torch.Tensor  # int8: N x K signed bytes; int4: N x K/2 bytes with two values each
    scale: torch.Tensor  # float16, N x K/group
    minimum: torch.Tensor | None  # float16, N x K/group; only int4

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and columns."""
        rows, groups = self.scale.shape
        return rows, groups * self.layout.group

    def rows(self, which: slice | torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return some rows as floats: computed in float32, and rounded once."""
        values, scale = self.values[which], self.scale[which].float()[..., None]
        grouped = values.unflatten(-1, (scale.shape[-2], -1))
        if self.minimum is None:
            found = grouped * scale
        else:
            halves = torch.cat((grouped & 15, grouped >> 4), -1)
            found = torch.addcmul(self.minimum[which].float()[..., None], halves.float(), scale)
        return found.flatten(-2).to(dtype)


Matrix = torch.Tensor | Quantised


def embedded(table: Matrix, tokens: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the rows of an embedding table (T x hidden) for token ids (T)."""
    if isinstance(table, Quantised):
        return table.rows(tokens, dtype)
    return F.embedding(tokens, table)


def product_of(
    matrices: Sequence[Matrix], bias: torch.Tensor | None, *, pack: bool = True
) -> Linear:
    """Return a function that computes `x W^T + b`, where W is the matrices stacked by rows."""
    if len(matrices) == 1:
        return _product(matrices[0], bias, pack)
    parts, first = [], 0
    for matrix in matrices:
        last = first + matrix.shape[0]
        parts.append(_product(matrix, None if bias is None else bias[first:last], pack))
        first = last
    return lambda x: torch.cat([part(x) for part in parts], -1)


def _product(matrix: Matrix, bias: torch.Tensor | None, pack: bool) -> Linear:
    if isinstance(matrix, Quantised):
        return linear_of_quantised(matrix, bias)
    return linear_of(matrix, bias, pack=pack)


def linear_of_quantised(matrix: Quantised, bias: torch.Tensor | None) -> Linear:
    """Return a function that computes `x W^T + b` with a quantised weight, one tile at a time."""
    count, columns = matrix.shape
    tile = max(1, TILE_VALUES // columns)
    tiles = [slice(first, min(first + tile, count)) for first in range(0, count, tile)]

    def product(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(len(x), count)
        for part in tiles:
            out[:, part] = F.linear(x, matrix.rows(part, x.dtype))
        return out if bias is None else out.add_(bias)

    return product

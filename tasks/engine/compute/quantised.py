"""Weights that may be quantised: products with several of them, and embedding tables."""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch.nn import functional as F

from .native import choice
from .products import Linear, Quantised, StackedLinear, linear_of, linear_of_quantised

Matrix: TypeAlias = torch.Tensor | Quantised


def embedded(table: Matrix, tokens: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the rows of an embedding table (T x hidden) for token ids (T)."""
    if not isinstance(table, Quantised):
        return F.embedding(tokens, table)
    minimum = None if table.minimum is None else table.minimum[tokens]
    some = Quantised(table.layout, table.q[tokens], table.scale[tokens], minimum)
    return some.dequantised(0, len(tokens), dtype)


def product_of(
    matrices: Sequence[Matrix], bias: torch.Tensor | None, *, pack: bool = True
) -> Linear:
    """Return a function that computes `x W^T + b`, where W is the matrices stacked by rows."""
    if len(matrices) == 1:
        return _product(matrices[0], bias, pack)
    stacked = _stacked(matrices)
    if stacked is not None:
        return _product(stacked, bias, pack)
    parts, first = [], 0
    for matrix in matrices:
        last = first + (matrix.outputs if isinstance(matrix, Quantised) else len(matrix))
        parts.append(_product(matrix, None if bias is None else bias[first:last], pack))
        first = last
    return StackedLinear(parts)


def _stacked(matrices: Sequence[Matrix]) -> Quantised | None:
    """Return quantised matrices of one layout as one, which takes fewer products, in the memory of
    an accelerator or where the native kernels pack it. Otherwise the copy would cost memory."""
    quantised = [each for each in matrices if isinstance(each, Quantised)]
    kinds = {(each.layout, each.group) for each in quantised}
    if (
        len(kinds) != 1
        or len(quantised) != len(matrices)
        or (quantised[0].q.device.type == "cpu" and choice.kernels() is None)
    ):
        return None
    minima = [each.minimum for each in quantised if each.minimum is not None]
    return Quantised(
        quantised[0].layout,
        torch.cat([each.q for each in quantised]),
        torch.cat([each.scale for each in quantised]),
        torch.cat(minima) if minima else None,
    )


def _product(matrix: Matrix, bias: torch.Tensor | None, pack: bool) -> Linear:
    if isinstance(matrix, Quantised):
        return linear_of_quantised(matrix.layout, matrix.q, matrix.scale, matrix.minimum, bias)
    return linear_of(matrix, bias, pack=pack)


def rows_of(matrix: Matrix, rows: torch.Tensor) -> Matrix:
    """Return some rows of a matrix, as a copy."""
    if not isinstance(matrix, Quantised):
        return matrix[rows.to(matrix.device)]
    rows = rows.to(matrix.q.device)
    minimum = None if matrix.minimum is None else matrix.minimum[rows]
    return Quantised(matrix.layout, matrix.q[rows], matrix.scale[rows], minimum)


def joined(matrices: Sequence[Matrix]) -> Sequence[Matrix]:
    """Return the matrices as one if none is quantised, because one product is faster."""
    plain = [each for each in matrices if not isinstance(each, Quantised)]
    return [torch.cat(plain)] if len(plain) == len(matrices) else matrices

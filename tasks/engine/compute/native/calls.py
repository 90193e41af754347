"""The structures of a call of the kernels, made from Python values.

Imports nothing of `compute/`: the products need `check.py`, which needs these, and the rest of
`compute/` needs the products.
"""

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import c_int32

from .library import LayerPointers, ModelShape, PieceRows, StepRows

RowsOfBlocks = tuple[Sequence[int], int, int, bool]
"""Blocks of a session, number of rows, first position, whether the row continues a text."""


def shape_of(
    sizes: tuple[int, int, int, int, int, int], slots: int, dtype: int, eps: float
) -> ModelShape:
    """Return a model without pointers.

    `sizes` are layers, hidden, heads, heads of keys, their size, and intermediate. `slots` is the
    number of positions of KV, and `eps` the number that norms add to the mean square.
    """
    layers = (LayerPointers * sizes[0])()
    return ModelShape(*sizes, slots, dtype, eps, layers)


def pieces_of(model: ModelShape, pieces: Sequence[RowsOfBlocks]) -> tuple[StepRows, object]:
    """Return a step without rows, and what must live as long as it."""
    blocks = array("i")
    starts = list[int]()
    for those, *_ in pieces:
        starts.append(len(blocks))
        blocks.extend(those)
    memory = (c_int32 * len(blocks)).from_buffer(blocks)
    base, row = ctypes.addressof(memory), 0
    rows = (PieceRows * len(pieces))()
    for index, (_, count, position, decode) in enumerate(pieces):
        rows[index] = PieceRows(row, count, position, decode, base + 4 * starts[index])
        row += count
    step = StepRows(ctypes.pointer(model), row, len(pieces), None, None, None, rows)
    return step, (memory, rows)

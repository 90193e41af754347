"""The structures of a call of the kernels, made from Python values.

Imports nothing of `compute/`: the products need `check.py`, which needs these, and the rest of
`compute/` needs the products.
"""

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import POINTER, c_int32

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
    rows = (PieceRows * len(pieces))()
    blocks = array("i")
    starts, row = [], 0
    for index, (those, count, position, decode) in enumerate(pieces):
        starts.append(len(blocks))
        blocks.extend(those)
        rows[index] = PieceRows(row, count, position, decode, None)
        row += count
    memory = (c_int32 * len(blocks)).from_buffer(blocks)
    base = ctypes.addressof(memory)
    for index, start in enumerate(starts):
        rows[index].blocks = ctypes.cast(base + 4 * start, POINTER(c_int32))
    step = StepRows(ctypes.pointer(model), row, len(pieces), None, None, None, rows)
    return step, (memory, rows)

"""Robust aggregation of the updates of one round. No I/O.

Every peer computes the same bits from the same updates: the order of all sums is fixed, and each
operation is one IEEE operation per element. `np.sum` and `np.dot` would add in an order that
depends on the processor.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .codecs import Vector
from .defaults import CLIPPED_NORM, PIECE, POINTS_HALVE, TOKENS_OVER_MEDIAN, TRIM_ONE_IN
from .memory import SpareMemory

Rows = NDArray[np.float32]
Mask = NDArray[np.bool_]
VectorSource: TypeAlias = Vector | Callable[[], Vector]
"""A vector, or what decodes it each time it is needed, so that its encoded bytes alone stay."""
_FEW: Final = 1 << 10  # values below which the sums of all pieces are halved together
_BLOCK: Final = 1 << 13  # values of which all updates of a round fit the cache of a core


@dataclass(frozen=True, slots=True, eq=False)
class Weighed:
    """One update with what its weight depends on.

    `points` are those that its author has collected by updates that were refused.
    """

    vector: VectorSource
    norm: float
    tokens: int
    points: int


def vector_of(source: VectorSource) -> Vector:
    """Return the vector. Takes long if it has to be decoded."""
    return source() if callable(source) else source


def norm_of(vector: Vector) -> float:
    """Return the Euclidean norm. The result has the same bits on every machine.

    The squares of each piece are added half to half. All pieces use the same memory: with fresh
    memory for each, the kernel's clearing of pages took up to 90 % of the time.
    """
    count = -(-vector.size // PIECE)
    squares, last = np.zeros(PIECE), np.empty((count, _FEW))
    for index in range(count):
        piece = vector[index * PIECE : (index + 1) * PIECE]
        np.multiply(piece, piece, out=squares[: piece.size], dtype=np.float64)
        squares[piece.size :] = 0  # zeros change no sum of squares
        _halve(squares[np.newaxis], _FEW)
        last[index] = squares[:_FEW]
    _halve(last, 1)
    total = 0.0
    for part in last[:, 0].tolist():
        total += part
    return float(np.sqrt(total))


def lower_median(values: Sequence[float]) -> float:
    """Return the middle value; of an even number, the lower one of the two in the middle.

    An attacker's large value then counts less than with the mean of the two.
    """
    return sorted(values)[(len(values) - 1) // 2]


def weights_of(updates: Sequence[Weighed]) -> list[float]:
    """Return the weight of each update by tokens and history. The sum is 1."""
    most = TOKENS_OVER_MEDIAN * lower_median([each.tokens for each in updates])
    shares = [
        min(float(each.tokens), most) * POINTS_HALVE / (POINTS_HALVE + each.points)
        for each in updates
    ]
    total = 0.0
    for share in shares:
        total += share
    return [share / total for share in shares]


def aggregate(
    updates: Sequence[Weighed], *, trim: bool, memory: SpareMemory | None = None
) -> Vector:
    """Return the weighted mean of updates, in the order given.

    Updates of more than CLIPPED_NORM times the median norm are scaled down. With `trim`, of each
    value the highest and the lowest of every TRIM_ONE_IN updates are left out. Sparse updates must
    not be trimmed: where few peers send a value, the mean of the rest is 0. They are decoded one
    after the other, so however many there are, one is in memory at a time.
    """
    limit = CLIPPED_NORM * lower_median([each.norm for each in updates])
    weights = weights_of(updates)
    clips = [np.float32(min(1.0, limit / each.norm if each.norm else 1.0)) for each in updates]
    factors = [np.float32(weight) * clip for weight, clip in zip(weights, clips, strict=True)]
    memory = memory or SpareMemory()
    if not trim:
        return _mean([each.vector for each in updates], factors, memory)
    vectors = [vector_of(each.vector) for each in updates]
    out = memory.vector(vectors[0].size)
    cut = len(updates) // TRIM_ONE_IN
    for start in range(0, out.size, PIECE):
        pieces = [each[start : start + PIECE] for each in vectors]
        target = out[start : start + PIECE]
        if cut:
            target[:] = _trimmed(pieces, clips, weights, cut)
        else:
            _mean_into(target, pieces, factors)
    return out


def _mean(
    sources: Sequence[VectorSource], factors: Sequence[np.float32], memory: SpareMemory
) -> Vector:
    """Return the weighted sum. Each value has the bits that `_mean_into` gives it."""
    first = vector_of(sources[0])
    out, scratch = memory.vector(first.size), np.empty(min(PIECE, first.size), np.float32)
    np.multiply(first, factors[0], out=out)
    del first
    for source, factor in zip(sources[1:], factors[1:], strict=True):
        _add(out, vector_of(source), factor, scratch)  # no name keeps it while the next is decoded
    return out


def _add(out: Vector, vector: Vector, factor: np.float32, scratch: Vector) -> None:
    for start in range(0, out.size, PIECE):
        piece = vector[start : start + PIECE]
        np.multiply(piece, factor, out=scratch[: piece.size])
        out[start : start + PIECE] += scratch[: piece.size]


def _mean_into(target: Vector, pieces: Sequence[Vector], factors: Sequence[np.float32]) -> None:
    np.multiply(pieces[0], factors[0], out=target)
    scratch = np.empty_like(target)
    for piece, factor in zip(pieces[1:], factors[1:], strict=True):
        np.multiply(piece, factor, out=scratch)
        target += scratch


def _trimmed(
    pieces: Sequence[Vector], clips: Sequence[np.float32], weights: Sequence[float], cut: int
) -> Vector:
    """Return the weighted mean without the `cut` highest and lowest of each value."""
    mean = np.empty_like(pieces[0])
    for start in range(0, mean.size, _BLOCK):
        here = slice(start, start + _BLOCK)
        rows = np.stack([piece[here] * clip for piece, clip in zip(pieces, clips, strict=True)])
        out = outermost(rows) if cut == 1 else outer(rows, cut)
        total, weight = np.zeros_like(rows[0]), np.zeros_like(rows[0])
        for row, share, left_out in zip(rows, weights, out, strict=True):
            kept = np.where(left_out, np.float32(0), np.float32(share))
            total += row * kept
            weight += kept
        np.divide(total, weight, out=mean[here])
    return mean


def outermost(rows: Rows) -> Mask:
    """Return where each value's lowest and highest row are: of equal ones, the first lowest and the
    last highest. It needs no order of all rows, so it takes a fraction of the time of `outer`."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    out = np.zeros(rows.shape, np.bool_)
    for order, limit in ((range(len(rows)), low), (range(len(rows) - 1, -1, -1), high)):
        open_ = np.ones(rows.shape[1], np.bool_)
        for at in order:
            found = (rows[at] == limit) & open_
            open_ ^= found
            out[at] |= found
    return out


def outer(rows: Rows, cut: int) -> Mask:
    """Return where the `cut` lowest and highest rows of each value are, in the same order."""
    order = np.argsort(rows, axis=0, kind="stable")
    out = np.zeros(rows.shape, np.bool_)
    for places in (order[:cut], order[-cut:]):
        np.put_along_axis(out, places, values=True, axis=0)
    return out


def _halve(rows: NDArray[np.float64], least: int) -> None:
    """Add the second half of each row to the first one, value by value, until `least` are left at
    the beginning of it. The length of a row is a power of two."""
    size = rows.shape[1]
    while size > least:
        size //= 2
        rows[:, :size] += rows[:, size : 2 * size]

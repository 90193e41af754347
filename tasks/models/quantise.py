"""Chooses scales and quantises weights, in numpy. Layouts: docs/spec/quantised.md."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..engine.layouts import Layout

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Parts = dict[str, NDArray[np.int8] | NDArray[np.uint8] | Halves]
"""The tensors that store a weight, by the end of their name: "", `.scale`, `.minimum`."""

_MOST: Final = 127
_LEVELS: Final = 15
_SHRINK: Final = (1.0, 0.95, 0.9, 0.85, 0.8)  # parts of a group's range, tried in turn
_REFITS: Final = 2  # least-squares fits of scale and minimum for each of them


def quantise(weight: Floats, layout: Layout) -> Parts:
    """Quantise a weight of the shape (rows, columns)."""
    groups = weight.reshape(-1, layout.group)
    shape = (weight.shape[0], -1)
    if layout.precision == "int8":
        values, scale = _int8(groups)
        return {"": values.reshape(shape), ".scale": scale.reshape(shape)}
    levels, scale, minimum = _int4(groups)
    packed = packed_levels(levels).reshape(shape)
    return {"": packed, ".scale": scale.reshape(shape), ".minimum": minimum.reshape(shape)}


def packed_levels(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack groups of 32 levels of 0 to 15 (groups x 32) into bytes (groups x 16)."""
    packed = levels[:, :16] | (levels[:, 16:] << 4)
    return packed.astype(np.uint8, copy=False)


def values(parts: Parts, layout: Layout) -> Floats:
    """Return the values of a quantised weight, of the shape (rows, columns)."""
    scale = parts[".scale"].astype(np.float32).reshape(-1, 1)
    stored = parts[""]
    rows = stored.shape[0]
    if layout.precision == "int8":
        return (stored.reshape(-1, layout.group) * scale).reshape(rows, -1)
    packed = stored.reshape(-1, 16).astype(np.uint8)
    levels = np.concatenate((packed & 15, packed >> 4), 1)
    minimum = parts[".minimum"].astype(np.float32).reshape(-1, 1)
    return (levels * scale + minimum).reshape(rows, -1)


def _int8(groups: Floats) -> tuple[NDArray[np.int8], Halves]:
    """Return values of -127 to 127, and a scale for each group."""
    scale = (np.abs(groups).max(1) / _MOST).astype(np.float16)
    return np.rint(groups * _inverse(scale)).clip(-_MOST, _MOST).astype(np.int8), scale


def _inverse(scale: Halves) -> Floats:
    """Return 1 / scale for each group, 0 where the scale is 0, as a column."""
    wide = scale.astype(np.float32)[:, None]
    return np.divide(1, wide, out=np.zeros_like(wide), where=wide > 0)


def _int4(groups: Floats) -> tuple[NDArray[np.uint8], Halves, Halves]:
    """Return levels of 0 to 15, and a scale and a minimum for each group.

    Starts with several parts of each group's range. Fits scale and minimum to the levels by least
    squares, rounds them to float16, and takes for each group what has the least squared error.
    """
    low, high = groups.min(1), groups.max(1)
    best = _rounded(groups, (high - low) / _LEVELS, low)
    least = _error(groups, *best)
    for part in _SHRINK:
        margin = (1 - part) / 2 * (high - low)
        found = _rounded(groups, (high - low) * (part / _LEVELS), low + margin)
        for _ in range(_REFITS):
            found = _rounded(groups, *_fitted(groups, found[0]))
            error = _error(groups, *found)
            better = error < least
            least = np.where(better, error, least)
            for at in range(3):
                best[at][better] = found[at][better]
    return best


def _rounded(
    groups: Floats, scale: Floats, minimum: Floats
) -> tuple[NDArray[np.uint8], Halves, Halves]:
    """Round scale and minimum to float16, and return the nearest levels with them."""
    half, base = scale.astype(np.float16), minimum.astype(np.float16)
    levels = np.rint((groups - base.astype(np.float32)[:, None]) * _inverse(half))
    return levels.clip(0, _LEVELS).astype(np.uint8), half, base


def _fitted(groups: Floats, levels: NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Return the scale and the minimum with the least squared error for these levels."""
    wide = levels.astype(np.float32)
    mean, middle = wide.mean(1), groups.mean(1)
    spread = (wide * wide).mean(1) - mean * mean
    slope = (wide * groups).mean(1) - mean * middle
    scale = np.divide(slope, spread, out=np.zeros_like(slope), where=spread > 1e-6)
    return scale, middle - scale * mean


def _error(groups: Floats, levels: NDArray[np.uint8], scale: Halves, minimum: Halves) -> Floats:
    """Return the squared error of each group."""
    near = levels * scale.astype(np.float32)[:, None] + minimum.astype(np.float32)[:, None]
    error: Floats = np.square(groups - near).sum(1)
    return error

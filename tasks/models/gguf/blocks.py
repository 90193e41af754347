"""Quantised blocks of GGUF: to the layouts of docs/spec/quantised.md, or to float values.

Formats: the structures `block_q…` of ggml (ggml-common.h). A K-quant block has 256 values; its
scales and minima have 6 bits each and are multiplied with two float16 numbers.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...engine.layouts import INT4, INT8, INT8_SMALL, Layout
from ..output import floats_of
from ..quantise import Floats, Parts, packed_levels, quantise
from .header import TensorType

Bytes = NDArray[np.uint8]

LAYOUTS: Final[dict[str, Layout]] = {
    "Q8_0": INT8, "Q4_0": INT4, "Q4_K": INT4, "Q5_K": INT8, "Q6_K": INT8_SMALL,
}  # fmt: skip
"""The layout in which the weights of each type are stored."""
EXACT: Final = ("Q8_0", "Q4_0", "Q4_K", "Q6_K")
"""Types whose integers are kept; the others are rounded again."""


def stored_parts(data: bytes, kind: TensorType, rows: int) -> Parts:
    """Convert rows of blocks to the tensors that store them. See LAYOUTS."""
    blocks = np.frombuffer(data, np.uint8).reshape(-1, kind.size)
    if kind.name == "Q5_K":
        return quantise(_q5_k(blocks).reshape(rows, -1), INT8)
    parts = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_K": _q4_k, "Q6_K": _q6_k}[kind.name](blocks)
    return {end: part.reshape(rows, -1) for end, part in parts.items()}


def float_values(data: bytes, kind: TensorType) -> Floats:
    """Return the values of a float type."""
    return floats_of(data, kind.name)


def _halves(blocks: Bytes, at: int) -> Floats:
    """Return a float16 number of each block as a column."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _q8_0(blocks: Bytes) -> Parts:
    return {"": blocks[:, 2:].view(np.int8), ".scale": blocks[:, :2].copy().view("<f2")}


def _q4_0(blocks: Bytes) -> Parts:
    scale = blocks[:, :2].copy().view("<f2")
    return {"": blocks[:, 2:], ".scale": scale, ".minimum": (scale * np.float16(-8))}


def _six_bits(packed: Bytes) -> tuple[Floats, Floats]:
    """Return the 8 scales and 8 minima of each block from their 12 bytes."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 63, (third & 15) | ((first >> 6) << 4)), 1)
    minima = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), 1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Return levels of 0 to 15 (blocks x 8 x 32): of each 32 bytes first the low nibbles."""
    pairs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate((pairs & 15, pairs >> 4), 2).reshape(-1, 8, 32)


def _q4_k(blocks: Bytes) -> Parts:
    scales, minima = _six_bits(blocks[:, 4:16])
    levels = _nibbles(blocks[:, 16:])
    return {
        "": packed_levels(levels.reshape(-1, 32)),
        ".scale": (_halves(blocks, 0) * scales).astype(np.float16),
        ".minimum": (-_halves(blocks, 2) * minima).astype(np.float16),
    }


def _q5_k(blocks: Bytes) -> Floats:
    scales, minima = _six_bits(blocks[:, 4:16])
    bits = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    levels = _nibbles(blocks[:, 48:]) + ((bits & 1) << 4)
    scale = (_halves(blocks, 0) * scales)[..., None]
    found: Floats = levels * scale - (_halves(blocks, 2) * minima)[..., None]
    return found


def _q6_k(blocks: Bytes) -> Parts:
    low = blocks[:, :128].reshape(-1, 2, 1, 2, 32)
    nibbles = np.concatenate((low & 15, low >> 4), 2).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    values = (nibbles | (high << 4)).astype(np.int8) - np.int8(32)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return {
        "": values.reshape(-1, 256),
        ".scale": (_halves(blocks, 208) * scales).astype(np.float16),
    }

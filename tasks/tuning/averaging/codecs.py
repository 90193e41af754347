"""Codecs of an update: a vector of float32 as bytes. No I/O. Spec: docs/spec/averaging.md, Updates.

An update from a peer is refused by its length before any of it is read: the terms of the run fix
the codec and the number of values, and these fix the number of bytes.
"""

import struct
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from . import sparse
from .defaults import (
    INT4_BLOCK,
    INT8_BLOCK,
    MAX_KEEP,
    MAX_SCALE,
    MAX_VALUES,
    PIECE,
    SPARSE_CHUNK,
    SPARSE_DECAY,
)
from .errors import BadUpdate
from .memory import SpareMemory

Vector: TypeAlias = NDArray[np.float32]
"""One dimension, finite values."""
CodecName = Literal["float32", "int8", "int4", "sparse"]
CODECS: Final[tuple[CodecName, ...]] = get_args(CodecName)
_MAGIC: Final = b"shoalup1"
_HEAD: Final = struct.Struct("<8sBxHIQ")  # magic, codec, values kept per chunk, zeros, values
_F32: Final = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec with its parameter: `keep` is the values sent of each chunk by `sparse`, else 0."""

    name: CodecName
    keep: int = 0

    def __post_init__(self) -> None:
        sparse_ = self.name == "sparse"
        if not (1 <= self.keep <= MAX_KEEP if sparse_ else self.keep == 0):
            raise ValueError(f"expected 1 to {MAX_KEEP} values per chunk, only with `sparse`")

    @property
    def feeds_back(self) -> bool:
        """Whether what one update loses is added to the next one."""
        return self.name in ("int4", "sparse")

    @property
    def decay(self) -> float:
        """Part of the fed-back error that stays from one round to the next."""
        return SPARSE_DECAY if self.name == "sparse" else 1.0

    def size(self, values: int) -> int:
        """Return the size of an encoded vector in bytes. `values` is its length."""
        return _HEAD.size + _body(self, values)


def encode(codec: Codec, vector: Vector) -> bytes:
    """Encode a vector. Raises BadUpdate `not-finite` or `too-large` for values that no peer would
    accept."""
    _check_values(vector)
    head = _HEAD.pack(_MAGIC, CODECS.index(codec.name), codec.keep, 0, vector.size)
    match codec.name:
        case "float32":
            return b"".join([head, vector.astype(_F32, copy=False).data.cast("B")])
        case "int8":
            return head + _encode_blocks(vector, INT8_BLOCK, 127).tobytes()
        case "int4":
            return head + _encode_nibbles(vector)
        case "sparse":
            return head + sparse.encode(vector, codec.keep)


def encode_difference(base: Vector, values: Vector, memory: SpareMemory) -> memoryview:
    """Encode `base - values` as float32, in memory that is used again, and without a copy.

    Raises BadUpdate as `encode` does.
    """
    data = memory.octets(_HEAD.size + 4 * base.size)
    _HEAD.pack_into(data.data, 0, _MAGIC, CODECS.index("float32"), 0, 0, base.size)
    vector = data[_HEAD.size :].view(_F32)
    np.subtract(base, values, out=vector)
    _check_values(vector)
    return data.data.toreadonly()


def decode(codec: Codec, values: int, data: bytes | memoryview) -> Vector:
    """Decode an update of a peer. `codec` and `values` are those of the run.

    Raises BadUpdate: `wrong-size`, `wrong-codec`, `not-finite`, `too-large`, `bad-values` or
    `bad-indices`.
    """
    if values > MAX_VALUES or len(data) != codec.size(values):
        raise BadUpdate("wrong-size", f"an update has {len(data)} bytes, not {codec.size(values)}")
    magic, name, keep, zeros, count = _HEAD.unpack_from(data)
    if (magic, name, keep, zeros) != (_MAGIC, CODECS.index(codec.name), codec.keep, 0):
        raise BadUpdate("wrong-codec", f"an update is not encoded as `{codec.name}`")
    if count != values:
        raise BadUpdate("wrong-size", f"an update has {count} values, not {values}")
    body = memoryview(data)[_HEAD.size :]
    match codec.name:
        case "float32":
            return _checked(np.frombuffer(body, _F32).astype(np.float32, copy=False))
        case "int8":
            return _decode_blocks(body, values)
        case "int4":
            return _decode_nibbles(body, values)
        case "sparse":
            return sparse.decode(body, values, codec.keep)


class Feedback:
    """Error feedback of one peer: what its updates have lost so far."""

    def __init__(self, codec: Codec, values: int, residual: Vector | None = None) -> None:
        """`residual` is what updates of an earlier process have lost."""
        self.codec = codec
        fresh: Vector = np.zeros(values if codec.feeds_back else 0, np.float32)
        self.residual = fresh if residual is None else residual

    def encode(self, update: Vector) -> bytes:
        """Encode an update together with what earlier ones have lost."""
        if not self.codec.feeds_back:
            return encode(self.codec, update)
        whole = update + self.residual * np.float32(self.codec.decay)
        data = encode(self.codec, whole)
        self.residual = whole - decode(self.codec, whole.size, data)
        return data

    def lost(self, data: bytes | memoryview) -> None:
        """Take back an encoded update that no step contains, so that the next one includes it."""
        if self.codec.feeds_back:
            self.residual = self.residual + decode(self.codec, self.residual.size, data)


def _body(codec: Codec, values: int) -> int:
    match codec.name:
        case "float32":
            return 4 * values
        case "int8":
            return 4 * -(-values // INT8_BLOCK) + values
        case "int4":
            return 4 * -(-values // INT4_BLOCK) + -(-values // 2)
        case "sparse":
            return sparse.body_bytes(values, codec.keep)


def _check_values(vector: Vector) -> None:
    """Raise BadUpdate unless all values are finite and small enough to be sent."""
    # The extremes are computed without a temporary array. They are NaN if any value is.
    low, high = (float(vector.min()), float(vector.max())) if vector.size else (0.0, 0.0)
    if not (np.isfinite(low) and np.isfinite(high)):
        raise BadUpdate("not-finite", "an update has values that are not finite")
    if max(-low, high) > MAX_SCALE:
        raise BadUpdate("too-large", f"an update has a value beyond {MAX_SCALE:g}")


def _checked(vector: Vector) -> Vector:
    _check_values(vector)
    return vector


def _blocks(vector: Vector, block: int) -> Vector:
    """Return the vector as rows of one block each; the last one is filled up with zeros."""
    rows = -(-vector.size // block)
    if rows * block == vector.size:
        return vector.reshape(rows, block)
    padded = np.zeros(rows * block, np.float32)
    padded[: vector.size] = vector
    return padded.reshape(rows, block)


def _quantized(vector: Vector, block: int, most: int) -> tuple[Vector, NDArray[np.int8]]:
    """Return the scale of each block, and each value as a multiple of it from -most to most."""
    rows = _blocks(vector, block)
    scales = np.empty(len(rows), _F32)
    steps = np.empty(rows.shape, np.int8)
    for start in range(0, len(rows), PIECE // block):
        here = slice(start, start + PIECE // block)
        part = rows[here]
        extremes = np.maximum(part.max(axis=1), -part.min(axis=1))
        scales[here] = extremes / np.float32(most)
        safe = np.where(scales[here] > 0, scales[here], np.float32(1))
        with np.errstate(over="ignore"):  # a subnormal scale is inexact; the clip bounds it
            quotients = np.rint(part / safe[:, None])
        steps[here] = np.clip(quotients, -most, most)
    return scales, steps.reshape(-1)[: vector.size]


def _encode_blocks(vector: Vector, block: int, most: int) -> NDArray[np.uint8]:
    scales, steps = _quantized(vector, block, most)
    return np.concatenate([scales.view(np.uint8), steps.view(np.uint8)])


def _encode_nibbles(vector: Vector) -> bytes:
    scales, steps = _quantized(vector, INT4_BLOCK, 7)
    nibbles = (steps + 8).astype(np.uint8)
    if nibbles.size % 2:
        nibbles = np.append(nibbles, np.uint8(8))
    return scales.tobytes() + (nibbles[0::2] | nibbles[1::2] << 4).tobytes()


def _scales(body: memoryview, count: int) -> Vector:
    """Return the scales at the beginning of a body. Raises BadUpdate if one is not allowed."""
    scales = np.frombuffer(body, _F32, count).astype(np.float32, copy=False)
    _check_values(scales)
    if count and scales.min() < 0:
        raise BadUpdate("bad-values", "an update has a negative scale")
    return scales


def _scaled(scales: Vector, steps: NDArray[np.int8], block: int) -> Vector:
    rows = -(-steps.size // block)
    vector = np.zeros(rows * block, np.float32)
    vector[: steps.size] = steps
    by_row = vector.reshape(rows, block)
    by_row *= scales[:, None]
    return _checked(vector[: steps.size])


def _decode_blocks(body: memoryview, values: int) -> Vector:
    count = -(-values // INT8_BLOCK)
    scales = _scales(body, count)
    steps = np.frombuffer(body, np.int8, values, 4 * count)
    if values and steps.min() < -127:
        raise BadUpdate("bad-values", "an update has a value that no encoder writes")
    return _scaled(scales, steps, INT8_BLOCK)


def _decode_nibbles(body: memoryview, values: int) -> Vector:
    count = -(-values // INT4_BLOCK)
    scales = _scales(body, count)
    packed = np.frombuffer(body, np.uint8, -(-values // 2), 4 * count)
    nibbles = np.empty(packed.size * 2, np.uint8)
    nibbles[0::2], nibbles[1::2] = packed & 15, packed >> 4
    if (nibbles.size and nibbles.min() == 0) or (values % 2 and nibbles[-1] != 8):
        raise BadUpdate("bad-values", "an update has a value that no encoder writes")
    return _scaled(scales, nibbles[:values].astype(np.int8) - np.int8(8), INT4_BLOCK)


assert SPARSE_CHUNK == 1 << sparse.INDEX_BITS

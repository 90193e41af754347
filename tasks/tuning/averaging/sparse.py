"""The sparse codec: of each chunk of 4,096 values, the largest few with 2 bits each. No I/O.

After SparseLoCo (arXiv 2508.15706). A chunk has two magnitudes, and each kept value has an index, a
sign and one of the two magnitudes. The rest stays in the sender's error feedback.
"""

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .defaults import MAX_SCALE, SPARSE_CHUNK
from .errors import BadUpdate

Vector: TypeAlias = NDArray[np.float32]
INDEX_BITS: Final = 12
_BITS: Final = INDEX_BITS + 2  # of one kept value: its index, whether it is large, its sign
_F32: Final = np.dtype("<f4")
_LANES: Final = 4  # kept values that fill whole bytes: 4 times 14 bits are 7 bytes


def kept(values: int, keep: int) -> tuple[int, int]:
    """Return the number of chunks, and the number of values kept of all of them together."""
    whole, rest = divmod(values, SPARSE_CHUNK)
    return whole + (rest > 0), whole * keep + _kept_of_rest(rest, keep)


def body_bytes(values: int, keep: int) -> int:
    """Return the bytes of the body of an update."""
    chunks, entries = kept(values, keep)
    return 8 * chunks + -(-entries * _BITS // 8)


def encode(vector: Vector, keep: int) -> bytes:
    """Encode a vector of finite values, of which `keep` in each chunk are sent. Returns the body of
    the update."""
    whole, rest = divmod(vector.size, SPARSE_CHUNK)
    scales, codes = [], []
    parts = [(vector[: whole * SPARSE_CHUNK].reshape(whole, SPARSE_CHUNK), keep)]
    if rest:
        parts.append((vector[whole * SPARSE_CHUNK :].reshape(1, rest), _kept_of_rest(rest, keep)))
    for rows, count in parts:
        if rows.shape[0]:
            some, code = _encode_rows(rows, count)
            scales.append(some.reshape(-1))
            codes.append(code.reshape(-1))
    packed = pack_codes(np.concatenate(codes)) if codes else b""
    return b"".join(each.astype(_F32, copy=False).tobytes() for each in scales) + packed


def decode(body: memoryview, values: int, keep: int) -> Vector:
    """Decode the body of an update, whose length has been checked.

    Raises BadUpdate: `not-finite`, `too-large`, `bad-values` or `bad-indices`.
    """
    chunks, entries = kept(values, keep)
    scales = np.frombuffer(body, _F32, 2 * chunks).reshape(chunks, 2)
    _check_scales(scales)
    codes = unpack_codes(body[8 * chunks :], entries)
    whole, rest = divmod(values, SPARSE_CHUNK)
    vector = np.zeros(values, np.float32)
    split = whole * keep
    _decode_rows(
        codes[:split].reshape(whole, keep),
        scales[:whole],
        vector[: whole * SPARSE_CHUNK].reshape(whole, SPARSE_CHUNK),
    )
    if rest:
        tail = vector[whole * SPARSE_CHUNK :].reshape(1, rest)
        _decode_rows(codes[split:].reshape(1, -1), scales[whole:], tail)
    return vector


def _kept_of_rest(rest: int, keep: int) -> int:
    """Return how many of the values of the last, shorter chunk are kept."""
    return min(rest, -(-rest * keep // SPARSE_CHUNK))


def _encode_rows(rows: Vector, count: int) -> tuple[Vector, NDArray[np.uint16]]:
    """Return the two magnitudes of each row, and the codes of its kept values by index."""
    sizes = np.abs(rows)
    at = np.argpartition(sizes, rows.shape[1] - count, axis=1)[:, rows.shape[1] - count :]
    at = np.sort(at, axis=1)
    chosen = np.take_along_axis(rows, at, axis=1)
    sizes = np.abs(chosen)
    middle = (sizes.max(axis=1, keepdims=True) + sizes.min(axis=1, keepdims=True)) / 2
    large = sizes > middle
    low, high = _mean(sizes, ~large), _mean(sizes, large)
    codes = at.astype(np.uint16) << 2 | large.astype(np.uint16) << 1 | (chosen < 0)
    return np.stack([low, np.maximum(low, high)], axis=1), codes.astype(np.uint16)


def _mean(sizes: Vector, mask: NDArray[np.bool_]) -> Vector:
    """Return the mean of the chosen values in each row, or 0 where none is chosen."""
    counts = np.maximum(mask.sum(axis=1), 1)
    means: Vector = ((sizes * mask).sum(axis=1) / counts).astype(np.float32)
    return means


def _check_scales(scales: Vector) -> None:
    low, high = scales[:, 0], scales[:, 1]
    if not np.isfinite(scales).all():
        raise BadUpdate("not-finite", "an update has magnitudes that are not finite")
    if (low < 0).any() or (low > high).any():
        raise BadUpdate("bad-values", "an update has magnitudes that no encoder writes")
    if (high > MAX_SCALE).any():
        raise BadUpdate("too-large", f"an update has a value beyond {MAX_SCALE:g}")


def _decode_rows(codes: NDArray[np.uint16], scales: Vector, rows: Vector) -> None:
    """Write the kept values of each row. Raises BadUpdate `bad-indices`."""
    at = (codes >> 2).astype(np.int64)
    if at.size and (at.max() >= rows.shape[1] or (np.diff(at, axis=1) <= 0).any()):
        raise BadUpdate("bad-indices", "an update has indices out of range or out of order")
    sizes = np.where(codes & 2, scales[:, 1:], scales[:, :1])
    np.put_along_axis(rows, at, np.where(codes & 1, -sizes, sizes), axis=1)


def pack_codes(codes: NDArray[np.uint16]) -> bytes:
    """Return 14-bit numbers one after the other, the first one in the lowest bits."""
    size = -(-codes.size * _BITS // 8)
    wide = np.zeros(-(-codes.size // _LANES) * _LANES, np.uint64)
    wide[: codes.size] = codes
    lanes = wide.reshape(-1, _LANES)
    words = lanes[:, 0].copy()
    for lane in range(1, _LANES):
        words |= lanes[:, lane] << np.uint64(lane * _BITS)
    return words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :7].tobytes()[:size]


def unpack_codes(data: memoryview, count: int) -> NDArray[np.uint16]:
    """Return `count` 14-bit numbers. Raises BadUpdate if the unused bits at the end are not 0."""
    groups = -(-count // _LANES)
    padded = np.zeros(groups * 7, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    words = np.zeros((groups, 8), np.uint8)
    words[:, :7] = padded.reshape(groups, 7)
    packed = words.reshape(-1).view("<u8")
    lanes = np.stack(
        [packed >> np.uint64(lane * _BITS) & np.uint64(2**_BITS - 1) for lane in range(_LANES)],
        axis=1,
    ).reshape(-1)
    if lanes[count:].any():
        raise BadUpdate("bad-values", "an update has bits after its last value")
    return lanes[:count].astype(np.uint16)

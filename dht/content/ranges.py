"""Encoding of the list of chunks that a peer has, as ranges of indexes into a content. No I/O."""

import struct
from collections.abc import Iterable, Sequence
from operator import lt

from ...transport.lane.frame import Bytes
from ..defaults import HAVE_RANGES


def pack_ranges(held: Iterable[bool], most: int = HAVE_RANGES) -> bytes:
    """Encode which chunks of an ordered list are `held`, as at most `most` ranges.

    Each range is encoded as its start and its stop (exclusive), four bytes each, big-endian.
    Further ranges are left out.
    """
    return pack_indexes((index for index, here in enumerate(held) if here), most)


def pack_indexes(indexes: Iterable[int], most: int = HAVE_RANGES) -> bytes:
    """Encode ascending indexes in the format of `pack_ranges`, as at most `most` ranges."""
    words: list[int] = []
    for index in indexes:
        if words and words[-1] == index:
            words[-1] = index + 1
        elif len(words) == 2 * most:
            break
        else:
            words += [index, index + 1]
    return b"".join(word.to_bytes(4) for word in words)


def read_ranges(payload: Bytes, order: Sequence[str], most: int | None = None) -> list[str] | None:
    """Decode the ranges that a peer sent, and return the digests of these chunks.

    `order` lists the digests of the content. Returns None if the ranges are malformed, or if they
    contain more than `most` chunks.
    """
    data = bytes(payload[: 8 * HAVE_RANGES + 1])  # a payload beyond the limit has an odd length
    if len(data) % 8:
        return None
    words = struct.unpack(f">{len(data) // 4}I", data)
    rising = all(map(lt, words, words[1:]))
    if not rising or words[-1:] > (len(order),):
        return None
    if most is not None and sum(words[1::2]) - sum(words[::2]) > most:
        return None
    return [d for i in range(0, len(words), 2) for d in order[words[i] : words[i + 1]]]

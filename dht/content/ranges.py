"""Encoding of the chunks that a peer holds, as runs of indexes into the content. No I/O."""

import struct
from collections.abc import Iterable, Sequence
from operator import lt

from ...transport.lane.frame import Bytes
from ..defaults import HAVE_RANGES


def pack_ranges(held: Iterable[bool], most: int = HAVE_RANGES) -> bytes:
    """Encode which chunks of an ordered list are held, as at most `most` runs.

    Each run is its start and stop, four bytes each, big-endian.
    """
    return pack_indexes((index for index, here in enumerate(held) if here), most)


def pack_indexes(indexes: Iterable[int], most: int = HAVE_RANGES) -> bytes:
    """Encode ascending indexes as `pack_ranges` does."""
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
    """Decode a peer's ranges to digests; None if malformed, or more than `most` digests."""
    data = bytes(payload[: 8 * HAVE_RANGES + 1])  # one byte more makes a longer payload invalid
    if len(data) % 8:
        return None
    words = struct.unpack(f">{len(data) // 4}I", data)
    rising = all(map(lt, words, words[1:]))
    if not rising or words[-1:] > (len(order),):
        return None
    if most is not None and sum(words[1::2]) - sum(words[::2]) > most:
        return None
    return [d for i in range(0, len(words), 2) for d in order[words[i] : words[i + 1]]]

"""Cells of the key space: one look-up covers the regions of all keys in a cell."""

from collections.abc import Iterable

from ..records.key import KEY_BYTES, SPACE, Key, point

_BITS = 8 * KEY_BYTES


def cells(keys: Iterable[Key], radius: float) -> list[list[Key]]:
    """Group keys by aligned cells of the key space, in ascending order.

    `radius` is the size of a region, as a distance between keys (XOR, as a number). A cell is at
    least as large as a region, so the regions of all its keys are close to it.
    """
    width = min(max(int(radius), 1).bit_length(), _BITS)
    groups: dict[int, list[Key]] = {}
    for key in sorted(set(keys)):
        groups.setdefault(point(key) >> width, []).append(key)
    return list(groups.values())


def cell_radius(radius: float) -> float:
    """Return the largest possible distance (XOR, as a number) between two keys of a cell."""
    return min((1 << min(max(int(radius), 1).bit_length(), _BITS)) - 1, SPACE)


def block_of(key: Key, radius: float) -> int:
    """Return the block of a key. A block is four neighbouring cells.

    `radius` is the size of a region, as in `cells`, a distance between keys.

    The records of a block are packed together: a node gets those of all four cells in one message.
    """
    return point(key) >> (min(max(int(radius), 1).bit_length(), _BITS) + 2)

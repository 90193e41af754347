"""Hash trees over the heads of feeds, which show whether and where two nodes' feeds differ.

Each plot (a kind of feed and one of its parts) has a tree of two levels: a root, and 256 buckets.
An author's bucket is the first byte of SHA-256 of its key. Hashes are taken over sorted lists,
because sums and exclusive ors of hashes can be forged. No I/O. The encoding is in
docs/spec/state.md.
"""

import struct
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping
from hashlib import sha256
from typing import Final

from ...transport.identity import KEY_BYTES
from .entry import Head

Plot = tuple[str, int]
"""A kind of feed and one of its parts; the feeds of one plot differ only in their author."""
HASH_BYTES: Final = 16
"""Size of the hashes in messages."""
_BUCKET: Final = b"shoal/digest/bucket/1"
_ROOT: Final = b"shoal/digest/root/1"
_TOP: Final = b"shoal/digest/top/1"
_ROW: Final = struct.Struct(f">{KEY_BYTES}sQQ32s")
"""An author's key and head. Bucket hashes cover these bytes. Packed rows take less memory than
objects."""


def bucket_of(key: bytes) -> int:
    """Return the number of the bucket, 0 to 255, of the author with this public key."""
    return sha256(key).digest()[0]


class HeadTree:
    """The heads of all feeds of one plot, by the author's public key."""

    __slots__ = ("_buckets", "_hashes", "_root")

    def __init__(self) -> None:
        self._buckets: dict[int, bytes] = {}  # rows, in the order of their keys
        # hashes of the buckets that have not changed since they were computed
        self._hashes: dict[int, bytes] = {}
        self._root: bytes | None = None

    def set(self, key: bytes, head: Head | None) -> None:
        """Set an author's head, or remove it if `head` is None."""
        number = bucket_of(key)
        rows = self._buckets.get(number, b"")
        at, end = _place(rows, key)
        row = b"" if head is None else _ROW.pack(key, *head)
        self._buckets[number] = rows[:at] + row + rows[end:]
        if not self._buckets[number]:
            del self._buckets[number]
        self._hashes.pop(number, None)
        self._root = None

    def head(self, key: bytes) -> Head | None:
        """Return an author's head, or None if it has none."""
        rows = self._buckets.get(bucket_of(key), b"")
        at, end = _place(rows, key)
        return Head(*_ROW.unpack_from(rows, at)[1:]) if at < end else None

    def heads(self, number: int) -> Mapping[bytes, Head]:
        """Return the heads in the bucket with this number, by the author's key and sorted by it."""
        rows = _ROW.iter_unpack(self._buckets.get(number, b""))
        return {key: Head(*head) for key, *head in rows}

    def buckets(self) -> dict[int, bytes]:
        """Return the hash of each bucket that is not empty, by the bucket's number."""
        for number in sorted(self._buckets.keys() - self._hashes.keys()):
            self._hashes[number] = _hashed(_BUCKET, (self._buckets[number],))
        return {number: self._hashes[number] for number in sorted(self._buckets)}

    def root(self) -> bytes:
        if self._root is None:
            parts = (bytes((number,)) + hashed for number, hashed in self.buckets().items())
            self._root = _hashed(_ROOT, parts)
        return self._root

    @property
    def empty(self) -> bool:
        return not self._buckets


class Digest:
    """The trees of all plots that have any head."""

    def __init__(self) -> None:
        self._trees: dict[Plot, HeadTree] = {}

    def set(self, key: bytes, plot: Plot, head: Head | None) -> None:
        """Set the head of an author's feed, or remove it if `head` is None."""
        tree = self._trees.get(plot)
        if tree is None:
            if head is None:
                return
            tree = self._trees[plot] = HeadTree()
        tree.set(key, head)
        if tree.empty:
            del self._trees[plot]

    def head(self, key: bytes, plot: Plot) -> Head | None:
        """Return the head of an author's feed, or None if there is none."""
        tree = self._trees.get(plot)
        return None if tree is None else tree.head(key)

    def tree(self, plot: Plot) -> HeadTree:
        return self._trees.get(plot) or HeadTree()

    def roots(self, plots: Container[Plot] | None = None) -> dict[Plot, bytes]:
        """Return the root of each tree, or only of the trees of `plots`, sorted by plot."""
        return {
            plot: self._trees[plot].root()
            for plot in sorted(self._trees)
            if plots is None or plot in plots
        }

    def top(self, plots: Container[Plot] | None = None) -> bytes:
        """Return one hash over all trees, or only over the trees of `plots`."""
        parts = (
            bytes((len(kind.encode()),)) + kind.encode() + bytes((part,)) + root
            for (kind, part), root in self.roots(plots).items()
        )
        return _hashed(_TOP, parts)

    def of(self, keys: Container[bytes]) -> "Digest":
        """Return a digest that has only the heads of these authors."""
        found = Digest()
        for plot, tree in self._trees.items():
            for number in tree.buckets():
                for key, head in tree.heads(number).items():
                    if key in keys:
                        found.set(key, plot, head)
        return found


def _place(rows: bytes, key: bytes) -> tuple[int, int]:
    """Return (begin, end) of the row with this key in the sorted rows, in bytes.

    If there is no such row, both are the position at which to insert it.
    """
    size = _ROW.size
    rank = bisect_left(
        range(len(rows) // size), key, key=lambda at: rows[at * size : at * size + KEY_BYTES]
    )
    return rank * size, (rank + rows.startswith(key, rank * size)) * size


def _hashed(domain: bytes, parts: Iterable[bytes]) -> bytes:
    return sha256(domain + b"".join(parts)).digest()[:HASH_BYTES]

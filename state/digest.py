"""Hash trees over the heads of feeds: whether two nodes hold the same, and where they do not.

Of each kind and part a tree of two levels: 256 buckets by the first byte of SHA-256 of the author's
key, and a root over them. Hashes are over sorted lists; sums and exclusive ors of hashes can be
forged. Sans-I/O. The bytes: docs/spec/state.md.
"""

import struct
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping
from hashlib import sha256
from typing import Final

from ..transport.identity import KEY_BYTES
from .entry import Head

Plot = tuple[str, int]
"""A kind and a part of it."""
HASH_BYTES: Final = 16
"""Of the hashes that travel."""
_BUCKET: Final = b"shoal/digest/bucket/1"
_ROOT: Final = b"shoal/digest/root/1"
_TOP: Final = b"shoal/digest/top/1"
_ROW: Final = struct.Struct(f">{KEY_BYTES}sQQ32s")
"""A key and its author's head, as a bucket's hash is over them: no object for each of them."""


def bucket_of(key: bytes) -> int:
    """Which of 256 the author with this public key is in."""
    return sha256(key).digest()[0]


class Tree:
    """The heads of one kind and part, by their authors' public keys."""

    __slots__ = ("_buckets", "_hashes", "_root")

    def __init__(self) -> None:
        self._buckets: dict[int, bytes] = {}  # rows, in the order of their keys
        self._hashes: dict[int, bytes] = {}  # of those that have not changed since
        self._root: bytes | None = None

    def set(self, key: bytes, head: Head | None) -> None:
        """The author's head now; None: the feed is not kept."""
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
        """The author's head."""
        rows = self._buckets.get(bucket_of(key), b"")
        at, end = _place(rows, key)
        return Head(*_ROW.unpack_from(rows, at)[1:]) if at < end else None

    def heads(self, number: int) -> Mapping[bytes, Head]:
        """The heads of a bucket, in the order of their keys."""
        rows = _ROW.iter_unpack(self._buckets.get(number, b""))
        return {key: Head(*head) for key, *head in rows}

    def buckets(self) -> dict[int, bytes]:
        """The hash of each bucket that holds a head."""
        for number in self._buckets.keys() - self._hashes.keys():
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
    """The trees of all kinds and parts of which there is a head."""

    def __init__(self) -> None:
        self._trees: dict[Plot, Tree] = {}

    def set(self, key: bytes, plot: Plot, head: Head | None) -> None:
        """An author's head of a kind and part; None: the feed is not kept."""
        tree = self._trees.get(plot)
        if tree is None:
            if head is None:
                return
            tree = self._trees[plot] = Tree()
        tree.set(key, head)
        if tree.empty:
            del self._trees[plot]

    def head(self, key: bytes, plot: Plot) -> Head | None:
        """An author's head of a kind and part."""
        tree = self._trees.get(plot)
        return None if tree is None else tree.head(key)

    def tree(self, plot: Plot) -> Tree:
        return self._trees.get(plot) or Tree()

    def roots(self, plots: Container[Plot] | None = None) -> dict[Plot, bytes]:
        """The root of each tree, or of each of some plots, in the order of their names."""
        return {
            plot: self._trees[plot].root()
            for plot in sorted(self._trees)
            if plots is None or plot in plots
        }

    def top(self, plots: Container[Plot] | None = None) -> bytes:
        """One hash over all of it, or over some plots."""
        parts = (
            bytes((len(kind.encode()),)) + kind.encode() + bytes((part,)) + root
            for (kind, part), root in self.roots(plots).items()
        )
        return _hashed(_TOP, parts)

    def of(self, keys: Container[bytes]) -> "Digest":
        """The same of some authors only."""
        found = Digest()
        for plot, tree in self._trees.items():
            for number in tree.buckets():
                for key, head in tree.heads(number).items():
                    if key in keys:
                        found.set(key, plot, head)
        return found


def _place(rows: bytes, key: bytes) -> tuple[int, int]:
    """Where the row of a key begins and ends; where there is none, twice where it would begin."""
    size = _ROW.size
    rank = bisect_left(
        range(len(rows) // size), key, key=lambda at: rows[at * size : at * size + KEY_BYTES]
    )
    return rank * size, (rank + rows.startswith(key, rank * size)) * size


def _hashed(domain: bytes, parts: Iterable[bytes]) -> bytes:
    return sha256(domain + b"".join(parts)).digest()[:HASH_BYTES]

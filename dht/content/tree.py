"""Tree of a blob: combines the digests of its chunks to one root (docs/spec/blob.md). No I/O.

A blob of up to 32,767 chunks has a top node that lists them; a larger one has one level of nodes
in between. The size determines the shape, so a blob has exactly one root, and a node of the wrong
shape is rejected before anything else is requested.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..defaults import CHUNK, CHUNKS_LIMIT
from ..errors import ModelError

_TAG = b"shoal-blob/1".ljust(16, b"\0")
_HEAD = 32  # bytes before the first digest of a top node: the tag, the size, the depth
_DIGEST = 32
NODE_FANOUT = CHUNK // _DIGEST  # digests per node
TOP_FANOUT = (CHUNK - _HEAD) // _DIGEST


@dataclass(frozen=True, slots=True)
class Top:
    """Verified top node: the blob's size in bytes, depth of the tree, and child digests."""

    root: str
    size: int
    depth: int  # 1 if the children are chunks, 2 if they are nodes
    children: tuple[str, ...]

    def expected(self, index: int) -> int:
        """Return the bytes that the child node of this index must have."""
        nodes = len(self.children)
        leaves = count_chunks(self.size)
        last = leaves - (nodes - 1) * NODE_FANOUT
        return _DIGEST * (last if index == nodes - 1 else NODE_FANOUT)


@dataclass(frozen=True, slots=True)
class Tree:
    """Whole tree: digests of the blob's chunks in order, and of the nodes below the top."""

    root: str
    size: int
    leaves: tuple[str, ...]
    nodes: tuple[str, ...] = ()

    def sizes(self) -> dict[str, int]:
        """Return each chunk with its bytes. Raises ModelError `bad-blob` if one has two sizes."""
        found: dict[str, int] = {}
        for digest, size in self.pieces():
            if found.setdefault(digest, size) != size:
                raise _bad(f"chunk {digest[:16]} would have two sizes")
        return found

    def pieces(self) -> Iterator[tuple[str, int]]:
        """Iterate over the chunks in order, with their bytes: `CHUNK` except for the last."""
        for index, digest in enumerate(self.leaves):
            yield digest, min(CHUNK, self.size - index * CHUNK)


def count_chunks(size: int) -> int:
    """Return the number of chunks of a blob of `size` bytes."""
    return -(-size // CHUNK)


def build(size: int, leaves: Sequence[str]) -> tuple[Tree, dict[str, bytes]]:
    """Build the tree over a blob's chunks; return it and the bytes of its nodes, with the top.

    Raises ModelError `too-large`.
    """
    if len(leaves) > CHUNKS_LIMIT:
        raise ModelError("too-large", f"a blob has at most {CHUNKS_LIMIT} chunks of 1 MiB")
    assert len(leaves) == count_chunks(size)
    nodes: dict[str, bytes] = {}
    below: list[str] = list(leaves)
    depth = 1
    if len(leaves) > TOP_FANOUT:
        depth, below = 2, []
        for start in range(0, len(leaves), NODE_FANOUT):
            data = bytes.fromhex("".join(leaves[start : start + NODE_FANOUT]))
            below.append(digest_of(data))
            nodes[below[-1]] = data
    top = _TAG + size.to_bytes(8) + depth.to_bytes(8) + bytes.fromhex("".join(below))
    root = digest_of(top)
    tree = Tree(root, size, tuple(leaves), tuple(below) if depth == 2 else ())
    return tree, {**nodes, root: top}


def read_top(root: str, data: bytes) -> Top:
    """Decode a top node from any source.

    Raises ModelError `bad-blob`, or `bad-digest` if the bytes do not match the root.
    """
    if digest_of(data) != root:
        raise ModelError("bad-digest", f"the bytes do not match the root {root[:16]}")
    if len(data) < _HEAD or len(data) > CHUNK or data[: len(_TAG)] != _TAG:
        raise _bad("the top node has a wrong header")
    size, depth = int.from_bytes(data[16:24]), int.from_bytes(data[24:32])
    leaves = count_chunks(size)
    if leaves > CHUNKS_LIMIT:
        raise _bad(f"it would have {leaves} chunks, the limit is {CHUNKS_LIMIT}")
    wide = leaves > TOP_FANOUT
    count = -(-leaves // NODE_FANOUT) if wide else leaves
    if depth != 1 + wide or len(data) != _HEAD + _DIGEST * count:
        raise _bad("the shape does not match the size")
    return Top(root, size, depth, split(data[_HEAD:]))


def read_node(top: Top, index: int, data: bytes) -> tuple[str, ...]:
    """Decode the digests in a verified node below the top. Raises ModelError."""
    if len(data) != top.expected(index):
        raise _bad("a node's shape does not match the size")
    return split(data)


def whole(top: Top, nodes: Sequence[tuple[str, ...]]) -> Tree:
    """Combine a top and the digests in its nodes, in order. Raises ModelError `bad-blob`."""
    if top.depth == 1:
        tree = Tree(top.root, top.size, top.children)
    else:
        leaves = tuple(digest for node in nodes for digest in node)
        tree = Tree(top.root, top.size, leaves, top.children)
    tree.sizes()
    return tree


def digest_of(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def split(data: bytes) -> tuple[str, ...]:
    text = data.hex()
    return tuple(text[i : i + 64] for i in range(0, len(text), 64))


def _bad(why: str) -> ModelError:
    return ModelError("bad-blob", f"invalid tree of a blob: {why}")

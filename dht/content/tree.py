"""Tree of a blob: combines the digests of its chunks into one root (docs/spec/blob.md). No I/O.

If a blob has up to 32,767 chunks, its top node lists them. Otherwise the top node lists nodes that
list the chunks. The size of a blob determines the shape of its tree, so a blob has exactly one
root. A node of the wrong shape is rejected before anything else is requested.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..defaults import CHUNK, CHUNKS_LIMIT
from ..errors import ModelError

# First bytes of a top node.
_TAG = b"shoal-blob/1".ljust(16, b"\0")
_HEAD = 32  # bytes before the first digest of a top node: the tag, the size, the depth
_DIGEST = 32  # bytes of a digest
NODE_FANOUT = CHUNK // _DIGEST  # digests per node
TOP_FANOUT = (CHUNK - _HEAD) // _DIGEST  # digests in the top node


@dataclass(frozen=True, slots=True)
class Top:
    """Verified top node: the blob's size in bytes, the depth of its tree, and the child digests."""

    root: str
    size: int
    depth: int  # 1 if the children are chunks, 2 if they are nodes
    children: tuple[str, ...]

    def expected(self, index: int) -> int:
        """Return the number of bytes that the child node with this index must have."""
        nodes = len(self.children)
        leaves = count_chunks(self.size)
        last = leaves - (nodes - 1) * NODE_FANOUT
        return _DIGEST * (last if index == nodes - 1 else NODE_FANOUT)


@dataclass(frozen=True, slots=True)
class Tree:
    """Whole tree of a blob of `size` bytes.

    `leaves` are the digests of the blob's chunks in order. `nodes` are the digests of the nodes
    below the top node, and are empty if the top node lists the chunks.
    """

    root: str
    size: int
    leaves: tuple[str, ...]
    nodes: tuple[str, ...] = ()

    def sizes(self) -> dict[str, int]:
        """Return the chunks without duplicates, each with its size in bytes.

        Raises ModelError `bad-blob` if one chunk would have two sizes.
        """
        found: dict[str, int] = {}
        for digest, size in self.pieces():
            if found.setdefault(digest, size) != size:
                raise _bad(f"chunk {digest[:16]} would have two sizes")
        return found

    def pieces(self) -> Iterator[tuple[str, int]]:
        """Yield the chunks in order, each with its size: `CHUNK` bytes, less for the last one."""
        for index, digest in enumerate(self.leaves):
            yield digest, min(CHUNK, self.size - index * CHUNK)


def count_chunks(size: int) -> int:
    """Return the number of chunks of a blob of `size` bytes."""
    return -(-size // CHUNK)


def build(size: int, leaves: Sequence[str]) -> tuple[Tree, dict[str, bytes]]:
    """Build the tree of a blob from the digests of its chunks (`leaves`).

    Returns the tree, and the bytes of its nodes by digest, including the top node. `size` is in
    bytes. Raises ModelError `too-large` if there are too many chunks.
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

    Raises ModelError: `bad-digest` if the bytes do not match the root, `bad-blob` if the node is
    malformed.
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
    """Return the digests in the child node with this index. Its digest must have been verified.

    Raises ModelError `bad-blob` if the node has the wrong size.
    """
    if len(data) != top.expected(index):
        raise _bad("a node's shape does not match the size")
    return split(data)


def whole(top: Top, nodes: Sequence[tuple[str, ...]]) -> Tree:
    """Combine a top node and the digests in its child nodes, in order, into a tree.

    Raises ModelError `bad-blob` if one chunk would have two sizes.
    """
    if top.depth == 1:
        tree = Tree(top.root, top.size, top.children)
    else:
        leaves = tuple(digest for node in nodes for digest in node)
        tree = Tree(top.root, top.size, leaves, top.children)
    tree.sizes()
    return tree


def digest_of(data: bytes | memoryview) -> str:
    """Return the SHA-256 of the data as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def split(data: bytes) -> tuple[str, ...]:
    """Convert 32-byte digests to a tuple of hex digests."""
    text = data.hex()
    return tuple(text[i : i + 64] for i in range(0, len(text), 64))


def _bad(why: str) -> ModelError:
    return ModelError("bad-blob", f"invalid tree of a blob: {why}")

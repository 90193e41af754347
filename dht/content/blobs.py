"""Blobs on this node: import from files, export to files, and the trees that describe them.

The tree of a blob (`tree.py`) lists the digests of its chunks. Chunks and tree nodes are in the
chunk store. An empty file `blobs/<root>`, the marker, says that the whole tree is on the disk. It
is staged after the nodes, and becomes durable together with them.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...transport.host.seam import Host
from ..defaults import CHUNK, IMPORT_BATCH, TREES_KEPT
from ..errors import ChunkCorrupt, ChunkMissing, ModelError, unreadable
from . import tree
from .chunkstore import ChunkStore, Progress, remove_leftovers
from .content import Content
from .manifest import is_digest
from .tree import Tree


class Blobs:
    """Blobs of this node: markers in `folder`, chunks and tree nodes in `store`.

    Call `open` before any other method.
    """

    def __init__(self, host: Host, folder: Path, store: ChunkStore) -> None:
        self._host = host
        self._folder = folder
        self._store = store
        self._roots: set[str] = set()
        self._trees: OrderedDict[str, tuple[Tree, Content]] = OrderedDict()

    def open(self) -> set[str]:
        """Create the folder, load the roots of the stored blobs, and return them. Blocking.

        Call this after the store's `open`.
        """
        files = self._host.files
        files.make_folder(self._folder)
        self._take_up()
        self._roots = {entry.name for entry in files.list(self._folder) if is_digest(entry.name)}
        return self._roots

    def _take_up(self) -> None:
        """Make the markers durable that a killed process had staged, if their trees are whole.

        Otherwise no root would own the chunks that came with them, and nothing would evict these.
        """
        for name in remove_leftovers(self._host.files, self._folder):
            root = name[1:65]
            with suppress(ModelError):
                self._load(root)
                self._store.stage_marker(self._folder / root)
        with suppress(ModelError):  # the disk is full; they are tried again after the next start
            self._store.settle()

    def roots(self) -> frozenset[str]:
        """Return the roots of the blobs whose tree is on this disk."""
        return frozenset(self._roots)

    async def add(self, path: Path, progress: Progress | None = None) -> Tree:
        """Import a file as a blob, and return its tree.

        Raises NotEnoughDisk if the file does not fit on the disk, and ModelError: `no-file` if it
        does not exist, `unreadable`, `too-large`, or `changed` if it shrinks during the import.
        """
        files, store = self._host.files, self._store
        size = await self._host.offload(files.size, path)
        if size is None:
            raise ModelError("no-file", f"there is no file `{path}`")
        await self._host.offload(store.require_space, size)
        leaves: list[str] = []
        done = 0
        while done < size:
            part = min(IMPORT_BATCH, size - done)
            batch = await self._host.offload(self._read, path, done, part, self._host.now())
            leaves += batch
            done = min(size, done + IMPORT_BATCH)
            if progress is not None:
                progress(done, size)
        found, nodes = tree.build(size, leaves)
        await self.keep(found, nodes)
        return found

    def _read(self, path: Path, offset: int, size: int, now: float) -> list[str]:
        """Read `size` bytes of a file from `offset`, stage their chunks, and return the digests.

        Blocking. `now` is the host's time in seconds. Raises ModelError: `unreadable`, or `changed`
        if the file has fewer bytes.
        """
        try:
            data = self._host.files.read_range(path, offset, size)
        except OSError as error:
            raise unreadable(path, error) from error
        if len(data) != size:
            raise ModelError("changed", f"`{path}` shrank while it was being read")
        view = memoryview(data)
        pieces = (view[at : at + CHUNK] for at in range(0, size, CHUNK))
        return [self._store.add_staged(piece, now) for piece in pieces]

    async def keep(self, found: Tree, nodes: dict[str, bytes]) -> None:
        """Store a tree that was verified, durably. `nodes` maps digests to bytes.

        Raises NotEnoughDisk if the disk is full, and ModelError if a file cannot be written.
        """
        await self.stage(found, nodes)
        await self._host.offload(self._store.settle)

    async def stage(self, found: Tree, nodes: dict[str, bytes]) -> None:
        """Register a tree that was verified. The store's next `settle` makes it durable.

        `nodes` maps digests to bytes. Raises as `keep`.
        """
        await self._host.offload(self._stage, found, nodes, self._host.now())
        await self._know(found)

    def _stage(self, found: Tree, nodes: dict[str, bytes], now: float) -> None:
        """Stage the nodes of a tree, and then its marker. Blocking. Raises as `keep`."""
        for data in nodes.values():
            self._store.add_staged(data, now)
        self._store.stage_marker(self._folder / found.root)

    async def _know(self, found: Tree) -> None:
        """Register a blob whose tree is on the disk, and cache the tree and its content.

        The cache has at most `TREES_KEPT` trees, and evicts the least recently used one.
        """
        # Listing the sizes of millions of chunks takes about a second, hence the offload.
        sizes = await self._host.offload(found.sizes)
        self._roots.add(found.root)
        self._trees[found.root] = found, Content(found.root, "blob", sizes)
        while len(self._trees) > TREES_KEPT:
            self._trees.popitem(last=False)

    async def mend(self, root: str) -> None:
        """Rewrite the missing tree nodes of a blob from the tree in the cache.

        Raises NotEnoughDisk if the disk is full, and the errors of `tree` if the tree is not
        cached.
        """
        found = await self.tree(root)
        nodes = (await self._host.offload(tree.build, found.size, found.leaves))[1]
        await self.keep(found, nodes)

    async def tree(self, root: str) -> Tree:
        """Return the tree of a blob.

        Raises ModelError `unknown-blob` if this node does not have the blob. Raises ChunkMissing or
        ChunkCorrupt if a tree node is lost. In that case, the tree must be fetched again, or the
        file added again.
        """
        return (await self._known(root))[0]

    async def content(self, root: str) -> Content:
        """Return the chunks of a blob. Raises the errors of `tree`."""
        return (await self._known(root))[1]

    async def _known(self, root: str) -> tuple[Tree, Content]:
        """Return the tree and the content of a blob, from the cache or else from the disk.

        If a tree node is lost, the root is removed from the known blobs. Raises the errors of
        `tree`.
        """
        if root not in self._roots:
            raise unknown_blob(root)
        if root not in self._trees:
            try:
                await self._know(await self._host.offload(self._load, root))
            except (ChunkMissing, ChunkCorrupt):
                self._roots.discard(root)
                raise
        self._trees.move_to_end(root)
        return self._trees[root]

    def _load(self, root: str) -> Tree:
        """Read a tree from the chunk store. Blocking.

        Raises ChunkMissing or ChunkCorrupt if a node is lost.
        """
        top = tree.read_top(root, self._store.get(root))
        nodes = [] if top.depth == 1 else top.children
        read = [tree.read_node(top, n, self._store.get(node)) for n, node in enumerate(nodes)]
        return tree.whole(top, read)

    async def write_out(self, root: str, path: Path) -> int:
        """Write a whole blob to a file, verify each chunk, and return the blob's size in bytes.

        Raises ChunkMissing if the blob is not complete, and ModelError if the file cannot be
        written.
        """
        found = await self.tree(root)
        pieces = map(self._store.get, found.leaves)
        await self._host.offload(write_pieces, self._host, path, pieces)
        return found.size

    async def forget(self, root: str) -> None:
        """Remove the marker of a blob. The caller removes its chunks and tree nodes."""
        self._roots.discard(root)
        self._trees.pop(root, None)
        await self._host.offload(self._store.remove_marker, self._folder / root)


def write_pieces(host: Host, path: Path, pieces: Iterator[bytes]) -> None:
    """Write `pieces` in order to the file `path`, which a user named. Blocking.

    Raises ModelError `unwritable` if the operating system refuses the write.
    """
    try:
        host.files.write_pieces(path, pieces, mode=0o644)
    except OSError as error:
        raise ModelError(
            "unwritable",
            f"cannot write `{path}`: {error.strerror or error}",
            hint=f"check the folder and the free disk space: `ls -ld '{path.parent}'`",
        ) from error


def unknown_blob(root: str) -> ModelError:
    """Return the error for a root that is not a blob on this node."""
    return ModelError(
        "unknown-blob",
        f"no blob {ascii(root)[:66]} on this node",
        hint="`shoal blob list` shows the blobs here; `shoal blob get ROOT FILE` fetches one",
    )

"""Blobs on this node: import from files, export to files, and the trees that describe them.

An empty file `blobs/<root>` marks a blob whose tree is here; tree nodes and chunks are in the
chunk store. Writing goes in the order chunks, nodes, marker, so a marker always has a tree.
"""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from ...transport.host.seam import Host
from ..defaults import CHUNK, IMPORT_BATCH, TREES_KEPT
from ..errors import ChunkCorrupt, ChunkMissing, ModelError, unreadable
from . import tree
from .chunkstore import ChunkStore, Progress, remove_leftovers, write
from .content import Content
from .manifest import is_digest
from .tree import Tree


class Blobs:
    """Blobs with markers in `folder` and chunks in `store`. Call `open` first."""

    def __init__(self, host: Host, folder: Path, store: ChunkStore) -> None:
        self._host = host
        self._folder = folder
        self._store = store
        self._roots: set[str] = set()
        self._trees: OrderedDict[str, tuple[Tree, Content]] = OrderedDict()

    def open(self) -> set[str]:
        """Create the folder and read which roots are here; return them. Blocking."""
        files = self._host.files
        files.make_folder(self._folder)
        remove_leftovers(files, self._folder)
        self._roots = {entry.name for entry in files.list(self._folder) if is_digest(entry.name)}
        return self._roots

    def roots(self) -> frozenset[str]:
        """Return the roots of the blobs whose tree is on this disk."""
        return frozenset(self._roots)

    async def add(self, path: Path, progress: Progress | None = None) -> Tree:
        """Import a file. Raises DiskFull, or ModelError `no-file`, `unreadable`, `too-large`,
        `changed`."""
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
        await self._host.offload(self._keep, found, nodes, self._host.now())
        await self._know(found)
        return found

    def _read(self, path: Path, offset: int, size: int, now: float) -> list[str]:
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
        """Store a verified tree received from a peer. Raises DiskFull, ModelError."""
        await self._host.offload(self._keep, found, nodes, self._host.now())
        await self._know(found)

    def _keep(self, found: Tree, nodes: dict[str, bytes], now: float) -> None:
        for data in nodes.values():
            self._store.add_staged(data, now)
        self._store.settle()
        write(self._host.files, self._folder / found.root, b"")

    async def _know(self, found: Tree) -> None:
        # Listing the sizes of millions of chunks takes about a second, hence the offload.
        sizes = await self._host.offload(found.sizes)
        self._roots.add(found.root)
        self._trees[found.root] = found, Content(found.root, "blob", sizes)
        while len(self._trees) > TREES_KEPT:
            self._trees.popitem(last=False)

    async def mend(self, root: str) -> None:
        """Rewrite missing tree nodes from the chunk digests, if these are known.

        Raises what `tree` raises, and DiskFull.
        """
        found = await self.tree(root)
        nodes = (await self._host.offload(tree.build, found.size, found.leaves))[1]
        await self._host.offload(self._keep, found, nodes, self._host.now())

    async def tree(self, root: str) -> Tree:
        """Return the tree of a blob.

        Raises ModelError `unknown-blob`; ChunkMissing or ChunkCorrupt if a tree node is lost: the
        tree has to be fetched, or the file added, again.
        """
        return (await self._known(root))[0]

    async def content(self, root: str) -> Content:
        """Return the chunks of a blob. Raises what `tree` raises."""
        return (await self._known(root))[1]

    async def _known(self, root: str) -> tuple[Tree, Content]:
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
        top = tree.read_top(root, self._store.get(root))
        nodes = [] if top.depth == 1 else top.children
        read = [tree.read_node(top, n, self._store.get(node)) for n, node in enumerate(nodes)]
        return tree.whole(top, read)

    async def write_out(self, root: str, path: Path) -> int:
        """Write a whole blob to a file, verifying each chunk; return its size in bytes.

        Raises ModelError; ChunkMissing if the blob is not complete.
        """
        found = await self.tree(root)
        pieces = map(self._store.get, found.leaves)
        await self._host.offload(write_pieces, self._host, path, pieces)
        return found.size

    async def forget(self, root: str) -> None:
        """Remove the marker of a blob. The caller removes its chunks."""
        self._roots.discard(root)
        self._trees.pop(root, None)
        await self._host.offload(self._host.files.remove, self._folder / root)


def write_pieces(host: Host, path: Path, pieces: Iterator[bytes]) -> None:
    """Write pieces to a file of the user with `Files.write_pieces`. Blocking. Raises ModelError."""
    try:
        host.files.write_pieces(path, pieces, mode=0o644)
    except OSError as error:
        raise ModelError(
            "unwritable",
            f"cannot write `{path}`: {error.strerror or error}",
            hint=f"check the folder and the free disk space: `ls -ld '{path.parent}'`",
        ) from error


def unknown_blob(root: str) -> ModelError:
    return ModelError(
        "unknown-blob",
        f"no blob {ascii(root)[:66]} on this node",
        hint="`shoal blob list` shows the blobs here; `shoal blob get ROOT FILE` fetches one",
    )

"""Stores inputs and outputs of jobs as blobs, and fetches those of other nodes."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from ...dht.content.library import Library
from ...dht.content.manifest import is_digest
from ...dht.content.tree import Tree
from ...dht.defaults import CHUNK
from ...dht.errors import ModelError
from ...dht.exchange.exchange import ChunkExchange
from ...transport.errors import ShoalError
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from . import defaults
from .errors import BadOutcome
from .spec import BlobPart


class Shelves(Protocol):
    """Storage for the inputs and outputs of jobs. `Shelf` implements it.

    A blob with an `author` is kept while that author has jobs, other blobs while a claim of this
    node names them.
    """

    fetched: int
    """Bytes that `read` and `keep` have fetched from other nodes."""

    async def put(self, data: bytes, author: str = "", *, announced: bool = True) -> str:
        """Store a blob, announce it to other nodes if `announced`, and return its root.

        Raises ModelError if there is no space or the disk fails.
        """
        ...

    async def keep(self, root: str, size: int, author: str) -> None:
        """Fetch a whole blob of `size` bytes from any provider, keep it, and announce it.

        Raises the errors of `get`.
        """
        ...

    async def read(self, part: BlobPart, author: str) -> bytes:
        """Return a part of a blob. Its missing chunks are fetched and kept.

        Raises the errors of `get`.
        """
        ...

    async def tidy_kept(self, authors: Callable[[str], bool]) -> None:
        """Delete the blobs of each author for which `authors` returns False."""
        ...

    async def get(self, root: str, size: int) -> bytes:
        """Fetch a result of `size` bytes from any provider.

        Raises ModelError if the fetch fails, and BadOutcome if the blob has another size.
        """
        ...

    async def drop(self, root: str) -> None:
        """Delete a result, unless its blob is also stored for another reason."""
        ...

    async def tidy(self, wanted: Collection[str]) -> None:
        """Delete all results except those in `wanted`, for example results of a run that was
        killed. Blobs with an author stay."""
        ...


@dataclass(frozen=True, slots=True)
class Storage:
    """The library that stores the blobs, with access to the disk quota and to announcements in the
    DHT."""

    library: Library
    make_room: Callable[[int], Awaitable[object]]
    """Frees this many bytes on the disk. Raises ModelError if that is impossible."""
    withdraw: Callable[[str], None]
    """Stops announcing the blob with this root."""


class Shelf(Shelves):
    """Blobs with inputs and outputs of jobs, on one node.

    `folder` holds temporary files, and one marker file for each blob that is stored only for jobs.
    The marker of a blob that is kept for an author contains the author's peer id. `linked` returns
    the peers from which blobs are fetched.
    """

    def __init__(
        self,
        host: Host,
        storage: Storage,
        exchange: ChunkExchange,
        folder: Path,
        *,
        linked: Callable[[], list[PeerId]],
    ) -> None:
        self._host = host
        self._library = storage.library
        self._storage = storage
        self._exchange = exchange
        self._folder = folder
        self._linked = linked
        self.fetched = 0
        self._one = trio.Lock()  # all operations use the same temporary files

    async def put(self, data: bytes, author: str = "", *, announced: bool = True) -> str:
        path = self._folder / "result"
        async with self._one:
            before = self._library.blobs.roots()
            await self._storage.make_room(len(data))
            try:
                await self._host.offload(self._write, path, data)
                root = await self._library.add_blob(path)
                if root not in before:
                    await self._mark(root, author)
            finally:
                await self._remove_file(path)
        if announced:
            await self._exchange.announce(root)
        return root

    async def get(self, root: str, size: int) -> bytes:
        async with self._one:
            here = root in self._library.blobs.roots()
        patience = defaults.FETCH_PATIENCE
        tree = await self._tree(root, size)
        try:
            if tree.size != size:
                raise BadOutcome(f"a result of {size} bytes is a blob of {tree.size}")
            await self._exchange.fetch_blob(root, self._linked, patience=patience, asked=True)
            return await self._read_out(root)
        finally:
            if not here:
                with trio.CancelScope(shield=True):
                    await self._forget(root)

    async def keep(self, root: str, size: int, author: str) -> None:
        tree = await self._kept_tree(root, size, author)
        patience = defaults.FETCH_PATIENCE
        report = await self._exchange.fetch(
            root, tree.leaves, self._linked, patience=patience, asked=True
        )
        self.fetched += report.size
        await self._exchange.announce(root)

    async def read(self, part: BlobPart, author: str) -> bytes:
        tree = await self._kept_tree(part.root, part.size, author)
        first = part.start // CHUNK
        leaves = tree.leaves[first : (part.stop - 1) // CHUNK + 1]
        report = await self._exchange.fetch(
            part.root, leaves, self._linked, patience=defaults.FETCH_PATIENCE, asked=True
        )
        self.fetched += report.size
        data = await self._host.offload(self._read_chunks, leaves)
        return data[part.start - first * CHUNK : part.stop - first * CHUNK]

    def _read_chunks(self, leaves: Sequence[str]) -> bytes:
        return b"".join(map(self._library.store.get, leaves))

    async def _kept_tree(self, root: str, size: int, author: str) -> Tree:
        """Fetch a blob's tree, and mark the blob as kept for an author unless it was here before.

        Raises BadOutcome if the blob has another size.
        """
        async with self._one:
            here = root in self._library.blobs.roots()
        tree = await self._tree(root, size)
        if tree.size != size:
            if not here:
                await self._forget(root)
            raise BadOutcome(f"expected a blob of {size} bytes, got one of {tree.size}")
        if not here:
            async with self._one:
                await self._mark(root, author)
        return tree

    async def _mark(self, root: str, author: str) -> None:
        await self._host.offload(self._write, self._folder / root, author.encode())

    async def tidy_kept(self, authors: Callable[[str], bool]) -> None:
        with suppress(OSError):
            for entry in await self._host.offload(self._host.files.list, self._folder):
                author = await self._author_of(entry.name) if is_digest(entry.name) else ""
                if author and not authors(author):
                    await self.drop(entry.name)

    async def _author_of(self, root: str) -> str:
        """Return the author that a blob is kept for, or ""."""
        with suppress(ModelError):
            return (await self._host.offload(self._read, self._folder / root)).decode()
        return ""

    async def _tree(self, root: str, size: int) -> Tree:
        """Fetch a blob's hash tree. Raises BadOutcome if the blob is larger than `size` bytes.

        In that case, only the top of the tree is fetched.
        """
        patience = defaults.FETCH_PATIENCE
        try:
            return await self._exchange.fetch_tree(root, self._linked, patience=patience, most=size)
        except ModelError as error:
            if error.code == "too-large":
                raise BadOutcome(f"a result of {size} bytes is a larger blob") from None
            raise

    async def drop(self, root: str) -> None:
        path = self._folder / root
        with suppress(OSError):
            if await self._host.offload(self._host.files.size, path) is not None:
                await self._forget(root)
                await self._remove_file(path)

    async def tidy(self, wanted: Collection[str]) -> None:
        with suppress(OSError):
            for entry in await self._host.offload(self._host.files.list, self._folder):
                name = entry.name
                if is_digest(name) and name not in wanted and not await self._author_of(name):
                    await self.drop(name)

    async def _read_out(self, root: str) -> bytes:
        """Return the whole content of a stored blob."""
        path = self._folder / "fetched"
        async with self._one:
            try:
                await self._host.offload(self._write, path, b"")
                await self._library.blobs.write_out(root, path)
                return await self._host.offload(self._read, path)
            finally:
                await self._remove_file(path)

    async def _forget(self, root: str) -> None:
        """Delete a blob and the chunks that nothing else uses."""
        with suppress(ShoalError, OSError):
            if root not in self._library.blobs.roots():
                return
            own = await self._library.parts(root)
            for other in sorted(self._library.everything() - {root}):
                with suppress(ModelError):  # a damaged blob has no chunks to preserve
                    own -= await self._library.parts(other)
            self._storage.withdraw(root)
            await self._library.forget(root)
            await self._host.offload(self._remove, own)

    async def _remove_file(self, path: Path) -> None:
        with trio.CancelScope(shield=True), suppress(OSError):
            await self._host.offload(self._host.files.remove, path)

    def _write(self, path: Path, data: bytes) -> None:
        try:
            self._host.files.make_folder(path.parent)
            self._host.files.write(path, data)
        except OSError as error:
            raise ModelError("unwritable", f"cannot write `{path}`: {error.strerror}") from error

    def _read(self, path: Path) -> bytes:
        try:
            return self._host.files.read(path, limit=defaults.RESULT_BYTES)
        except OSError as error:
            raise ModelError("unreadable", f"cannot read `{path}`: {error.strerror}") from error

    def _remove(self, digests: set[str]) -> None:
        for digest in sorted(digests):
            self._library.store.remove(digest)

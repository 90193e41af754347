"""Stores results that are too large for a claim as blobs, and fetches those of other nodes."""

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from ...dht.content.library import Library
from ...dht.content.manifest import is_digest
from ...dht.content.tree import Tree
from ...dht.errors import ModelError
from ...dht.exchange.exchange import ChunkExchange
from ...transport.errors import ShoalError
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from . import defaults
from .errors import BadOutcome


class Shelves(Protocol):
    """Storage for results that are too large for a claim. `Shelf` implements it."""

    async def put(self, data: bytes) -> str:
        """Store a result as a blob, announce it to other nodes, and return its root.

        Raises ModelError if there is no space or the disk fails.
        """
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
        killed."""
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
    """Blobs with results, on one node.

    `folder` holds temporary files, and one marker file for each blob that is stored only because it
    is a result. `linked` returns the peers from which results are fetched.
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
        self._one = trio.Lock()  # all operations use the same temporary files

    async def put(self, data: bytes) -> str:
        path = self._folder / "result"
        async with self._one:
            before = self._library.blobs.roots()
            await self._storage.make_room(len(data))
            try:
                await self._host.offload(self._write, path, data)
                root = await self._library.add_blob(path)
                if root not in before:
                    await self._host.offload(self._write, self._folder / root, b"")
            finally:
                await self._remove_file(path)
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
                if is_digest(entry.name) and entry.name not in wanted:
                    await self.drop(entry.name)

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
            for other in self._library.everything() - {root}:
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

"""Stores inputs and outputs of jobs as blobs, and fetches those of other nodes."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from ...dht.exchange.fetch import FetchTerms
from ...transport.errors import ShoalError
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from . import defaults
from .allotment import Allotment, JobBlob, Marker
from .errors import BadOutcome, JobsDiskFull
from .spec import BlobPart


class Shelves(Protocol):
    """Storage for the inputs and outputs of jobs. `Shelf` implements it.

    A blob with an `author` is kept while that author has jobs, other blobs while a claim of this
    node names them. Blobs of other nodes' jobs have a part of the disk limit (`allotment.py`), and
    those of this node's own jobs may exceed a default limit.
    """

    fetched: int
    """Bytes that `read` and `keep` have fetched from other nodes."""

    async def put(self, data: bytes, author: str = "", *, announced: bool = True) -> str:
        """Store a blob, announce it to other nodes if `announced`, and return its root.

        Raises ModelError if there is no space or the disk fails.
        """
        ...

    async def keep(self, root: str, size: int, author: str) -> None:
        """Fetch a whole blob of `size` bytes from any provider, pin it for a peer that has asked
        for that, and announce it.

        Raises the errors of `get`. The blob is not pinned then.
        """
        ...

    async def check_room(self, sizes: Mapping[str, int], author: str) -> None:
        """Raise JobsDiskFull if blobs of these sizes, by root, cannot be pinned for an author
        because a peer asks for it."""
        ...

    async def pin(self, roots: Iterable[str], author: str, *, for_peer: bool) -> None:
        """Pin blobs that were read, so that nothing evicts them.

        `for_peer` says that a peer has asked for it. Then this raises JobsDiskFull if there is no
        room for them, and ModelError `not-stored` if a part of one was evicted after it was read.
        """
        ...

    async def read(self, part: BlobPart, author: str, *, for_peer: bool = False) -> bytes:
        """Return a part of a blob. Its missing chunks are fetched, and stay until the space is
        needed. `for_peer` says that a peer has asked for it.

        Raises the errors of `get`.
        """
        ...

    async def tidy_kept(self, authors: Callable[[str], bool]) -> None:
        """Delete the blobs of each author for which `authors` returns False."""
        ...

    async def get(self, root: str, size: int, *, own: bool = True) -> bytes:
        """Fetch a result of `size` bytes from any provider: of this node's `own` job, or of another
        node's.

        Raises ModelError if the fetch fails, JobsDiskFull if it is not `own` and there is no room
        for it, and BadOutcome if the blob has another size.
        """
        ...

    async def drop(self, root: str) -> None:
        """Delete a result, unless its blob is also stored for another reason."""
        ...

    async def tidy(self, wanted: Collection[str]) -> None:
        """Delete all results except those in `wanted`, for example results of a run that was
        killed. Blobs with an author stay."""
        ...


class DiskLimit(Protocol):
    """The part of a `Quota` that the shelf uses. `asked` says that this node's owner asked."""

    async def evict_for(self, needed: int, *, asked: bool = False) -> object: ...
    async def part(self, share: float) -> int: ...


@dataclass(frozen=True, slots=True)
class Storage:
    """The library that stores the blobs, with access to the disk quota and to announcements in the
    DHT."""

    library: Library
    limit: DiskLimit
    withdraw: Callable[[str], None]
    """Stops announcing the blob with this root."""


class Shelf(Shelves):
    """Blobs with inputs and outputs of jobs, on one node.

    `folder` holds temporary files, and one marker file for each blob that is stored only for jobs.
    The marker of a blob that is stored for an author contains the author's peer id. `own` is the id
    of this node, and `linked` returns the peers from which blobs are fetched.
    """

    def __init__(
        self,
        host: Host,
        storage: Storage,
        exchange: ChunkExchange,
        folder: Path,
        *,
        own: PeerId,
        linked: Callable[[], list[PeerId]],
    ) -> None:
        self._host = host
        self._library = storage.library
        self._storage = storage
        self._exchange = exchange
        self._folder = folder
        self._own = own
        self._linked = linked
        self.fetched = 0
        self._one = trio.Lock()  # all operations use the same temporary files
        self._allotment = Allotment()
        self._admitting = trio.Lock()
        self._loaded = False

    async def put(self, data: bytes, author: str = "", *, announced: bool = True) -> str:
        path = self._folder / "result"
        async with self._one:
            before = self._library.blobs.roots()
            await self._storage.limit.evict_for(len(data), asked=author == self._own)
            try:
                await self._host.offload(self._write, path, data)
                root = await self._library.add_blob(path)
                if root not in before:
                    await self._mark(root, Marker((author,) if author else ()))
                    if author not in ("", self._own):
                        size = max(len(data), defaults.LEAST_CHARGE)
                        self._allotment.blobs[root] = JobBlob((author,), size, pinned=True)
            finally:
                await self._remove_file(path)
        if announced:
            await self._exchange.announce(root)
        return root

    async def get(self, root: str, size: int, *, own: bool = True) -> bytes:
        with self._allotment.using(root):
            if own:
                return await self._got(root, size, own=True)
            async with self._admitting:
                await self._admit(size)
            with self._allotment.reserved(size):
                return await self._got(root, size, own=False)

    async def _got(self, root: str, size: int, *, own: bool) -> bytes:
        """Fetch a result, and delete it again if it was not here before."""
        async with self._one:
            here = root in self._library.blobs.roots()
        patience = defaults.FETCH_PATIENCE
        tree = await self._tree(root, size)
        try:
            if tree.size != size:
                raise BadOutcome(f"a result of {size} bytes is a blob of {tree.size}")
            terms = FetchTerms(patience, asked=own)
            await self._exchange.fetch_blob(root, self._linked, terms=terms)
            return await self._read_out(root)
        finally:
            if not here and root not in self._allotment.blobs:  # a peer may have had it pinned now
                with trio.CancelScope(shield=True):
                    await self._forget(root)

    async def keep(self, root: str, size: int, author: str) -> None:
        with self._allotment.using(root):
            tree = await self._marked_tree(root, size, author, for_peer=True)
            try:
                await self._fetch(tree, tree.leaves, author, for_peer=True, pin=True)
                await self.pin([root], author, for_peer=True)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._give_back(root)
                raise
        await self._exchange.announce(root)

    async def _give_back(self, root: str) -> None:
        """Delete a blob that was to be pinned, unless it is pinned already or in use elsewhere."""
        blob = self._allotment.blobs.get(root)
        if blob is not None and not blob.pinned and self._allotment.users(root) == 1:
            await self.drop(root)

    async def read(self, part: BlobPart, author: str, *, for_peer: bool = False) -> bytes:
        with self._allotment.using(part.root):
            tree = await self._marked_tree(part.root, part.size, author, for_peer=for_peer)
            first = part.start // CHUNK
            leaves = tree.leaves[first : (part.stop - 1) // CHUNK + 1]
            await self._fetch(tree, leaves, author, for_peer=for_peer)
            data = await self._host.offload(self._read_chunks, leaves)
        return data[part.start - first * CHUNK : part.stop - first * CHUNK]

    async def _fetch(
        self,
        tree: Tree,
        leaves: Sequence[str],
        author: str,
        *,
        for_peer: bool = False,
        pin: bool = False,
    ) -> None:
        """Fetch chunks of a blob whose tree is here, if there is room for them, also for pinning
        the blob if `pin`. `for_peer` says that a peer has asked for it.

        Raises JobsDiskFull if blobs of other nodes' jobs have no room.
        """
        own = author == self._own and not for_peer
        blob = self._allotment.blobs.get(tree.root)
        if blob is not None and not own:
            async with self._admitting:
                needed = await self._missing(tree, leaves)
                part = await self._admit(needed)
                if pin and not blob.pinned:
                    self._allotment.check_pinned(blob.size + needed, part, author)
                # It stays counted if the fetch fails, because some of the chunks may be here.
                blob.size = min(blob.size + needed, max(tree.size, blob.size))
                blob.used = self._host.wall()
        terms = FetchTerms(defaults.FETCH_PATIENCE, asked=own)
        report = await self._exchange.fetch(tree.root, leaves, self._linked, terms=terms)
        self.fetched += report.size

    async def _missing(self, tree: Tree, leaves: Sequence[str]) -> int:
        """Return how many bytes of these chunks of a blob are not here."""
        sizes = (await self._library.content(tree.root)).chunks
        missing = await self._host.offload(self._library.store.missing, leaves)
        return sum(sizes[leaf] for leaf in missing)

    async def _admit(self, needed: int) -> int:
        """Evict blobs so that `needed` more bytes of other nodes' jobs fit into their part of the
        disk limit, and return the bytes of that part.

        Raises JobsDiskFull if that is impossible. Call it with the lock `_admitting`.
        """
        await self._load()
        for root in self._allotment.forget_lost(self._library.blobs.roots()):
            await self._remove_file(self._folder / root)
        part = await self._storage.limit.part(defaults.DISK_PART)
        for root in self._allotment.to_evict(needed, part):
            if not self._allotment.is_used(root):  # one may have begun while another was deleted
                await self.drop(root)
        if self._allotment.size + needed > part:
            raise JobsDiskFull(needed, part, self._allotment.size)
        return part

    async def _load(self) -> None:
        """Find the blobs of other nodes' jobs that an earlier run has stored, once."""
        if self._loaded:
            return
        try:
            entries = await self._host.offload(self._host.files.list, self._folder)
        except OSError:  # the folder is created with the first marker
            entries = []
        roots = self._library.blobs.roots()
        for root in (each.name for each in entries if each.name in roots):
            marker = await self._marker_of(root)
            made = marker.use == "" and marker.authors in ((), (self._own,))
            if made or root in self._allotment.blobs:
                continue
            with suppress(ModelError):  # a damaged blob takes no more space
                parts = await self._library.parts(root)
                size = await self._host.offload(self._library.store.size_of, parts)
                size, used = max(size, defaults.LEAST_CHARGE), self._library.usage.fetched.get(root)
                pinned = marker.use != "read"
                self._allotment.blobs[root] = JobBlob(marker.authors, size, pinned, used or 0.0)
        self._loaded = True

    async def check_room(self, sizes: Mapping[str, int], author: str) -> None:
        async with self._admitting:
            part, blobs = await self._admit(0), self._allotment.blobs
            new = [size for r, size in sizes.items() if r not in blobs or not blobs[r].pinned]
            self._allotment.check_pinned(sum(new), part, author)

    async def pin(self, roots: Iterable[str], author: str, *, for_peer: bool) -> None:
        async with self._admitting:
            await self._load()
            if for_peer:
                await self._check_pin(roots, author)
            for root in sorted(roots):
                blob = self._allotment.blobs.get(root)
                if blob is None or (blob.pinned and author in blob.authors):
                    continue
                authors = (*blob.authors, author) if blob.pinned else (author,)
                await self._mark(root, Marker(authors, "pinned"))
                await self._library.usage.note_added(root)  # so the quota does not evict it
                blob.authors, blob.pinned = authors, True

    async def _check_pin(self, roots: Iterable[str], author: str) -> None:
        """Raise the errors of `pin`."""
        part, needed = await self._admit(0), 0
        for root in sorted(roots):
            if not await self._is_whole(root):
                raise ModelError("not-stored", f"a part of {root[:16]} was evicted meanwhile")
            blob = self._allotment.blobs.get(root)
            if blob is not None and not blob.pinned:
                needed += blob.size
            elif blob is not None and len({*blob.authors, author}) > defaults.PINNED_AUTHORS:
                raise ModelError("not-stored", f"{root[:16]} is pinned for many authors already")
        if needed:
            self._allotment.check_pinned(needed, part, author)

    async def _is_whole(self, root: str) -> bool:
        """Return whether a blob and all of its chunks are here."""
        if root not in self._library.blobs.roots():
            return False
        leaves = (await self._library.blobs.tree(root)).leaves
        return not await self._host.offload(self._library.store.missing, leaves)

    def _read_chunks(self, leaves: Sequence[str]) -> bytes:
        return b"".join(map(self._library.store.get, leaves))

    async def _marked_tree(
        self, root: str, size: int, author: str, *, for_peer: bool = False
    ) -> Tree:
        """Fetch a blob's tree, and mark the blob as one of an author's jobs unless it was here
        before.

        Raises BadOutcome if the blob has another size.
        """
        async with self._one:
            here = root in self._library.blobs.roots()
        own = author == self._own and not for_peer
        async with self._admitting:
            await self._load()
            if not here and not own:
                await self._admit(defaults.LEAST_CHARGE)
        tree = await self._tree(root, size)
        if tree.size != size:
            if not here:
                await self._forget(root)
            raise BadOutcome(f"expected a blob of {size} bytes, got one of {tree.size}")
        if not here:
            async with self._one:
                await self._mark(root, Marker((author,), "" if own else "read"))
            if not own and root not in self._allotment.blobs:
                self._allotment.blobs[root] = JobBlob((author,), used=self._host.wall())
        return tree

    async def _mark(self, root: str, marker: Marker) -> None:
        await self._host.offload(self._write, self._folder / root, marker.packed())

    async def tidy_kept(self, authors: Callable[[str], bool]) -> None:
        with suppress(OSError):
            for entry in await self._host.offload(self._host.files.list, self._folder):
                marker = await self._marker_of(entry.name) if is_digest(entry.name) else Marker()
                if marker.authors and not any(authors(author) for author in marker.authors):
                    await self.drop(entry.name)

    async def _marker_of(self, root: str) -> Marker:
        """Return the marker of a blob, an empty one if there is none."""
        with suppress(ModelError):
            text = (await self._host.offload(self._read, self._folder / root)).decode()
            return Marker.read(text)
        return Marker()

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
                self._allotment.blobs.pop(root, None)

    async def tidy(self, wanted: Collection[str]) -> None:
        with suppress(OSError):
            for entry in await self._host.offload(self._host.files.list, self._folder):
                name = entry.name
                if not is_digest(name) or name in wanted:
                    continue
                if not (await self._marker_of(name)).authors:
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

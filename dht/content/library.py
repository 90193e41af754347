"""Library: the models and blobs on this node's disk, with their names.

`library.json` maps names to roots, `manifests/<root>` holds encoded manifests, and `chunks/` is the
chunk store. Each file is written atomically, in the order chunks, manifest, name. A name therefore
always has a manifest.
"""

import hashlib
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...transport import naming
from ...transport.host.seam import Host
from ..defaults import LIBRARY_LIMIT, MANIFEST_LIMIT
from ..errors import ModelError, unreadable
from . import canonical
from .blobs import Blobs
from .chunkstore import ChunkStore, Progress, remove_leftovers, write
from .content import Content
from .folder import CheckConfig, import_folder
from .manifest import Manifest, Tensor, is_digest
from .modelnames import check_name, check_new_name, resolve, slug, unknown
from .usage import RootUses


@dataclass(frozen=True, slots=True)
class StoredParts:
    """Parts of a model that are on this disk.

    `chunks` and `size` (bytes) count what is stored, `chunks_total` and `size_total` the whole
    model. `files`, `embedding` and `head` say whether all chunks of that part are stored, and
    `layers` lists the layers that are complete.
    """

    root: str
    chunks: int
    chunks_total: int
    size: int
    size_total: int
    files: bool
    embedding: bool
    layers: tuple[int, ...]
    head: bool

    @property
    def complete(self) -> bool:
        """Whether all chunks of the model are stored."""
        return self.chunks == self.chunks_total


class Library:
    """Models and blobs below `folder`, with their names. Call `open` before any other method.

    `store` is the chunk store. `check_config` raises an error for models that this version cannot
    run. It is applied to models from folders and to manifests from peers.
    """

    def __init__(
        self, host: Host, folder: Path, *, check_config: CheckConfig | None = None
    ) -> None:
        self.folder = folder
        self.store = ChunkStore(host, folder / "chunks")
        self._host = host
        self._check_config = check_config
        self._names: dict[str, str] = {}
        self._roots: set[str] = set()
        self.on_change: list[Callable[[], object]] = []
        """Called after each change of `roots`, with the models whose manifest is on this disk."""
        self._manifests: dict[str, Manifest] = {}
        self._contents: dict[str, Content] = {}  # root -> content, for cached manifests
        self.usage = RootUses(host, folder / "usage.json")
        self.withheld: dict[str, Container[str]] = {}
        """Chunks (by root) that are not served while this node checks that peers have replicas."""
        self.blobs = Blobs(host, folder / "blobs", self.store)

    async def open(self) -> None:
        """Create the folders, remove what a killed process left, and load the names and roots.

        Raises ModelError `bad-library` if library.json is invalid.
        """
        self._names, self._roots = await self._host.offload(self._open)

    def _open(self) -> tuple[dict[str, str], set[str]]:
        """Do the blocking part of `open`; return names with their roots, and the models' roots."""
        files, manifests = self._host.files, self.folder / "manifests"
        self.store.open()
        self.blobs.open()
        self.usage.open()
        files.make_folder(manifests)
        for folder in (self.folder, manifests):
            remove_leftovers(files, folder)
        return self._read()

    async def look(self) -> None:
        """Load the names and roots, and change nothing: another process may be using the folder.

        Raises ModelError `bad-library` if library.json is invalid.
        """
        self._names, self._roots = await self._host.offload(self._read)

    def _read(self) -> tuple[dict[str, str], set[str]]:
        """Return names with their roots, and the models' roots, as they are on the disk."""
        files, manifests = self._host.files, self.folder / "manifests"
        roots = {entry.name for entry in files.list(manifests) if is_digest(entry.name)}
        path = self.folder / "library.json"
        if files.size(path) is None:
            return {}, roots
        try:
            data = files.read(path, limit=LIBRARY_LIMIT)
        except OSError as error:
            raise unreadable(path, error) from None
        return _read_names(data, path), roots

    def names(self) -> dict[str, str]:
        """Return the names given on this node, each with its root, sorted by name."""
        return dict(sorted(self._names.items()))

    def is_named(self, root: str) -> bool:
        """Return whether a root has a name on this node.

        A root gets a name when it is added, fetched by name, or served.
        """
        return root in self._names.values()

    def roots(self) -> frozenset[str]:
        """Return the roots of the models whose manifest is on this disk."""
        return frozenset(self._roots)

    def knows(self, root: str) -> bool:
        """Return whether the manifest or tree of a root is on this disk."""
        return root in self._roots or root in self.blobs.roots()

    async def content(self, root: str) -> Content:
        """Return the chunks of a model or a blob.

        Raises ModelError if this node lacks its manifest or tree.
        """
        if root in self.blobs.roots():
            return await self.blobs.content(root)
        if root not in self._contents:
            manifest = await self.manifest(root)
            self._contents[root] = Content(root, "model", manifest.chunks)
        return self._contents[root]

    def everything(self) -> frozenset[str]:
        """Return the roots of all models and blobs whose manifest or tree is on this disk."""
        return self.roots() | self.blobs.roots()

    async def parts(self, root: str) -> set[str]:
        """Return the digests of all chunks of a root, including tree nodes, stored or not.

        Raises ModelError if the manifest or tree is not on this disk.
        """
        if root in self.blobs.roots():
            tree = await self.blobs.tree(root)
            return {root, *tree.nodes, *tree.leaves}
        return set((await self.content(root)).chunks)

    async def add_blob(self, path: Path, progress: Progress | None = None) -> str:
        """Import a file as a blob, and return its root. Raises the errors of `Blobs.add`."""
        root = (await self.blobs.add(path, progress)).root
        await self.usage.note_added(root)
        return root

    async def forget(self, root: str) -> None:
        """Remove a root and its names. The caller removes the chunks.

        Raises NotEnoughDisk or ModelError if a file cannot be written.
        """
        names = {name: known for name, known in self._names.items() if known != root}
        if names != self._names:
            await self._save_names(names)
        await self.blobs.forget(root)
        self._drop(root)
        self._manifests.pop(root, None)
        self._contents.pop(root, None)
        await self._host.offload(self._host.files.remove, self.folder / "manifests" / root)
        await self.usage.note_added(root)

    async def only_of(self, root: str) -> set[str]:
        """Return the digests of a root's chunks and tree nodes that no other root here uses.

        Raises ModelError if the manifest or tree of `root` is not on this disk.
        """
        own = await self.parts(root)
        for other in sorted(self.everything() - {root}):
            try:
                own -= await self.parts(other)
            except ModelError:
                continue  # its manifest or tree is damaged, so its chunks are useless
        return own

    async def remove(self, root: str) -> None:
        """Remove a root and its names, and delete the chunks that no other root here uses.

        Raises ModelError if the manifest or tree of `root` is not on this disk.
        """
        own = await self.only_of(root)
        await self.forget(root)
        await self._host.offload(self._remove, own)

    def _remove(self, digests: Iterable[str]) -> None:
        """Delete chunks from the store. Blocking."""
        for digest in sorted(digests):
            self.store.remove(digest)

    def resolve(self, text: str, others: Iterable[tuple[str, str]] = ()) -> str:
        """Return the root that `text` refers to.

        The text is a name, the first digits of a root, or `NAME@DIGITS`. `others` are further
        (name, root) pairs, over which the names given on this node take precedence.
        Raises ModelError: `unknown-model` if nothing matches, `ambiguous-model` if several roots
        match.
        """
        if text in self._names:
            return self._names[text]
        known = {*self._names.items(), *others}
        bare = {(root, root) for root in self._roots}
        return resolve(text, known | bare)

    async def add(
        self, folder: Path, name: str | None = None, progress: Progress | None = None
    ) -> tuple[str, Manifest]:
        """Import a Hugging Face folder as a model; return its name and manifest.

        If `name` is None, the name is derived from the folder. Raises ModelError if the folder or
        the name is invalid, and NotEnoughDisk if the model does not fit.
        """
        name = slug(folder) if name is None else naming.normal(name)
        check_new_name(name)
        manifest = await import_folder(
            self._host,
            self.store,
            folder,
            progress=progress,
            check_config=self._check_config,
        )
        await self._save(manifest)
        await self.usage.note_added(manifest.root)
        await self.set_name(name, manifest.root)
        return name, manifest

    async def restore(self, folder: Path, root: str) -> bool:
        """Import a folder again, which rewrites missing chunks of the model `root`.

        Returns whether the folder contains that model. Raises ModelError if the folder is invalid,
        and NotEnoughDisk if the disk is full.
        """
        manifest = await import_folder(
            self._host, self.store, folder, check_config=self._check_config
        )
        if manifest.root == root:
            await self._save(manifest)
        return manifest.root == root

    async def set_name(self, name: str, root: str) -> None:
        """Map `name` to `root`, replacing the root that the name had before.

        Raises ModelError `bad-name` if the name is invalid.
        """
        check_name(name)
        await self._save_names({**self._names, name: root})
        self.usage.note_kept(root)

    async def _save_names(self, names: dict[str, str]) -> None:
        """Write names to library.json, and replace the names in memory by them."""
        data = canonical.dump_json({"names": names}) + b"\n"
        await self._host.offload(write, self._host.files, self.folder / "library.json", data)
        self._names = names

    async def save(self, data: bytes) -> Manifest:
        """Check an encoded manifest from any peer, store it, and return it decoded.

        Raises ModelError if the manifest is invalid, and the errors of `check_config` if this
        version cannot run the model.
        """
        manifest = await self._host.offload(decoded, data)
        if isinstance(manifest, tuple):
            code, message, hint = manifest
            del data  # the traceback would keep the bytes alive, see `decoded`
            raise ModelError(code, message, hint=hint)
        if self._check_config is not None:
            check_shapes = self._check_config(manifest.config)
            check_shapes({role: item.shape for item in manifest.tensors for role in item.roles})
        await self._save(manifest)
        return manifest

    async def _save(self, manifest: Manifest) -> None:
        """Write a manifest to disk and cache it."""
        await self._host.offload(self._write_manifest, manifest)
        self._manifests[manifest.root] = manifest
        if manifest.root not in self._roots:
            self._roots.add(manifest.root)
            self._changed()

    def _drop(self, root: str) -> None:
        if root in self._roots:
            self._roots.remove(root)
            self._changed()

    def _changed(self) -> None:
        for callback in self.on_change:
            callback()

    def _write_manifest(self, manifest: Manifest) -> None:
        """Write a manifest unless the file already has exactly these bytes. Blocking."""
        path, data = self.folder / "manifests" / manifest.root, manifest.encode()
        with suppress(OSError):  # compares the bytes: a damaged file may have the right size
            if self._host.files.read_range(path, 0, len(data) + 1) == data:
                return
        write(self._host.files, path, data)

    async def manifest(self, root: str) -> Manifest:
        """Return a manifest from this disk.

        Raises ModelError: `unknown-model` if this node lacks the manifest, `manifest-corrupt` if it
        is damaged. A damaged manifest is removed, so that it can be fetched or added again.
        """
        if root not in self._roots:
            self._contents.pop(root, None)
            raise unknown(root, ())
        if root not in self._manifests:
            try:
                self._manifests[root] = await self._host.offload(self._read_manifest, root)
            except ModelError as error:
                if error.code == "manifest-corrupt":
                    self._drop(root)
                raise
        return self._manifests[root]

    def _read_manifest(self, root: str) -> Manifest:
        """Read, verify and decode a manifest; remove its file if it is damaged. Blocking."""
        path = self.folder / "manifests" / root
        try:
            data = self._host.files.read_range(path, 0, MANIFEST_LIMIT + 1)
        except OSError as error:
            raise unreadable(path, error) from None
        if hashlib.sha256(data).hexdigest() != root:
            with suppress(OSError):
                self._host.files.remove(path)
            raise ModelError(
                "manifest-corrupt",
                f"`{path}` was damaged and has been removed",
                hint="it is fetched again if a reachable node has it; otherwise add the model "
                "again: `shoal model add FOLDER`",
            )
        return Manifest.decode(data)

    async def manifest_size(self, root: str) -> int:
        """Return the size in bytes of a manifest on this disk, 0 if there is none."""
        path = self.folder / "manifests" / root
        return await self._host.offload(self._host.files.size, path) or 0

    async def manifest_piece(self, root: str, offset: int, size: int) -> tuple[bytes, int]:
        """Return up to `size` bytes of a manifest from `offset`, and the manifest's total size.

        The bytes are not verified. Raises ModelError `unreadable` if the file cannot be read.
        """
        return await self._host.offload(self._read_piece, root, offset, size)

    def _read_piece(self, root: str, offset: int, size: int) -> tuple[bytes, int]:
        """Do the blocking part of `manifest_piece`."""
        files, path = self._host.files, self.folder / "manifests" / root
        try:
            return files.read_range(path, offset, size), files.size(path) or 0
        except OSError as error:
            raise unreadable(path, error) from None

    async def blob(self, root: str, key: str) -> bytes | None:
        """Return a file of the model (`tokenizer`, `chat_template`, …), verified.

        Returns None if the model has no such file. Raises ChunkMissing if the file was not fetched
        yet, ChunkCorrupt if it is damaged, and ModelError if the manifest is not on this disk.
        """
        manifest = await self.manifest(root)
        found = manifest.files.get(key)
        if found is None:
            return None
        chunks = found.chunks
        return await self._host.offload(lambda: b"".join(map(self.store.get, chunks)))

    async def stored_parts(self, root: str) -> StoredParts:
        """Return which parts of a model are on this disk.

        Raises ModelError if the model's manifest is not on this disk.
        """
        manifest = await self.manifest(root)
        return await self._host.offload(self._count_stored, manifest)

    def _count_stored(self, manifest: Manifest) -> StoredParts:
        """Count the stored parts of a model. Blocking."""
        missing = set(self.store.missing(manifest.chunks))

        def whole(tensors: Iterable[Tensor]) -> bool:
            return not any(missing.intersection(tensor.chunks) for tensor in tensors)

        layers = range(manifest.layers)
        return StoredParts(
            root=manifest.root,
            chunks=len(manifest.chunks) - len(missing),
            chunks_total=len(manifest.chunks),
            size=manifest.size - sum(manifest.chunks[digest] for digest in sorted(missing)),
            size_total=manifest.size,
            files=not any(missing.intersection(blob.chunks) for blob in manifest.files.values()),
            embedding=whole(manifest.tensors_of(True, 0, 0, False)),
            layers=tuple(n for n in layers if whole(manifest.tensors_of(False, n, n + 1, False))),
            head=whole(manifest.tensors_of(False, 0, 0, True)),
        )


def decoded(data: bytes) -> Manifest | tuple[str, str, str | None]:
    # An error is returned as (code, message, hint) and not raised: an exception from a thread
    # refers to the frames that it passed, and these would keep 200 MiB of a hostile manifest in
    # memory until the garbage collector runs.
    try:
        return Manifest.decode(data)
    except ModelError as error:
        return error.code, error.message, error.hint


def _read_names(data: bytes, path: Path) -> dict[str, str]:
    """Parse library.json; return its names with their roots. Raises ModelError `bad-library`."""
    try:
        value = canonical.parse_json(data, depth=2)
    except ValueError as error:
        raise _bad_library(path, f"is not valid JSON: {error}") from None
    names = value.get("names") if isinstance(value, dict) else None
    if not isinstance(names, dict) or not all(
        not naming.problem(name) and is_digest(root) for name, root in names.items()
    ):
        raise _bad_library(path, "is not a list of model names")
    return names


def _bad_library(path: Path, what: str) -> ModelError:
    return ModelError(
        "bad-library",
        f"`{path}` {what}",
        hint=f"restore it from a copy, or remove it and add the models again: `rm '{path}'`",
    )

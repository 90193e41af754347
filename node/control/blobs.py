"""Control socket operations on blobs: list, add and get. Specified in docs/spec/control.md."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trio

from ...dht.content.manifest import is_digest
from ...dht.errors import DiskFull, FetchFailed, ModelError
from ...dht.exchange.fetch import FetchReport
from ...transport.shortid import meant
from .. import defaults
from ..models.providers import ALONE, WHO_HAD
from .operations import path_of, progress_to, text_of
from .server import Emit, Operation

if TYPE_CHECKING:
    from ..daemon.daemon import Node


class BlobOperations:
    """Operations on the blobs of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def table(self) -> Mapping[str, Operation]:
        return {"blobs": self.blobs, "blob_add": self.blob_add, "blob_get": self.blob_get}

    async def blobs(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        library = self._node.library
        found = []
        for root in sorted(library.blobs.roots()):
            try:
                content = await library.content(root)
                size = (await library.blobs.tree(root)).size
            except ModelError:  # damaged; getting or adding the blob again repairs it
                continue
            missing = await self._node.host.offload(library.store.missing, content.order)
            found.append(
                {
                    "root": root,
                    "size": size,
                    "chunks": len(content.order),
                    "missing": len(missing),
                    "own": root not in library.usage.fetched,
                }
            )
        return {"blobs": found}

    async def blob_add(self, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        node, path = self._node, path_of(request, "path")
        size = await node.host.offload(node.host.files.size, path)
        await node.quota.evict_for(size or 0, asked=True)
        async with progress_to(emit) as note:
            root = await node.library.add_blob(path, note)
        await node.exchange.announce(root)
        return {"root": root, "size": (await node.library.blobs.tree(root)).size}

    async def blob_get(self, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        node, root, path = self._node, self._root_of(request), path_of(request, "path")
        began = node.host.now()
        node.library.usage.note_asked(root)
        await self._have_tree(root)
        report = await self._fetch(root, emit)
        size = await node.library.blobs.write_out(root, path)
        return {
            "root": root,
            "size": size,
            "fetched": report.size,
            "peers": len(report.by_peer),
            "liars": list(report.liars),
            "seconds": node.host.now() - began,
        }

    def _root_of(self, request: dict[str, Any]) -> str:
        """Return a full root, or the local root that begins with the given text. Raises BadId."""
        root = text_of(request, "root", 256)
        if is_digest(root.lower()):
            return root.lower()
        hint = "a blob on another node needs all 64 hex digits: `shoal blob list --json` there"
        return meant(root, self._node.library.blobs.roots(), "blob", hint=hint)

    async def _have_tree(self, root: str) -> None:
        """Fetch the list of the blob's chunks. If no node claims to hold the blob, ask the linked
        nodes anyway, but only for UNTOLD_PATIENCE seconds. Raises ModelError."""
        node, patience = self._node, defaults.PULL_PATIENCE
        if not node.library.knows(root) and not await node.providers.providers(root):
            patience = defaults.UNTOLD_PATIENCE if node.holdings.linked() else 0.0
        try:
            await node.exchange.fetch_tree(root, node.holdings.linked, patience=patience)
        except FetchFailed as error:
            hint = WHO_HAD.format(root=root) if node.holdings.linked() else ALONE
            what = f"no reachable node holds `{root}`"
            raise FetchFailed(error.code, what, hint=hint) from None

    async def _fetch(self, root: str, emit: Emit) -> FetchReport:
        node = self._node
        async with progress_to(emit) as note, trio.open_nursery() as nursery:

            def on_full(error: DiskFull) -> None:
                nursery.start_soon(emit, {"event": "waiting", "message": error.message})

            return await node.exchange.fetch_blob(
                root,
                node.holdings.linked,
                note,
                patience=defaults.PULL_PATIENCE,
                on_full=on_full,
                asked=True,
            )

"""Control socket operations on blobs: list, add and get. Specified in docs/spec/control.md."""

from collections.abc import Mapping
from pathlib import Path

import trio

from ...dht.content.manifest import is_digest
from ...dht.errors import FetchFailed, ModelError, NotEnoughDisk
from ...dht.exchange.fetch import FetchReport, FetchTerms
from ...transport.host.seam import Host
from ...transport.shortid import meant
from .. import defaults
from ..daemon.content import ContentParts
from ..models.providers import ALONE, WHO_HAD
from .messages import models as messages
from .server import Emit, Operation, operation, progress_to


class BlobOperations:
    """Control socket operations that list, add and fetch the blobs of one node."""

    def __init__(self, host: Host, content: ContentParts) -> None:
        self._host = host
        self._content = content
        self._library = content.library

    def table(self) -> Mapping[str, Operation]:
        return dict(
            (
                operation(messages.ListBlobs, self.blobs),
                operation(messages.AddBlob, self.add),
                operation(messages.GetBlob, self.get),
            )
        )

    async def blobs(self, _ask: messages.ListBlobs, _emit: Emit) -> messages.BlobsView:
        library = self._library
        found = []
        for root in sorted(library.blobs.roots()):
            try:
                content = await library.content(root)
                size = (await library.blobs.tree(root)).size
            except ModelError:  # damaged; getting or adding the blob again repairs it
                continue
            missing = await self._host.offload(library.store.missing, content.order)
            found.append(
                messages.BlobView(
                    root=root,
                    size=size,
                    chunks=len(content.order),
                    missing=len(missing),
                    own=root not in library.usage.fetched,
                )
            )
        return messages.BlobsView(tuple(found))

    async def add(self, ask: messages.AddBlob, emit: Emit) -> messages.AddedBlob:
        library, path = self._library, Path(ask.path)
        size = await self._host.offload(self._host.files.size, path)
        await self._content.quota.evict_for(size or 0, asked=True)
        async with progress_to(emit) as note:
            root = await library.add_blob(path, note)
        await self._content.exchange.announce(root)
        return messages.AddedBlob(root, (await library.blobs.tree(root)).size)

    async def get(self, ask: messages.GetBlob, emit: Emit) -> messages.FetchedBlob:
        root, began = self._root_of(ask.root), self._host.now()
        self._library.usage.note_asked(root)
        await self._have_tree(root)
        report = await self._fetch(root, emit)
        size = await self._library.blobs.write_out(root, Path(ask.path))
        return messages.FetchedBlob(
            root=root,
            size=size,
            fetched=report.size,
            peers=len(report.by_peer),
            liars=report.liars,
            seconds=self._host.now() - began,
        )

    def _root_of(self, root: str) -> str:
        """Return `root` if it is complete, else the root of the local blob that begins with it.

        Raises BadId if no local blob matches, or more than one.
        """
        if is_digest(root.lower()):
            return root.lower()
        hint = "a blob on another node needs all 64 hex digits: `shoal blob list --json` there"
        return meant(root, self._library.blobs.roots(), "blob", hint=hint)

    async def _have_tree(self, root: str) -> None:
        """Fetch the list of the blob's chunks, unless this node has it.

        If no node claims to hold the blob, the linked nodes are asked anyway, but only for
        UNTOLD_PATIENCE seconds. Raises ModelError, which is FetchFailed if no reachable node has
        the list.
        """
        content, linked = self._content, self._content.inventory.linked
        patience = defaults.PULL_PATIENCE
        if not content.library.knows(root) and not await content.providers.providers(root):
            patience = defaults.UNTOLD_PATIENCE if linked() else 0.0
        try:
            await content.exchange.fetch_tree(root, linked, patience=patience)
        except FetchFailed as error:
            hint = WHO_HAD.format(root=root) if linked() else ALONE
            what = f"no reachable node holds `{root}`"
            raise FetchFailed(error.code, what, hint=hint) from None

    async def _fetch(self, root: str, emit: Emit) -> FetchReport:
        content = self._content
        async with progress_to(emit) as note, trio.open_nursery() as nursery:

            def on_full(error: NotEnoughDisk) -> None:
                nursery.start_soon(emit, messages.DiskFullWait(error.message))

            return await content.exchange.fetch_blob(
                root,
                content.inventory.linked,
                note,
                FetchTerms(defaults.PULL_PATIENCE, asked=True, on_full=on_full),
            )

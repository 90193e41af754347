"""Control socket operations on LoRA adapters. Specified in docs/spec/control.md."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...dht.content.library import Library
from ...dht.content.manifest import is_digest
from ...dht.content.modelnames import check_new_name
from ...dht.errors import ModelError
from ...dht.exchange.fetch import FetchTerms
from ...tasks.adapters.adapters import KnownAdapter, spans_of
from ...tasks.adapters.defaults import ADAPTER_BYTES
from ...transport.host.seam import Host
from .. import defaults
from ..daemon.content import ContentParts
from .messages import adapters as messages
from .messages.models import Removed
from .removal import Removal
from .server import Emit, Operation, operation, progress_to


class AdapterOperations:
    """Control socket operations on the adapters of one node."""

    def __init__(self, host: Host, content: ContentParts, removal: Removal) -> None:
        self._host = host
        self._content = content
        self._adapters = content.adapters
        self._removal = removal

    def table(self) -> Mapping[str, Operation]:
        return dict(
            (
                operation(messages.ListAdapters, self.adapters),
                operation(messages.ShowAdapter, self.show),
                operation(messages.AddAdapter, self.add),
                operation(messages.PullAdapter, self.pull),
                operation(messages.RemoveAdapter, self.remove),
            )
        )

    async def adapters(self, _ask: messages.ListAdapters, _emit: Emit) -> messages.AdaptersView:
        library = self._content.library
        return adapters_view(await self._adapters.all(), library)

    async def show(self, ask: messages.ShowAdapter, _emit: Emit) -> messages.AdapterView:
        name, root = await self._adapters.resolve(ask.name)
        return _view(await self._adapters.known(name, root), self._content.library)

    async def add(self, ask: messages.AddAdapter, _emit: Emit) -> messages.AdapterView:
        content = self._content
        base = None if ask.model is None else (await content.names.resolve(ask.model)).root
        if base is not None:
            await content.sources.manifest(base)  # fetched if it is not here
        folder, size = Path(ask.path), self._host.files.size
        weights = await self._host.offload(size, folder / "adapter_model.safetensors")
        await content.quota.evict_for(2 * (weights or 0), asked=True)  # with the temporary file
        added = await self._adapters.add(folder, ask.name, base)
        await content.exchange.announce(added.root)
        return _view(added, content.library)

    async def pull(self, ask: messages.PullAdapter, emit: Emit) -> messages.AdapterView:
        """Fetch a whole adapter. Raises ModelError `bad-adapter` if the blob is none."""
        content, root = self._content, ask.root.lower()
        check_new_name(ask.name)
        if not is_digest(root):
            raise ModelError(
                "bad-digest",
                f"expected 64 hex digits, got {ascii(ask.root)[:80]}",
                hint="`shoal adapter show NAME` on the node that has it prints its hash",
            )
        content.library.usage.note_asked(root)
        linked, patience = content.inventory.linked, defaults.PULL_PATIENCE
        await content.exchange.fetch_tree(root, linked, patience=patience, most=ADAPTER_BYTES)
        terms = FetchTerms(patience, asked=True)
        async with progress_to(emit) as note:
            await content.exchange.fetch_blob(root, linked, note, terms)
        pulled = _view(await self._adapters.known(ask.name, root), content.library)
        await self._adapters.set_name(ask.name, root)
        return pulled

    async def remove(self, ask: messages.RemoveAdapter, _emit: Emit) -> Removed:
        """Remove an adapter and its names. Sessions that use it continue."""
        _, root = await self._adapters.resolve(ask.name)
        names = tuple(n for n, held in (await self._adapters.names()).items() if held == root)
        removed = await self._removal.remove_content(root, sure=ask.sure)
        if ask.sure:
            await self._adapters.forget(root)
        return replace(removed, kind="adapter", names=names)


def adapters_view(known: list[KnownAdapter], library: Library) -> messages.AdaptersView:
    """Describe the adapters of a library whose head this node has."""
    return messages.AdaptersView(
        tuple(_view(each, library) for each in known if each.head is not None)
    )


def _view(known: KnownAdapter, library: Library) -> messages.AdapterView:
    if known.head is None:
        raise ModelError("no-adapter", f"the adapter {known.root[:16]} is not complete here")
    return adapter_view(known, library)


def adapter_view(known: KnownAdapter, library: Library) -> messages.AdapterView:
    """Describe an adapter whose head this node has."""
    assert known.head is not None
    terms = known.head.terms
    return messages.AdapterView(
        name=known.name or known.root[:16],
        root=known.root,
        base=terms.base,
        model=next((name for name, root in library.names().items() if root == terms.base), None),
        rank=terms.rank,
        alpha=terms.alpha,
        rslora=terms.rslora,
        scale=terms.scale,
        dtype=terms.dtype,
        modules=terms.modules,
        layers=spans_of(terms.layers),
        size=known.size,
    )

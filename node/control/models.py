"""Control socket operations on models. Specified in docs/spec/control.md."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import trio

from ...dht.content.library import Library
from ...dht.content.manifest import Manifest
from ...dht.errors import DiskFull, FetchFailed, ModelError, QuotaFull
from ...dht.names import Meaning, Voucher, spelled
from .. import defaults
from ..models.providers import ALONE, WHO_HAD
from . import views
from .operations import maybe, path_of, progress_to, text_of
from .server import Emit, Operation

if TYPE_CHECKING:
    from ..daemon.daemon import Node

NAME_LIMIT = 256  # characters of a model's name or root


class ModelOperations:
    """Operations on the models of one node and its swarm."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def table(self) -> Mapping[str, Operation]:
        return {
            "models": self.models,
            "model_add": self.model_add,
            "model_show": self.model_show,
            "model_pull": self.model_pull,
        }

    async def models(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        found = views.swarm_models(self._node.directory, self._node.library)
        found += await unnamed(self._node.library, {each["root"] for each in found})
        lacking = {
            each["root"]: await self._missing(each["root"]) for each in found if each["local"]
        }
        return {"models": [each | {"lacks": lacking.get(each["root"])} for each in found]}

    async def _missing(self, root: str) -> int | None:
        """Count the chunks of a model that are not on this disk; None if that is unknown."""
        try:
            held = await self._node.library.holdings(root)
        except ModelError:  # the manifest is damaged and is fetched again
            return None
        return held.chunks_total - held.chunks

    async def model_add(self, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        node, folder = self._node, path_of(request, "path")
        name = maybe(request, "name", lambda r, k: text_of(r, k, NAME_LIMIT))
        before = node.library.names()
        async with progress_to(emit) as note:
            added, manifest = await node.library.add(folder, name, note)
        await node.holdings.announce()
        await node.exchange.announce(manifest.root)
        return views.added_entry(added, manifest, before)

    async def model_show(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """Describe a model, its vouchers, and what else its name may mean."""
        node = self._node
        asked = text_of(request, "name", NAME_LIMIT)
        meaning = await self._meant(asked)
        known = meaning.root in node.library.roots()
        manifest = await node.sources.manifest(meaning.root)
        if not known:
            await node.quota.pass_through(meaning.root, 0)
        all_meant = await node.names.meanings(asked, timeout=defaults.SHOW_TIME)
        members = node.directory.members()
        names = [model.name for model in views.named_models(members) if model.root == meaning.root]
        name = meaning.name or next(iter(names), meaning.root[:16])
        local = meaning.root in node.library.roots()
        vouchers = next((one.vouchers for one in all_meant if one.root == meaning.root), ())
        others = [one for one in all_meant if one.root != meaning.root]
        return views.model_view(name, manifest, members, local=local) | {
            "vouchers": voucher_views(vouchers or meaning.vouchers),
            "others": [
                {"name": spelled(one, all_meant), "vouchers": voucher_views(one.vouchers)}
                for one in others
            ],
        }

    async def _meant(self, asked: str) -> Meaning:
        """Resolve a name. Raises ModelError, with a hint if no node is linked."""
        try:
            return await self._node.names.resolve(asked)
        except ModelError as error:
            if error.code != "unknown-model" or self._node.holdings.linked():
                raise
            raise ModelError(error.code, error.message, hint=ALONE) from None

    # Pulling.

    async def model_pull(self, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Fetch a whole model from its providers. Chunks stay if the client disconnects."""
        node = self._node
        asked = text_of(request, "name", NAME_LIMIT)
        meaning = await self._meant(asked)
        root = meaning.root
        await emit({"event": "resolved", **meaning_view(meaning)})
        await self._find_holders(meaning)
        began = node.host.now()
        node.library.usage.note_asked(root)
        try:
            manifest = await self._manifest(root)
            report = await self._fetch(manifest, emit)
        except (DiskFull, QuotaFull) as error:
            hint = "free some space and repeat the command: it continues where it stopped"
            raise ModelError(error.code, error.message, hint=hint) from None
        name = await self._keep_name(meaning)
        await node.holdings.announce()
        return views.model_entry(name, manifest, local=True) | {
            "vouchers": voucher_views(meaning.vouchers),
            "fetched": report.size,
            "peers": len(report.by_peer),
            "liars": list(report.liars),
            "seconds": node.host.now() - began,
        }

    def _linked(self, root: str) -> list[Any]:
        return self._node.sources.holders(root)

    async def _manifest(self, root: str) -> Manifest:
        return await self._node.sources.manifest(root, patience=defaults.PULL_PATIENCE)

    async def _fetch(self, manifest: Manifest, emit: Emit) -> Any:
        root = manifest.root
        async with progress_to(emit) as note:
            return await self._node.exchange.fetch(
                root,
                list(manifest.chunks),
                lambda: self._linked(root),
                note,
                patience=defaults.PULL_PATIENCE,
                asked=True,
            )

    async def _find_holders(self, meaning: Meaning) -> None:
        """Raise FetchFailed if the model is incomplete here and no node claims to hold it."""
        node, root = self._node, meaning.root
        if await self._is_whole(root):
            return
        for _ in range(defaults.PULL_LOOKS):  # a recent import may not be announced yet
            if self._linked(root) or await node.providers.providers(root):
                return
            await trio.sleep(defaults.PULL_PAUSE)
        raise FetchFailed(
            "no-source",
            f"no reachable node holds `{spelled(meaning)}`",
            hint=WHO_HAD.format(root=root) if node.holdings.linked() else ALONE,
        )

    async def _is_whole(self, root: str) -> bool:
        if root not in self._node.library.roots():
            return False
        try:
            return (await self._node.library.holdings(root)).complete
        except ModelError:  # the manifest is damaged and is fetched again
            return False

    async def _keep_name(self, meaning: Meaning) -> str:
        """Name the pulled model here as well, unless that name means another model here."""
        library, root = self._node.library, meaning.root
        names = library.names()
        if meaning.name and names.get(meaning.name, root) == root:
            await library.set_name(meaning.name, root)
            return meaning.name
        return next((name for name, known in names.items() if known == root), root[:16])


async def unnamed(library: Library, named: Collection[str]) -> list[dict[str, Any]]:
    """Describe the models of a library that have no name, for example after the name was given to
    another model. Leave out those of which only a few files are needed for prompts."""
    entries = []
    for root in sorted(library.roots() - set(named) - set(library.usage.passing)):
        with suppress(ModelError):  # damaged; fetching or adding it again repairs it
            manifest = await library.manifest(root)
            entries.append(views.model_entry(root[:16], manifest, local=True))
    return entries


def meaning_view(meaning: Meaning) -> dict[str, Any]:
    """Describe what a name means, for JSON."""
    return {
        "name": meaning.name or None,
        "root": meaning.root,
        "vouchers": voucher_views(meaning.vouchers),
    }


def voucher_views(vouchers: Iterable[Voucher]) -> list[dict[str, Any]]:
    """Describe at most VOUCHERS_SHOWN vouchers, with source and age, the nearest first."""
    return [
        {"peer": each.peer, "source": each.source.name.lower(), "age_s": each.age}
        for each in list(vouchers)[: defaults.VOUCHERS_SHOWN]
    ]

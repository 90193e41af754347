"""Control socket operations on models. Specified in docs/spec/control.md."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

import trio

from ...dht.content.library import Library
from ...dht.content.manifest import Manifest
from ...dht.errors import FetchFailed, ModelError, NotEnoughDisk, QuotaFull
from ...dht.exchange.fetch import FetchReport, FetchTerms
from ...dht.names import NameMeaning, Voucher, spelled
from ...state.directory import Directory
from ...tasks.models.adding import Added, Source, add_model, quantise, quantised_name
from ...tasks.sharing.offers import WORD, SharedOffer
from ...transport import naming, shortid
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from .. import defaults
from ..daemon.content import ContentParts
from ..daemon.sharing import SharingParts
from ..models.providers import ALONE, WHO_HAD
from . import views
from .messages import models as messages
from .messages.encoding import extended
from .server import Emit, Operation, operation, progress_to
from .sharing import offer_views


class ModelOperations:
    """Control socket operations on the models that one node and its swarm know."""

    def __init__(
        self, host: Host, content: ContentParts, directory: Directory, sharing: SharingParts
    ) -> None:
        self._host = host
        self._content = content
        self._library = content.library
        self._directory = directory
        self._sharing = sharing

    def table(self) -> Mapping[str, Operation]:
        return dict(
            (
                operation(messages.ListModels, self.models),
                operation(messages.AddModel, self.add),
                operation(messages.QuantizeModel, self.quantize),
                operation(messages.ShowModel, self.show),
                operation(messages.PullModel, self.pull),
            )
        )

    async def models(self, _ask: messages.ListModels, _emit: Emit) -> messages.ModelsView:
        found = views.swarm_models(self._directory, self._library)
        found += await unnamed(self._library, {each.root for each in found})
        lacking = {each.root: await self._missing(each.root) for each in found if each.local}
        return messages.ModelsView(
            tuple(
                extended(messages.ListedModel, each, lacks=lacking.get(each.root)) for each in found
            ),
            offer_views(self._sharing, self._directory.own().peer),
        )

    async def _missing(self, root: str) -> int | None:
        """Return the number of a model's chunks that are not on this disk. Returns None if the
        manifest is damaged, because the number is then unknown."""
        try:
            held = await self._library.stored_parts(root)
        except ModelError:  # the manifest is damaged and is fetched again
            return None
        return held.chunks_total - held.chunks

    async def add(self, ask: messages.AddModel, emit: Emit) -> messages.AddedModel:
        before = self._library.names()
        async with progress_to(emit) as note:
            added = await add_model(self._host, self._library, source_of(ask), ask.name, note)
        return await self._announced(added, before)

    async def quantize(self, ask: messages.QuantizeModel, emit: Emit) -> messages.AddedModel:
        before = self._library.names()
        root = self._library.resolve(ask.model)
        name = ask.name or quantised_name(self._library, ask.model, ask.to)
        async with progress_to(emit) as note:
            added = await quantise(self._host, self._library, root, ask.to, name, note)
        return await self._announced(added, before)

    async def _announced(self, added: Added, before: Mapping[str, str]) -> messages.AddedModel:
        """Tell others about a model that was added, and describe it."""
        await self._content.inventory.announce()
        await self._content.exchange.announce(added.manifest.root)
        return views.added_model(added, before)

    async def show(self, ask: messages.ShowModel, _emit: Emit) -> messages.ShownModel:
        """Describe a model, the nodes that vouch for its name, and the other models that the name
        may mean."""
        content, library, directory = self._content, self._library, self._directory
        meaning = await self._meant(ask.name)
        known = meaning.root in library.roots()
        manifest = await content.sources.manifest(meaning.root)
        if not known:
            await content.quota.pass_through(meaning.root, 0)
        all_meant = await content.names.meanings(ask.name, timeout=defaults.SHOW_TIME)
        members = dict(directory.members())  # which do not change while the thread reads them
        names = [model.name for model in views.named_models(members) if model.root == meaning.root]
        name = meaning.name or next(iter(names), meaning.root[:16])
        local = meaning.root in library.roots()
        vouchers = next((one.vouchers for one in all_meant if one.root == meaning.root), ())
        others = (
            messages.OtherMeaning(spelled(one, all_meant), voucher_views(one.vouchers))
            for one in all_meant
            if one.root != meaning.root
        )
        # A hostile config takes long: 1 s for 40,000 weights with layouts of their own.
        shown = await self._host.offload(
            partial(views.shown_model, name, manifest, members, local=local)
        )
        return replace(
            shown,
            vouchers=voucher_views(vouchers or meaning.vouchers),
            others=tuple(others),
        )

    async def _meant(self, asked: str) -> NameMeaning:
        """Return the model that the name `asked` means.

        Raises ModelError if the name is unknown or ambiguous. If no node is linked, its hint says
        how to connect.
        """
        try:
            return await self._content.names.resolve(asked)
        except ModelError as error:
            if error.code != "unknown-model":
                raise
            if shared := self._sharing.answering.shared(asked):
                raise without_root(asked, shared[0]) from None
            if self._content.inventory.linked():
                raise
            raise ModelError(error.code, error.message, hint=ALONE) from None

    # Pulling.

    async def pull(self, ask: messages.PullModel, emit: Emit) -> messages.PulledModel:
        """Fetch a whole model from its providers. If the client disconnects, the chunks that have
        arrived are kept.

        Raises ModelError if there is no such model, or it cannot be fetched or stored.
        """
        meaning = await self._meant(ask.name)
        root = meaning.root
        vouchers = voucher_views(meaning.vouchers)
        await emit(messages.Resolved(meaning.name or None, root, vouchers))
        await self._find_providers(meaning)
        began = self._host.now()
        self._library.usage.note_asked(root)
        try:
            manifest = await self._manifest(root)
            report = await self._fetch(manifest, emit)
        except (NotEnoughDisk, QuotaFull) as error:
            hint = "free some space and repeat the command: it continues where it stopped"
            raise ModelError(error.code, error.message, hint=hint) from None
        name = await self._keep_name(meaning)
        await self._content.inventory.announce()
        entry = views.model_entry(name, manifest, local=True)
        return extended(
            messages.PulledModel,
            replace(entry, vouchers=vouchers),
            fetched=report.size,
            peers=len(report.by_peer),
            liars=report.liars,
            seconds=self._host.now() - began,
        )

    def _linked(self, root: str) -> list[PeerId]:
        return self._content.sources.providers(root)

    async def _manifest(self, root: str) -> Manifest:
        return await self._content.sources.manifest(root, patience=defaults.PULL_PATIENCE)

    async def _fetch(self, manifest: Manifest, emit: Emit) -> FetchReport:
        root = manifest.root
        async with progress_to(emit) as note:
            return await self._content.exchange.fetch(
                root,
                list(manifest.chunks),
                lambda: self._linked(root),
                note,
                FetchTerms(defaults.PULL_PATIENCE, asked=True),
            )

    async def _find_providers(self, meaning: NameMeaning) -> None:
        """Return if this node has the whole model, or some node claims to hold it. Raises
        FetchFailed if neither is the case after several look-ups."""
        content, root = self._content, meaning.root
        if await self._is_whole(root):
            return
        for _ in range(defaults.PULL_LOOKS):  # a recent import may not be announced yet
            if self._linked(root) or await content.providers.providers(root):
                return
            await trio.sleep(defaults.PULL_PAUSE)
        raise FetchFailed(
            "no-source",
            f"no reachable node holds `{spelled(meaning)}`",
            hint=WHO_HAD.format(root=root) if content.inventory.linked() else ALONE,
        )

    async def _is_whole(self, root: str) -> bool:
        """Return whether this node's library has every chunk of a model."""
        if root not in self._library.roots():
            return False
        try:
            return (await self._library.stored_parts(root)).complete
        except ModelError:  # the manifest is damaged and is fetched again
            return False

    async def _keep_name(self, meaning: NameMeaning) -> str:
        """Give the pulled model its name on this node as well, unless the name means another model
        here. Return the name under which the model is known here."""
        library, root = self._library, meaning.root
        names = library.names()
        if meaning.name and names.get(meaning.name, root) == root:
            await library.set_name(meaning.name, root)
            return meaning.name
        return next((name for name, known in names.items() if known == root), root[:16])


def without_root(asked: str, offer: SharedOffer) -> ModelError:
    """Return the error for a shared model where one with a root is needed."""
    peer = shortid.short(offer.peer)
    return ModelError(
        "no-root",
        f"`{naming.spelled(asked)}` is served by an engine of {peer}, which shares it ({WORD})",
        hint="`shoal run NAME TEXT` asks it; it cannot be shown, fetched or served",
    )


def source_of(ask: messages.AddModel) -> Source:
    """Return where a model comes from, as a request says."""
    return Source(ask.origin, ask.path, ask.place or "", ask.token or "")


async def unnamed(library: Library, named: Collection[str]) -> list[messages.ModelEntry]:
    """Describe the models of a library that have no name, for example because their name was given
    to another model.

    Models of which the library has only the few files that prompts need are left out. `named` has
    the roots to leave out as well.
    """
    entries = []
    for root in sorted(library.roots() - set(named) - set(library.usage.passing)):
        with suppress(ModelError):  # damaged; fetching or adding it again repairs it
            manifest = await library.manifest(root)
            entries.append(views.model_entry(root[:16], manifest, local=True))
    return entries


def voucher_views(vouchers: Iterable[Voucher]) -> tuple[messages.VoucherView, ...]:
    """Describe the first VOUCHERS_SHOWN vouchers, in the given order."""
    return tuple(
        messages.VoucherView(each.peer, each.source.name.lower(), each.age)
        for each in list(vouchers)[: defaults.VOUCHERS_SHOWN]
    )

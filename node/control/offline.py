"""Operations that commands perform directly on a data folder while no daemon runs on it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...dht.content.library import Library
from ...dht.content.manifest import Manifest
from ...dht.content.modelnames import unknown
from ...dht.errors import ModelError
from ...tasks.adapters.adapters import Adapters
from ...tasks.engine.families import check_model
from ...tasks.models import adding
from ...tasks.models.adding import quantise, quantised_name
from ...transport.host.seam import Host
from ..folder import open_folder
from ..settings.config import DataFolder
from ..settings.settings import set_key, view
from .adapters import adapter_view, adapters_view
from .messages.adapters import AdaptersView, AdapterView
from .messages.encoding import extended
from .messages.models import (
    AddedModel,
    AddModel,
    ListedModel,
    ModelsView,
    QuantizeModel,
    Removed,
    ShownModel,
)
from .messages.settings import ChangedSetting, SettingsView
from .models import source_of, unnamed
from .removal import loss_view, model_meant
from .views import added_model, model_entry, shown_model


async def add_model(
    host: Host, data: Path, ask: AddModel, progress: Callable[[int, int], None]
) -> AddedModel:
    """Add a model to the library, while holding the lock of the data folder.

    `progress` is called with the bytes done and in total. Raises DataFolderInUse if a daemon runs,
    and ModelError if the model cannot be added.
    """
    lock = await open_folder(host, DataFolder(data))
    try:
        library = await open_library(host, data)
        before = library.names()
        added = await adding.add_model(host, library, source_of(ask), ask.name, progress)
        return added_model(added, before)
    finally:
        lock.release()


async def quantize_model(
    host: Host, data: Path, ask: QuantizeModel, progress: Callable[[int, int], None]
) -> AddedModel:
    """Quantise a model of the library, while holding the lock of the data folder.

    `progress` is called with the bytes done and in total. Raises DataFolderInUse if a daemon runs,
    and ModelError if the library does not have the model, or it cannot be quantised.
    """
    lock = await open_folder(host, DataFolder(data))
    try:
        library = await open_library(host, data)
        before, root = library.names(), library.resolve(ask.model)
        name = ask.name or quantised_name(library, ask.model, ask.to)
        added = await quantise(host, library, root, ask.to, name, progress)
        return added_model(added, before)
    finally:
        lock.release()


async def add_adapter(
    host: Host, data: Path, folder: Path, name: str | None, model: str | None
) -> AdapterView:
    """Import the adapter in `folder` into the library, while holding the lock of the data folder.

    `model` names its model. Raises DataFolderInUse if a daemon runs, and ModelError if the adapter
    cannot be imported.
    """
    lock = await open_folder(host, DataFolder(data))
    try:
        library = await open_library(host, data)
        base = None if model is None else library.resolve(model)
        adapters = Adapters(host, library, DataFolder(data).library)
        return adapter_view(await adapters.add(folder, name, base), library)
    finally:
        lock.release()


async def list_adapters(host: Host, data: Path) -> AdaptersView:
    """List the adapters of the library."""
    library = await open_library(host, data)
    return adapters_view(await Adapters(host, library, DataFolder(data).library).all(), library)


async def list_models(host: Host, data: Path) -> ModelsView:
    """List the models of the library. Without a daemon, it is unknown which nodes serve them."""
    library = await open_library(host, data)
    entries = []
    for name, root in library.names().items():
        entries.append(model_entry(name, await library.manifest(root), local=True))
    entries += await unnamed(library, {entry.root for entry in entries})
    listed = []
    for entry in entries:
        held = await library.stored_parts(entry.root)
        listed.append(extended(ListedModel, entry, lacks=held.chunks_total - held.chunks))
    return ModelsView(tuple(listed))


async def show_model(host: Host, data: Path, name: str) -> ShownModel:
    """Describe one model of the library. Raises ModelError `unknown-model` if the library does not
    have it."""
    library = await open_library(host, data)
    try:
        root = library.resolve(name)
    except ModelError as error:
        if error.code != "unknown-model":
            raise
        where = " on this disk, and no daemon is running to ask other nodes"
        raise unknown(name, library.names(), where) from None
    shown = next((n for n, r in library.names().items() if r == root), name)
    return shown_model(shown, await library.manifest(root), {}, local=True)


async def manifest_of(host: Host, data: Path, name: str) -> Manifest:
    """Return the manifest of a model of the library, which a daemon may be using.

    Raises ModelError `unknown-model` if the library does not have it.
    """
    library = Library(host, DataFolder(data).library, check_config=check_model)
    await library.look()
    try:
        return await library.manifest(library.resolve(name))
    except ModelError as error:
        if error.code != "unknown-model":
            raise
        raise unknown(name, library.names(), " on this disk") from None


async def show_settings(host: Host, data: Path) -> SettingsView:
    """Return the settings that apply from the next start on. Raises BadSetting if the settings file
    is invalid."""
    return await host.offload(view, host, DataFolder(data), None)


async def change_setting(host: Host, data: Path, key: str, text: str | None) -> ChangedSetting:
    """Store a setting for the next start, or remove it if `text` is None, while holding the lock of
    the data folder.

    Raises DataFolderInUse if a daemon runs, BadSetting or TransportError if the value is invalid,
    and NodeError if the disk fails.
    """
    lock = await open_folder(host, DataFolder(data))
    try:
        setting = await host.offload(set_key, host, DataFolder(data), key, text)
    finally:
        lock.release()
    return ChangedSetting(key, None if setting is None else setting.text, applied=False)


async def remove_model(host: Host, data: Path, name: str, *, sure: bool) -> Removed:
    """Remove a model if `sure`, else only describe what its removal would lose.

    The lock of the data folder is held meanwhile. Copies on other nodes are unknown without a
    daemon. Raises DataFolderInUse if a daemon runs, and ModelError if the library does not have the
    model.
    """
    lock = await open_folder(host, DataFolder(data))
    try:
        library = await open_library(host, data)
        root = model_meant(name, library)
        loss = await loss_view(library, root)
        freed = await host.offload(library.store.size_of, await library.only_of(root))
        if sure:
            await library.remove(root)
            await library.usage.save()
        return replace(loss, freed=freed, removed=sure)
    finally:
        lock.release()


async def open_library(host: Host, data: Path) -> Library:
    """Open the library of a data folder whose daemon does not run."""
    library = Library(host, DataFolder(data).library, check_config=check_model)
    await library.open()
    return library

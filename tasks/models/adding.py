"""Adds models to the library: folders directly, everything else through the converting process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from ...dht.content.chunkstore import Progress
from ...dht.content.folder import json_file
from ...dht.content.library import Library
from ...dht.content.manifest import Manifest
from ...dht.content.modelnames import check_new_name, slug
from ...dht.defaults import CONFIG_LIMIT
from ...dht.errors import ModelError
from ...transport import naming
from ...transport.host.seam import Host
from ..engine.layouts import Precision
from .process import converted

PACKED: Final = ("awq", "gptq")
"""Methods of quantisation whose folders are converted."""
_GGUF: Final = ".gguf"


@dataclass(frozen=True, slots=True)
class Added:
    """A model that was added: its name, its manifest, and sentences about what was converted."""

    name: str
    manifest: Manifest
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model comes from.

    `path`: `what` is the absolute path of a folder or a file. `ollama`: `what` is a name in the
    Ollama store in the folder `place`. `hub`: `what` is ORG/NAME at the address `place`, for which
    `token` may be needed.
    """

    kind: Literal["path", "ollama", "hub"]
    what: str
    place: str = ""
    token: str = field(default="", repr=False)


async def add_model(
    host: Host, library: Library, source: Source, name: str | None, progress: Progress
) -> Added:
    """Add a model. The name is by default that of its source.

    `progress` is called with the bytes done and in total of each step: downloading, converting,
    storing. Raises ModelError if the model is invalid.
    """
    if source.kind == "path":
        return await _add_path(host, library, Path(source.what), name, progress)
    arguments = [source.kind, source.what, source.place]
    default = slug(Path("/") / source.what.rpartition("/")[2].replace(":", "-"))
    return await _added(host, library, arguments, name or default, progress, source.token)


async def _add_path(
    host: Host, library: Library, path: Path, name: str | None, progress: Progress
) -> Added:
    """Add a folder or a file."""
    if path.suffix.lower() == _GGUF:
        arguments = ["gguf", str(path)]
        return await _added(host, library, arguments, name or slug(path.with_suffix("")), progress)
    if await host.offload(_is_packed, host, path):
        return await _added(host, library, ["packed", str(path)], name or slug(path), progress)
    return Added(*await library.add(path, name, progress))


def _is_packed(host: Host, folder: Path) -> bool:
    """Return whether a folder is quantised by a method that is converted. Blocking."""
    try:
        config = json_file(host.files, folder / "config.json", CONFIG_LIMIT)
    except ModelError:
        return False  # importing it says what is wrong
    told = config.get("quantization_config")
    return isinstance(told, Mapping) and told.get("quant_method") in PACKED


def quantised_name(library: Library, model: str, precision: Precision) -> str:
    """Return the name of a quantised model, from the text by which the user meant the original."""
    root = library.resolve(model)
    known = (name for name, each in library.names().items() if each == root)
    base = model if model in library.names() else next(known, root[:16])
    return f"{base[: naming.MOST - len(precision) - 1]}-{precision}"


async def quantise(
    host: Host,
    library: Library,
    root: str,
    precision: Precision,
    name: str,
    progress: Progress,
) -> Added:
    """Quantise a model of the library, and add the result under a name.

    `progress` is called with the bytes done and in total, first of converting and then of storing.
    Raises ModelError if the model is not here or quantised already.
    """
    arguments = ["quantise", root, str(library.folder), precision]
    return await _added(host, library, arguments, name, progress)


async def _added(
    host: Host,
    library: Library,
    arguments: Sequence[str],
    name: str,
    progress: Progress,
    token: str = "",
) -> Added:
    """Convert a model and import the result."""
    name = naming.normal(name)
    check_new_name(name)
    folder = library.folder / "converting"
    async with converted(host, folder, arguments, progress, token=token) as found:
        added, manifest = await library.add(found.folder, name, progress)
        return Added(added, manifest, found.notes)

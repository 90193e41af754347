"""Adds models to the library: folders directly, everything else through the converting process."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...dht.content.chunkstore import Progress
from ...dht.content.library import Library, check_new_name, slug
from ...dht.content.manifest import Manifest
from ...transport import naming
from ...transport.host.seam import Host
from ..engine.layouts import Precision
from .process import converted

_GGUF: Final = ".gguf"


@dataclass(frozen=True, slots=True)
class Added:
    """A model that was added: its name, its manifest, and sentences about what was converted."""

    name: str
    manifest: Manifest
    notes: tuple[str, ...] = ()


async def add_files(
    host: Host, library: Library, path: Path, name: str | None, progress: Progress
) -> Added:
    """Add the model in a Hugging Face folder or a GGUF file. The name is by default that of the
    folder or file.

    `progress` is called with the bytes done and in total. Raises ModelError if the model is
    invalid.
    """
    if path.suffix.lower() == _GGUF:
        arguments = ["gguf", str(path)]
        return await _added(host, library, arguments, name or slug(path.with_suffix("")), progress)
    return Added(*await library.add(path, name, progress))


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

    `progress` is called with the bytes done and in total: converting and importing count half
    each. Raises ModelError if the model is not here or quantised already.
    """
    arguments = ["quantise", root, str(library.folder), precision]
    return await _added(host, library, arguments, name, progress)


async def _added(
    host: Host, library: Library, arguments: Sequence[str], name: str, progress: Progress
) -> Added:
    """Convert a model and import the result."""
    name = naming.normal(name)
    check_new_name(name)
    done = Halves(progress)
    async with converted(host, library.folder / "converting", arguments, done.first) as found:
        added, manifest = await library.add(found.folder, name, done.second)
        return Added(added, manifest, found.notes)


@dataclass(frozen=True, slots=True)
class Halves:
    """Progress of two steps as one."""

    progress: Progress

    def first(self, done: int, total: int) -> None:
        self.progress(done, 2 * total)

    def second(self, done: int, total: int) -> None:
        self.progress(done + total, 2 * total)

"""Adapters in a node's library: adding, names, look-up and removal.

An adapter is a blob. `adapters.json` in the library's folder maps the names that were given on this
node to roots. Names follow the rule for all names (docs/spec/model.md, section 4.2).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...dht.content import canonical
from ...dht.content.library import Library
from ...dht.content.manifest import is_digest
from ...dht.content.modelnames import check_new_name, slug
from ...dht.errors import ModelError
from ...transport import naming
from ...transport.host.seam import Host
from ..engine.adapters import AdapterTerms
from ..engine.families import architecture
from .defaults import NAMES_BYTES
from .file import AdapterHead, read_head
from .folder import AdapterScan, file_pieces, scan_folder


@dataclass(frozen=True, slots=True)
class KnownAdapter:
    """An adapter in the library. `size` is in bytes. `head` is None if its first chunk is not
    here."""

    name: str
    root: str
    size: int
    head: AdapterHead | None


class Adapters:
    """The adapters of a library, whose folder is `folder`."""

    def __init__(self, host: Host, library: Library, folder: Path) -> None:
        self._host = host
        self._library = library
        self._folder = folder

    async def add(self, folder: Path, name: str | None, base: str | None) -> KnownAdapter:
        """Import a `peft` folder, and name the adapter.

        `base` is the root of its model. If it is None, the adapter must fit exactly one model of
        the library. If `name` is None, the name is derived from the folder. Raises ModelError if
        the folder, the name or the model is not suitable.
        """
        name = slug(folder) if name is None else naming.normal(name)
        check_new_name(name)
        scan = await self._host.offload(scan_folder, self._host.files, folder)
        terms = await self._terms(scan, base)
        path = self._folder / ".adapter.tmp"
        try:
            await self._host.offload(self._write, path, scan, terms)
            root = await self._library.add_blob(path)
        finally:
            with suppress(OSError):
                await self._host.offload(self._host.files.remove, path)
        await self._save({**await self.names(), name: root})
        return await self.known(name, root)

    async def set_name(self, name: str, root: str) -> None:
        """Give a name to an adapter. Raises ModelError `bad-name`."""
        check_new_name(name)
        await self._save({**await self.names(), name: root})

    async def _terms(self, scan: AdapterScan, base: str | None) -> AdapterTerms:
        """Return the terms for the model `base`, or for the only model of the library that fits."""
        if base is not None:
            return scan.terms(base, architecture((await self._library.manifest(base)).config))
        fitting, failures = list[AdapterTerms](), list[ModelError]()
        for root in sorted(self._library.roots()):
            try:
                manifest = await self._library.manifest(root)
                fitting.append(scan.terms(root, architecture(manifest.config)))
            except ModelError as error:
                failures.append(error)
        if len(fitting) == 1:
            return fitting[0]
        if len(failures) == 1 and not fitting:
            raise failures[0]
        found = f"fits {len(fitting)} of the {len(self._library.roots())} models here"
        raise ModelError(
            "no-base",
            f"the adapter {found}",
            hint="name its model: `shoal adapter add FOLDER --model NAME`; without a daemon, that "
            "must be one of this node: `shoal model list`",
        )

    async def names(self) -> dict[str, str]:
        """Return the names given on this node, each with its root.

        Names of adapters that were removed are left out. Raises ModelError `bad-library` if
        adapters.json is invalid.
        """
        path = self._folder / "adapters.json"
        data = await self._host.offload(self._read, path)
        held = self._library.blobs.roots()
        return {name: root for name, root in _parsed(data, path).items() if root in held}

    async def all(self) -> list[KnownAdapter]:
        """Return all named adapters, sorted by name."""
        return [await self.known(name, root) for name, root in sorted((await self.names()).items())]

    async def known(self, name: str, root: str) -> KnownAdapter:
        """Describe an adapter of the library. Raises ModelError if this node lacks it, or no
        adapter."""
        tree = await self._library.blobs.tree(root)
        head = None
        first = tree.leaves[:1]
        if first and not await self._host.offload(self._library.store.missing, first):
            data = await self._host.offload(self._library.store.get, first[0])
            head = read_head(data, tree.size)
        return KnownAdapter(name, root, tree.size, head)

    async def resolve(self, text: str) -> tuple[str, str]:
        """Return (name, root) of the adapter that a text means.

        The text is a name given here, the beginning of the root of a named adapter, or a whole
        root, which need not be here. Raises ModelError `no-adapter` if nothing or several match.
        """
        text, names = naming.normal(text), await self.names()
        if text in names:
            return text, names[text]
        found = {root: name for name, root in names.items() if root.startswith(text.lower())}
        if len(text) >= _LEAST and len(found) == 1:
            root, name = found.popitem()
            return name, root
        if is_digest(text.lower()):
            return "", text.lower()
        matches = (
            f"matches {len(found)} adapters" if found else "is not the name of an adapter here"
        )
        raise ModelError(
            "no-adapter",
            f"{ascii(text)[:80]} {matches}",
            hint="`shoal adapter list` shows the adapters here. A fine-tuning adds its own at its "
            "end; one of another node needs all 64 digits of its hash",
        )

    async def forget(self, root: str) -> None:
        """Remove the names of an adapter."""
        names = {name: held for name, held in (await self.names()).items() if held != root}
        await self._save(names)

    def _write(self, path: Path, scan: AdapterScan, terms: AdapterTerms) -> None:
        """Write an adapter file. Blocking. Raises ModelError if that fails."""
        try:
            self._host.files.write_pieces(path, file_pieces(self._host.files, scan, terms))
        except OSError as error:
            raise ModelError("unwritable", f"cannot write `{path}`: {error.strerror}") from None

    def _read(self, path: Path) -> bytes:
        """Return the content of adapters.json, or b"" if there is none. Blocking."""
        if self._host.files.size(path) is None:
            return b""
        try:
            return self._host.files.read(path, limit=NAMES_BYTES)
        except OSError as error:
            raise ModelError("unreadable", f"cannot read `{path}`: {error.strerror}") from None

    async def _save(self, names: Mapping[str, str]) -> None:
        data = canonical.dump_json({"names": dict(names)}) + b"\n"
        path = self._folder / "adapters.json"
        try:
            await self._host.offload(self._host.files.write, path, data)
        except OSError as error:
            raise ModelError("unwritable", f"cannot write `{path}`: {error.strerror}") from None


_LEAST = 8  # digits of a root that may identify an adapter


def _parsed(data: bytes, path: Path) -> dict[str, str]:
    """Parse adapters.json. Raises ModelError `bad-library` if it is invalid."""
    if not data:
        return {}
    try:
        value = canonical.parse_json(data, depth=2)
    except ValueError:
        value = None
    names = value.get("names") if isinstance(value, dict) else None
    if not isinstance(names, dict) or not all(
        not naming.problem(name) and is_digest(root) for name, root in names.items()
    ):
        raise ModelError(
            "bad-library",
            f"`{path}` is not a list of adapters' names",
            hint=f"remove it and add the adapters again: `rm '{path}'`",
        )
    return names


def spans_of(layers: Sequence[int]) -> str:
    """Return layers in a short form, such as `0:4, 6:8`."""
    spans: list[list[int]] = []
    for layer in layers:
        if spans and spans[-1][1] == layer:
            spans[-1][1] += 1
        else:
            spans.append([layer, layer + 1])
    return ", ".join(f"{start}:{stop}" for start, stop in spans)

"""What of the library came from others, and when it was last used: `usage.json`.

What is not listed was added by this node's owner and never goes by itself; so does everything
where the file is lost or damaged.
"""

from contextlib import suppress
from pathlib import Path

from ..transport.host import Host
from . import canonical
from .chunkstore import write
from .defaults import LIBRARY_LIMIT
from .errors import ModelError
from .manifest import is_digest


class Usage:
    """Roots that were fetched, with the seconds since 1970 of their last use."""

    def __init__(self, host: Host, path: Path) -> None:
        self._host = host
        self._path = path
        self._changed = False
        self.fetched: dict[str, float] = {}
        self.passing: set[str] = set()
        """Of these the models of which only what prompts need was asked for."""
        self.asked: set[str] = set()
        """Of these what the owner asked for by name: only a limit that the owner set evicts it."""

    def open(self) -> None:
        """Blocking: read what an earlier life kept."""
        with suppress(OSError, ValueError):
            data = self._host.files.read(self._path, limit=LIBRARY_LIMIT)
            found = canonical.parse_json(data, depth=2)
            if isinstance(found, dict) and isinstance(found.get("fetched"), dict):
                self.fetched = {
                    root: float(when)
                    for root, when in found["fetched"].items()
                    if is_digest(root) and type(when) in (int, float)
                }
                self.passing = self._listed(found.get("passing"))
                self.asked = self._listed(found.get("asked"))

    def _listed(self, found: object) -> set[str]:
        listed = found if isinstance(found, list) else []
        return self.fetched.keys() & set(filter(is_digest, listed))

    def note_used(self, root: str) -> None:
        """It is used now."""
        if root in self.fetched:
            self.fetched[root] = self._host.wall()
            self._changed = True

    async def note_fetched(self, root: str) -> None:
        """It came from others. Raises DiskFull, ModelError."""
        self.fetched[root] = self._host.wall()
        await self._save()

    async def note_passing(self, root: str) -> None:
        """Only what prompts need of it was fetched. Raises DiskFull, ModelError."""
        if root in self.fetched and root not in self.passing:
            self.passing.add(root)
            await self._save()

    def note_kept(self, root: str) -> None:
        """Note that its weights are wanted as well."""
        if root in self.passing:
            self.passing.remove(root)
            self._changed = True

    def note_asked(self, root: str) -> None:
        """Note that the owner asked for it by name."""
        self.note_kept(root)
        self._changed |= root not in self.asked
        self.asked.add(root)

    async def note_added(self, root: str) -> None:
        """Its owner added it, or it is gone. Raises DiskFull, ModelError."""
        self.passing.discard(root)
        self.asked.discard(root)
        if self.fetched.pop(root, None) is not None:
            await self._save()

    async def save(self) -> None:
        """Keep the latest uses; a disk that refuses gets them the next time."""
        if self._changed:
            with suppress(ModelError):
                await self._save()

    async def _save(self) -> None:
        self._changed = False
        told = {
            "asked": sorted(self.asked),
            "fetched": self.fetched,
            "passing": sorted(self.passing),
        }
        data = canonical.dump_json(told) + b"\n"
        try:
            await self._host.offload(write, self._host.files, self._path, data)
        except BaseException:
            self._changed = True
            raise

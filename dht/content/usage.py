"""Usage of fetched content: which roots were fetched, and when each was last used (`usage.json`).

A root that is not listed was added by the owner, and is never evicted automatically. If the file is
lost or damaged, all content counts as added by the owner.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...transport.host.seam import Host
from ..defaults import LIBRARY_LIMIT
from ..errors import ModelError
from . import canonical
from .chunkstore import write
from .manifest import is_digest


class RootUses:
    """Fetched roots (`fetched`), each with the time of its last use in seconds since 1970."""

    def __init__(self, host: Host, path: Path) -> None:
        self._host = host
        self._path = path
        self._changed = False
        self.fetched: dict[str, float] = {}
        self.passing: set[str] = set()
        """Fetched models of which this node needs only the files that build prompts."""
        self.fetching: Counter[str] = Counter()
        """Roots that are being fetched now, each with the number of its fetches."""
        self.asked: set[str] = set()
        """Fetched roots that the owner requested by name. They are evicted only to keep a limit
        that the owner has set, never to keep a default limit."""

    def open(self) -> None:
        """Load the file that an earlier process saved. An unreadable file is ignored. Blocking."""
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
        """Return those roots in a list of usage.json that are in `fetched`; drop anything else."""
        listed = found if isinstance(found, list) else []
        return self.fetched.keys() & set(filter(is_digest, listed))

    def note_used(self, root: str) -> None:
        """Record that a root is being used now. Roots that were not fetched are ignored."""
        if root in self.fetched:
            self.fetched[root] = self._host.wall()
            self._changed = True

    @contextmanager
    def fetch(self, root: str) -> Iterator[None]:
        """Count a root as being fetched during the block, so that it is not evicted."""
        self.fetching[root] += 1
        try:
            yield
        finally:
            self.fetching[root] -= 1
            self.fetching += Counter()  # drops the entries at zero

    async def note_fetched(self, root: str) -> None:
        """Record that a root was fetched, and save the file. Raises NotEnoughDisk or ModelError."""
        self.fetched[root] = self._host.wall()
        await self._save()

    async def note_passing(self, root: str) -> None:
        """Record that only those files of a model that build prompts are needed; save usage.json.

        Raises NotEnoughDisk or ModelError if the file cannot be written.
        """
        if root in self.fetched and root not in self.passing:
            self.passing.add(root)
            await self._save()

    def note_kept(self, root: str) -> None:
        """Record that a model is needed whole, and not only the files that build prompts."""
        if root in self.passing:
            self.passing.remove(root)
            self._changed = True

    def note_asked(self, root: str) -> None:
        """Record that the owner requested a root by name."""
        self.note_kept(root)
        self._changed |= root not in self.asked
        self.asked.add(root)

    async def note_added(self, root: str) -> None:
        """Record that the owner added a root, or that a root was removed, and save the file.

        The root no longer counts as fetched. Raises NotEnoughDisk or ModelError.
        """
        self.passing.discard(root)
        self.asked.discard(root)
        if self.fetched.pop(root, None) is not None:
            await self._save()

    async def save(self) -> None:
        """Save changes that are not saved yet. If the disk refuses, a later call tries again."""
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

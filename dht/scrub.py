"""Looking at every chunk on the disk now and then: rot is found before somebody needs the chunk.

A pass takes place once a month, at a bounded rate, and only while the node has nothing else to do.
What is damaged is removed, and fetched again from others; so is what a reader found damaged between
two passes, and what is missing of what this node added itself.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import trio

from ..transport.host import Host
from . import canonical
from .chunkstore import write
from .defaults import CHUNK, SCRUB_EVERY, SCRUB_LOOK, SCRUB_MEND, SCRUB_RATE
from .errors import ChunkCorrupt, ChunkMissing, ModelError
from .library import Library

_NOTE_LIMIT = 4096  # bytes of scrub.json

Repair = Callable[[str, list[str]], Awaitable[object]]
"""Fetches chunks of a root again. Raises ModelError."""
Tell = Callable[[int, int], None]
"""Hears how many damaged chunks were fetched again, and how many nobody had."""


class Scrub:
    """Passes over `library`, noted in `path`. `idle` says whether now is a good time."""

    def __init__(
        self,
        host: Host,
        library: Library,
        path: Path,
        *,
        repair: Repair,
        idle: Callable[[], bool],
        tell: Tell = lambda mended, lost: None,
    ) -> None:
        self._host = host
        self._library = library
        self._path = path
        self._repair = repair
        self._idle = idle
        self._tell = tell
        self._again = 0.0  # when what nobody had is asked for again
        self._known: set[str] = set()  # to be damaged, and asked for
        self.damaged = 0
        """Chunks that a pass found damaged since the start."""
        self.passed: float | None = None
        """When the last pass ended, seconds since 1970."""

    async def run(self) -> None:
        """A pass whenever the last one is a month old; one cut short is begun again."""
        while True:
            last = await self._host.offload(self._last_pass)
            self.passed = last or None
            if self._host.wall() - last >= SCRUB_EVERY:
                await self.look_at_all()
                await self._note_pass()
            await self.mend()
            await trio.sleep(SCRUB_LOOK)

    def _last_pass(self) -> float:
        """Seconds since 1970; 0 where none is known. A time to come counts as none."""
        try:
            found = canonical.parse_json(
                self._host.files.read(self._path, limit=_NOTE_LIMIT), depth=1
            )
        except (OSError, ValueError):
            return 0.0
        when = found.get("passed") if isinstance(found, dict) else None
        if not isinstance(when, int | float) or not 0 <= when <= self._host.wall():
            return 0.0
        return float(when)

    async def _note_pass(self) -> None:
        self.passed = self._host.wall()
        data = canonical.dump_json({"passed": self.passed}) + b"\n"
        try:
            await self._host.offload(write, self._host.files, self._path, data)
        except ModelError:
            return  # the pass takes place once more

    async def look_at_all(self) -> int:
        """One pass; the chunks that were damaged. They are fetched again."""
        found = 0
        for root in sorted(self._library.everything()):
            found += await self._look_at(root)
            await self.mend()
        return found

    async def _look_at(self, root: str) -> int:
        try:
            parts = await self._library.parts(root)
        except ModelError:
            return 0
        damaged = [digest for digest in sorted(parts) if await self._is_damaged(digest)]
        self.damaged += len(damaged)
        if root not in self._library.usage.fetched:  # this node's own is here whole
            gone = await self._host.offload(self._library.store.missing, sorted(parts))
            self._library.store.damaged.update(gone)
        return len(damaged)

    # What was found.

    async def mend(self) -> None:
        """Fetch again what was found damaged, by a pass or by who read it: what is new at once,
        and what nobody had after a while."""
        store = self._library.store
        damaged = store.damaged.copy()  # readers in other threads add to it
        if not damaged or (damaged <= self._known and self._host.now() < self._again):
            return
        before = await self._host.offload(store.missing, sorted(damaged))
        for root in sorted(self._library.everything()):
            with suppress(ModelError):  # nobody has it now
                await self._mend_of(root, set(before))
        lost = await self._host.offload(store.missing, before)
        store.damaged.difference_update(damaged - set(lost))
        self._tell(len(before) - len(lost), len(lost))
        self._known, self._again = set(lost), self._host.now() + SCRUB_MEND

    async def _mend_of(self, root: str, gone: set[str]) -> None:
        found = gone & await self._library.parts(root)
        if found and root in self._library.blobs.roots():
            await self._library.blobs.mend(root)
        chunks = (await self._library.content(root)).chunks
        if wanted := sorted(found.intersection(chunks)):
            await self._repair(root, wanted)

    async def _is_damaged(self, digest: str) -> bool:
        while not self._idle():  # noqa: ASYNC110
            await trio.sleep(SCRUB_LOOK)
        try:
            await self._host.offload(self._library.store.get, digest)
        except ChunkCorrupt:
            return True
        except ChunkMissing:
            return False
        except ModelError:
            return False  # it cannot be read now; the next pass looks again
        await trio.sleep(CHUNK / SCRUB_RATE)
        return False

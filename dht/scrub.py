"""Looking at every chunk on the disk now and then: rot is found before somebody needs the chunk.

A pass takes place once a month, at a bounded rate, and only while the node has nothing else to do.
What is damaged is removed, and fetched again from others.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import trio

from ..transport.host import Host
from . import canonical
from .chunkstore import write
from .defaults import CHUNK, SCRUB_EVERY, SCRUB_LOOK, SCRUB_RATE
from .errors import ChunkCorrupt, ChunkMissing, ModelError
from .library import Library

_NOTE_LIMIT = 4096  # bytes of scrub.json

Repair = Callable[[str, list[str]], Awaitable[object]]
"""Fetches chunks of a root again. Raises ModelError."""


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
    ) -> None:
        self._host = host
        self._library = library
        self._path = path
        self._repair = repair
        self._idle = idle
        self.damaged = 0
        """Chunks found damaged since the start."""

    async def run(self) -> None:
        """A pass whenever the last one is a month old; one cut short is begun again."""
        while True:
            if self._host.wall() - await self._host.offload(self._last_pass) >= SCRUB_EVERY:
                await self.look_at_all()
                await self._note_pass()
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
        data = canonical.dump_json({"passed": self._host.wall()}) + b"\n"
        try:
            await self._host.offload(write, self._host.files, self._path, data)
        except ModelError:
            return  # the pass takes place once more

    async def look_at_all(self) -> int:
        """One pass; the chunks that were damaged. They are fetched again."""
        found = 0
        for root in sorted(self._library.everything()):
            found += await self._look_at(root)
        return found

    async def _look_at(self, root: str) -> int:
        try:
            parts = await self._library.parts(root)
        except ModelError:
            return 0
        damaged = [digest for digest in sorted(parts) if await self._is_damaged(digest)]
        self.damaged += len(damaged)
        if damaged:
            with suppress(ModelError):  # nobody has it now: it is missing, and fetched when needed
                await self._repair(root, damaged)
        return len(damaged)

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

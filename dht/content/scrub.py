"""Scrub: verifies every chunk on disk regularly, to find bit rot before a chunk is needed.

A pass runs once a month, at a limited rate, and only while the node is idle. Damaged chunks are
removed and fetched again from peers. Chunks that a reader found damaged between two passes are
fetched again as well, and so are missing chunks of content that this node added itself.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import trio

from ...transport.host.seam import Host
from ..defaults import CHUNK, SCRUB_EVERY, SCRUB_LOOK, SCRUB_MEND, SCRUB_RATE
from ..errors import ChunkCorrupt, ChunkMissing, ModelError
from . import canonical
from .chunkstore import write
from .library import Library

_NOTE_LIMIT = 4096  # bytes of scrub.json

Repair = Callable[[str, list[str]], Awaitable[object]]
"""Fetches chunks of a root again. Raises ModelError if no peer sends them."""
Tell = Callable[[int, int], None]
"""Called with two counts of damaged chunks: those fetched again, and those that no peer had."""


class Scrub:
    """Regular passes that verify the chunks of `library`.

    The time of the last pass is stored in the file `path`. Chunks are read only while `idle()`
    returns True. `repair` fetches chunks again, and `tell` is called with the result.
    """

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
        self._again = 0.0  # the time at which to retry the chunks that no peer had
        self._known: set[str] = set()  # damaged chunks already requested
        self.damaged = 0
        """Number of damaged chunks that passes have found since the start of this process."""
        self.passed: float | None = None
        """End of the last pass, in seconds since 1970. None if there was none."""

    async def run(self) -> None:
        """Run a pass each month until cancelled. A pass that was interrupted starts again."""
        while True:
            last = await self._host.offload(self._last_pass)
            self.passed = last or None
            if self._host.wall() - last >= SCRUB_EVERY:
                await self.look_at_all()
                await self._note_pass()
            await self.mend()
            await trio.sleep(SCRUB_LOOK)

    def _last_pass(self) -> float:
        """Read the end of the last pass, in seconds since 1970, from the file. Blocking.

        Returns 0 if the time is unknown or in the future.
        """
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
        """Save the present time as the end of the last pass."""
        self.passed = self._host.wall()
        data = canonical.dump_json({"passed": self.passed}) + b"\n"
        try:
            await self._host.offload(write, self._host.files, self._path, data)
        except ModelError:
            return  # the pass runs again at the next start

    async def look_at_all(self) -> int:
        """Run one pass over all content, and return the number of damaged chunks.

        The damaged chunks are removed, and fetched again after each root.
        """
        found = 0
        for root in sorted(self._library.everything()):
            found += await self._look_at(root)
            await self.mend()
        return found

    async def _look_at(self, root: str) -> int:
        """Verify the chunks of a root; return how many are damaged. Damaged chunks are removed."""
        try:
            parts = await self._library.parts(root)
        except ModelError:
            return 0
        damaged = [digest for digest in sorted(parts) if await self._is_damaged(digest)]
        self.damaged += len(damaged)
        if root not in self._library.usage.fetched:  # content added here should be complete
            gone = await self._host.offload(self._library.store.missing, sorted(parts))
            self._library.store.damaged.update(gone)
        return len(damaged)

    # Repair.

    async def mend(self) -> None:
        """Fetch damaged and missing chunks again.

        Chunks that were found recently are requested at once. Chunks that no peer had are requested
        again after `SCRUB_MEND` seconds.
        """
        store = self._library.store
        damaged = store.damaged.copy()  # a copy, because reader threads may add to the set
        if not damaged or (damaged <= self._known and self._host.now() < self._again):
            return
        before = await self._host.offload(store.missing, sorted(damaged))
        for root in sorted(self._library.everything()):
            with suppress(ModelError):  # no peer has it now
                await self._mend_of(root, set(before))
        lost = await self._host.offload(store.missing, before)
        store.damaged.difference_update(damaged - set(lost))
        self._tell(len(before) - len(lost), len(lost))
        self._known, self._again = set(lost), self._host.now() + SCRUB_MEND

    async def _mend_of(self, root: str, gone: set[str]) -> None:
        """Fetch again those of the `gone` chunks that belong to a root.

        Raises ModelError if no peer sends them, or if the manifest or tree is not on this disk.
        """
        found = gone & await self._library.parts(root)
        if found and root in self._library.blobs.roots():
            await self._library.blobs.mend(root)
        chunks = (await self._library.content(root)).chunks
        if wanted := sorted(found.intersection(chunks)):
            await self._repair(root, wanted)

    async def _is_damaged(self, digest: str) -> bool:
        """Wait until the node is idle, verify a chunk, and return whether it was damaged.

        Then waits long enough to read at most `SCRUB_RATE` bytes per second.
        """
        while not self._idle():  # noqa: ASYNC110
            await trio.sleep(SCRUB_LOOK)
        try:
            await self._host.offload(self._library.store.get, digest)
        except ChunkCorrupt:
            return True
        except ChunkMissing:
            return False
        except ModelError:
            return False  # unreadable at the moment; the next pass checks it again
        await trio.sleep(CHUNK / SCRUB_RATE)
        return False

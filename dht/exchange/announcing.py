"""Announcement schedule for a content: at the first chunk, as it grows, and when it is whole.

A record goes out at each doubling up to a quarter of the chunks, then at each further quarter:
some 20 announcements for a million chunks.
"""

from ...transport.host.seam import Host
from ..content.content import Content
from ..content.library import Library
from ..content.ranges import pack_indexes
from ..defaults import ANNOUNCED_RUNS
from .switchboard import Swarm


class Announcer:
    """Announces how much of one content this node holds."""

    def __init__(self, host: Host, library: Library, content: Content, swarm: Swarm) -> None:
        self._host = host
        self._library = library
        self._content = content
        self._swarm = swarm
        self._next = 1  # number of held chunks at which the next announcement is due

    def is_due(self, held: int) -> bool:
        """Whether `held` chunks are enough for the next announcement."""
        return held >= self._next

    async def announce(self) -> None:
        """Count the chunks in the store and announce them to the swarm."""
        content = self._content
        held = await self._host.offload(self._held)
        total = len(content.chunks)
        self._next = next_announcement(len(held), total)
        if held:
            ranges = None if len(held) == total else pack_indexes(held, ANNOUNCED_RUNS)
            self._swarm.announce(content.root, content.size, total, ranges)

    def _held(self) -> list[int]:
        has = self._library.store.has
        return [index for index, digest in enumerate(self._content.order) if has(digest)]


def next_announcement(held: int, total: int) -> int:
    """Return the number of held chunks at which the next announcement is due."""
    if held >= total:
        return total + 1
    quarter = max(1, total // 4)
    if held < quarter:
        return min(max(1, 2 * held), quarter)
    return min(total, (held // quarter + 1) * quarter)

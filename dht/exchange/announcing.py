"""Schedule of the announcements of a content: at the first chunk, as it grows, and when complete.

A record is published whenever the number of stored chunks has doubled, until a quarter of all
chunks is here, and then at each further quarter. For a million chunks, these are some 20
announcements.
"""

from ..content.content import Content
from ..content.ranges import pack_indexes
from ..defaults import ANNOUNCED_RUNS
from .parts import ExchangeParts


class Announcer:
    """Announcer of one content: tells the swarm which of its chunks this node has."""

    def __init__(self, parts: ExchangeParts, content: Content) -> None:
        self._host = parts.host
        self._library = parts.library
        self._content = content
        self._swarm = parts.swarm
        self._next = 1  # number of stored chunks at which the next announcement is due

    def is_due(self, held: int) -> bool:
        """Return whether the next announcement is due once `held` chunks are stored."""
        return held >= self._next

    async def announce(self) -> None:
        """Count the stored chunks of the content, and announce them to the swarm."""
        content = self._content
        held = await self._host.offload(self._held)
        total = len(content.chunks)
        self._next = next_announcement(len(held), total)
        if held:
            ranges = None if len(held) == total else pack_indexes(held, ANNOUNCED_RUNS)
            self._swarm.announce(content.root, content.size, total, ranges)

    def _held(self) -> list[int]:
        """Return the indexes of the stored chunks. Blocking."""
        has = self._library.store.has
        return [index for index, digest in enumerate(self._content.order) if has(digest)]


def next_announcement(held: int, total: int) -> int:
    """Return the number of stored chunks at which the next announcement is due.

    `held` chunks of `total` are stored now.
    """
    if held >= total:
        return total + 1
    quarter = max(1, total // 4)
    if held < quarter:
        return min(max(1, 2 * held), quarter)
    return min(total, (held // quarter + 1) * quarter)

"""Queue of the requests for which a shard has no free KV memory. No I/O.

A gateway whose request was refused asks again until it is admitted. Meanwhile the queue reserves
memory for it: requests that came later get only what is left. Otherwise, a large request would
never be admitted beside many small ones, which take each free block at once.
"""

from dataclasses import dataclass

from ...transport.identity import PeerId
from ..defaults import QUEUED_OF_ONE, QUEUED_REQUESTS, QUEUED_TIME
from .messages import Open

_Key = tuple[PeerId, bytes, int]
"""(gateway, user, positions): stands for a request, since each attempt is a new session."""


@dataclass(slots=True)
class _Waiting:
    """A request that waits. `blocks` are asked for, most recently at the time `asked`."""

    blocks: int
    asked: float


class MemoryQueue:
    """Requests that wait for the memory of one shard, the longest waiting first.

    A request that is not repeated for QUEUED_TIME seconds leaves the queue. The queue has at most
    QUEUED_REQUESTS requests, QUEUED_OF_ONE of each gateway, of which the oldest one counts.
    """

    def __init__(self) -> None:
        self.waiting: dict[_Key, _Waiting] = {}

    def ahead(self, gateway: PeerId, message: Open, now: float) -> int:
        """Return the blocks that are reserved for requests of other gateways that have waited
        longer than this one."""
        self._forget(now)
        own = _key(gateway, message)
        found: dict[PeerId, int] = {}
        for key, each in self.waiting.items():
            if key == own:
                break
            found.setdefault(key[0], each.blocks)
        found.pop(gateway, None)
        return sum(found.values())

    def reserved(self, gateway: PeerId, now: float) -> int:
        """Return the blocks that are reserved for the requests of other gateways."""
        self._forget(now)
        found: dict[PeerId, int] = {}
        for key, each in self.waiting.items():
            found.setdefault(key[0], each.blocks)
        found.pop(gateway, None)
        return sum(found.values())

    def wait(self, gateway: PeerId, message: Open, blocks: int, now: float) -> None:
        """Add a request, or note that it was repeated."""
        key = _key(gateway, message)
        if key in self.waiting:
            self.waiting[key].asked = now
        elif len(self.waiting) < QUEUED_REQUESTS and self._of(gateway) < QUEUED_OF_ONE:
            self.waiting[key] = _Waiting(blocks, now)

    def _of(self, gateway: PeerId) -> int:
        """Return how many requests of a gateway wait. It chooses the users, and so the keys."""
        return sum(key[0] == gateway for key in self.waiting)

    def leave(self, gateway: PeerId, message: Open) -> None:
        """Remove a request, because it was admitted."""
        self.waiting.pop(_key(gateway, message), None)

    def _forget(self, now: float) -> None:
        """Remove the requests that were given up."""
        since = now - QUEUED_TIME
        self.waiting = {key: each for key, each in self.waiting.items() if each.asked >= since}


def _key(gateway: PeerId, message: Open) -> _Key:
    return gateway, message.user, message.soon

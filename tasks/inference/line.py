"""Requests of a gateway that wait for room, and when refused ones may come back. No I/O.

A stage says in how many seconds it has room for a request, after the gateway's requests before it.
The gateway refuses requests that would wait for longer than MEMORY_PATIENCE, with the seconds. So a
gateway with 1,000 requests for a node with room for 10 answers all of them soon, one way or the
other, and does not try to open 1,000 sessions again and again.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ..defaults import BACK_FRESH, MAX_AHEAD, MEMORY_PATIENCE
from ..errors import Overloaded
from ..routing.defaults import RETRY_LEAST, RETRY_MOST


@dataclass(slots=True, eq=False)
class RoomRequest:
    """A request that waits, or may have to wait, for room. `root` is that of its model."""

    root: str


class Line:
    """The requests of a gateway that wait for room, in the order of their arrival, by model."""

    def __init__(self) -> None:
        self._places: dict[str, dict[RoomRequest, None]] = {}
        # By model: the seconds for each request in the line, and when a stage said so.
        self._paces: dict[str, tuple[float, float]] = {}
        # By model: when the requests that were refused are to come back, in order.
        self._promised: dict[str, deque[float]] = {}

    def join(self, place: RoomRequest) -> None:
        """Add a request at the end of the line of its model, unless it is in the line."""
        self._places.setdefault(place.root, {}).setdefault(place)

    def leave(self, place: RoomRequest) -> None:
        """Remove a request. Does nothing if it is not in the line."""
        places = self._places.get(place.root, {})
        places.pop(place, None)
        if not places:
            self._places.pop(place.root, None)

    def ahead(self, place: RoomRequest) -> int:
        """Return how many requests for the same model came before this one: all that wait, if it
        does not wait yet."""
        count = 0
        for other in self._places.get(place.root, ()):
            if other is place:
                break
            count += 1
        return count

    def waiting(self, root: str) -> Iterable[RoomRequest]:
        """Return the requests for a model, the first to come first."""
        return self._places.get(root, ())

    def told(self, root: str, back_s: float, ahead: int, now: float) -> None:
        """Record in how many seconds a request has room after `ahead` others."""
        self._paces[root] = (back_s / (ahead + 1), now)
        if len(self._paces) > 64:
            oldest = next(iter(self._paces))
            del self._paces[oldest]
            self._promised.pop(oldest, None)

    def back(self, place: RoomRequest, now: float) -> float | None:
        """Return in how many seconds a request has room, or None if that was not said lately."""
        pace, at = self._paces.get(place.root, (0.0, -math.inf))
        return pace * (self.ahead(place) + 1) if now < at + BACK_FRESH else None

    def check(self, place: RoomRequest, now: float) -> None:
        """Raise Overloaded if a request would wait too long for room.

        Earlier refused requests are told to come back before it, so that they do not all come at
        once.
        """
        back = self.back(place, now)
        if back is None or back <= MEMORY_PATIENCE:
            return
        pace, _ = self._paces[place.root]
        promised = self._promised.setdefault(place.root, deque(maxlen=MAX_AHEAD))
        while promised and promised[0] <= now:
            promised.popleft()
        back = min(back + pace * len(promised), RETRY_MOST)
        before = self.ahead(place) + len(promised)
        promised.append(now + back)
        raise overloaded(back, f"{before} requests before this one wait for memory")


def overloaded(seconds: float, why: str) -> Overloaded:
    """Return the refusal of a request that would wait for that many seconds."""
    retry = min(max(seconds, RETRY_LEAST), RETRY_MOST)
    return Overloaded(f"the nodes that serve this model are busy: {why}", math.ceil(retry))

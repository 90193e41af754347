"""Which links are still to be told of which records: a few at a time, more seldom while news keep
coming, as when many nodes join. Sans-I/O.

Every link is told in the end of what its peer has not told itself. A swarm that grows by a hundred
members a minute so costs a node no more messages than one that grows by ten.
"""

from collections.abc import Iterable
from itertools import islice
from math import inf

from ..transport.identity import PeerId
from ..transport.link import Link
from . import defaults


class RecordNews:
    """Of one node."""

    def __init__(self) -> None:
        self._waiting: dict[Link, dict[PeerId, None]] = {}  # those that wait longest first
        self._told_at = -inf
        self._pause = defaults.HAND_ON[0]

    def add(self, author: PeerId, links: Iterable[Link]) -> None:
        """The peers of these links are to hear of a record."""
        for link in links:
            if link.peer != author:
                self._waiting.setdefault(link, {})[author] = None

    def heard(self, link: Link, authors: Iterable[PeerId]) -> None:
        """Its peer has told of these records, as they are here."""
        if (waiting := self._waiting.get(link)) is not None:
            for author in authors:
                waiting.pop(author, None)
            if not waiting:
                del self._waiting[link]

    def ended(self, link: Link) -> None:
        self._waiting.pop(link, None)

    def next_at(self) -> float:
        """When `take` has something."""
        return self._told_at + self._pause if self._waiting else inf

    def take(self, now: float) -> list[tuple[Link, list[PeerId]]]:
        """Whom to tell now, of whose records."""
        if now < self.next_at():
            return []
        least, most = defaults.HAND_ON
        busy = now - self._told_at < 2 * self._pause
        self._pause = min(2 * self._pause, most) if busy else least
        self._told_at = now
        links = list(islice(self._waiting, defaults.HAND_ON_LINKS))
        return [(link, list(self._waiting.pop(link))) for link in links]

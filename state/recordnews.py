"""Queue of records to announce, by link. Sans-I/O.

A bucket bounds the messages. While news keep coming, as when many nodes join, they wait for it,
and a message names all that has gathered. In the end each link hears of every record that its peer
did not announce itself. So a swarm that grows by a hundred members a minute costs a node no more
messages than one that grows by ten.
"""

from collections.abc import Iterable
from itertools import islice
from math import inf
from typing import Generic, Protocol, TypeVar

from ..transport.identity import PeerId
from ..transport.rates import Bucket, Rate
from . import defaults


class WithPeer(Protocol):
    """A link, or what stands in for one."""

    @property
    def peer(self) -> PeerId: ...


AnyLink = TypeVar("AnyLink", bound=WithPeer)


class RecordNews(Generic[AnyLink]):
    """Pending announcements of one node."""

    def __init__(self) -> None:
        self._waiting: dict[AnyLink, dict[PeerId, None]] = {}  # longest wait first
        self._told_at = -inf
        self._bucket = Bucket(Rate(*defaults.HAND_ON), 0.0)

    def add(self, author: PeerId, links: Iterable[AnyLink]) -> None:
        """Queue an author's record for these links."""
        for link in links:
            if link.peer != author:
                self._waiting.setdefault(link, {})[author] = None

    def heard(self, link: AnyLink, authors: Iterable[PeerId]) -> None:
        """Drop records that the link's peer has announced in the version known here."""
        if (waiting := self._waiting.get(link)) is not None:
            for author in authors:
                waiting.pop(author, None)
            if not waiting:
                del self._waiting[link]

    def ended(self, link: AnyLink) -> None:
        self._waiting.pop(link, None)

    def next_at(self) -> float:
        """Return when the next batch is due."""
        if not self._waiting:
            return inf
        return max(self._told_at + defaults.HAND_ON_PAUSE, self._bucket.due)

    def take(self, now: float) -> list[tuple[AnyLink, list[PeerId]]]:
        """Return the links of the batch that is due, and the authors to announce to each."""
        if now < self.next_at():
            return []
        links = list(islice(self._waiting, int(self._bucket.level(now))))
        self._bucket.take(now, len(links))
        self._told_at = now
        return [(link, list(self._waiting.pop(link))) for link in links]

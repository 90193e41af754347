"""Queue of records to announce, by link. Sans-I/O.

A bucket bounds the messages. While news keep coming, as when many nodes join, they wait for it,
and a message names all that has gathered. In the end each link hears of every record that its peer
did not announce itself. A record that changes soon after its author was announced waits: a node
that joins finds out its addresses one after the other, and changes its record eight times. So a
swarm that grows by a hundred members a minute costs a node no more messages than one that grows by
ten.
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
        self._announced: dict[PeerId, tuple[float, object]] = {}  # when, and what it served
        self._changed: dict[PeerId, dict[AnyLink, None]] = {}  # too soon after that
        self._changed_due = inf  # when the first of these may be announced
        self._told_at = -inf
        self._bucket = Bucket(Rate(*defaults.HAND_ON), 0.0)

    def add(
        self, author: PeerId, links: Iterable[AnyLink], now: float, *, serves: object = None
    ) -> None:
        """Queue an author's record for these links. A change of what the author `serves` does not
        wait for other changes: routes depend on it."""
        others = dict.fromkeys(link for link in links if link.peer != author)
        at, served = self._announced.get(author, (-inf, None))
        due = at + defaults.HAND_ON_AGAIN
        if now < due and serves == served:
            self._changed.setdefault(author, {}).update(others)
            self._changed_due = min(self._changed_due, due)
            return
        self._announced.pop(author, None)
        for link in self._changed.pop(author, {}):
            others.setdefault(link)
        self._announced[author] = now, serves
        if len(self._announced) > defaults.MEMBERS:
            del self._announced[next(iter(self._announced))]
        for link in others:
            self._waiting.setdefault(link, {})[author] = None

    def _add_changed(self, now: float) -> None:
        """Queue the changes that have waited long enough."""
        if now < self._changed_due:
            return
        changed, self._changed, self._changed_due = self._changed, {}, inf
        for author, links in changed.items():
            self.add(author, links, now, serves=self._announced.get(author, (now, None))[1])

    def heard(self, link: AnyLink, authors: Iterable[PeerId]) -> None:
        """Drop records that the link's peer has announced in the version known here."""
        waiting = self._waiting.get(link, {})
        for author in authors:
            waiting.pop(author, None)
            if author in self._changed:
                self._changed[author].pop(link, None)
        if not waiting:
            self._waiting.pop(link, None)

    def ended(self, link: AnyLink) -> None:
        self._waiting.pop(link, None)
        for links in self._changed.values():
            links.pop(link, None)

    def next_at(self) -> float:
        """Return when the next batch is due."""
        if not self._waiting:
            return self._changed_due
        soon = max(self._told_at + defaults.HAND_ON_PAUSE, self._bucket.due)
        return min(soon, self._changed_due)

    def take(self, now: float) -> list[tuple[AnyLink, list[PeerId]]]:
        """Return the links of the batch that is due, and the authors to announce to each."""
        self._add_changed(now)
        if not self._waiting or now < self.next_at():
            return []
        links = list(islice(self._waiting, int(self._bucket.level(now))))
        self._bucket.take(now, len(links))
        self._told_at = now
        return [(link, list(self._waiting.pop(link))) for link in links]

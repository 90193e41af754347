"""Queue of member records to announce over each link.

A rate limiter bounds the number of messages. While news keeps arriving, as when many nodes join, a
message waits for the limiter and then announces all records that were queued in the meantime. In
the end every record is announced over each link whose peer has not announced it itself.

The record of a new author waits for a moment. A record that changes soon after its announcement
waits longer, because a joining node finds its addresses one after the other and changes its record
eight times. Therefore a swarm that grows by a hundred members a minute costs a node no more
messages than one that grows by ten. No I/O.
"""

from collections.abc import Iterable
from itertools import islice
from math import inf
from typing import Generic, Protocol, TypeVar

from ...transport.identity import PeerId
from ...transport.rates import Rate, RateLimiter
from .. import defaults


class WithPeer(Protocol):
    """A link, or a test double of a link."""

    @property
    def peer(self) -> PeerId: ...


AnyLink = TypeVar("AnyLink", bound=WithPeer)


class RecordNews(Generic[AnyLink]):
    """The pending announcements of one node."""

    def __init__(self) -> None:
        # authors to announce, by link, and whether that is urgent; the link that has waited longest
        # comes first
        self._waiting: dict[AnyLink, dict[PeerId, bool]] = {}
        # (earliest next announcement, what the author served)
        self._next: dict[PeerId, tuple[float, object]] = {}
        # links to announce changes over that wait for that time
        self._changed: dict[PeerId, dict[AnyLink, None]] = {}
        self._changed_due = inf  # when the first of these changes may be announced
        self._told_at = -inf
        self._bucket = RateLimiter(Rate(*defaults.HAND_ON), 0.0)

    def add(
        self,
        author: PeerId,
        links: Iterable[AnyLink],
        now: float,
        *,
        serves: object = None,
        new: bool = False,
    ) -> None:
        """Queue an author's record for announcement over these links.

        `serves` is what the author serves, None if it serves nothing. A change of it is urgent and
        does not wait for further changes, because routes depend on it. `new` means that the author
        has just joined and sent the record itself. Such a record waits for HAND_ON_NEW seconds.
        """
        others = dict.fromkeys(link for link in links if link.peer != author)
        first = now + defaults.HAND_ON_NEW if new else now
        due, served = self._next.setdefault(author, (first, None))
        if now < due and serves == served:
            self._changed.setdefault(author, {}).update(others)
            self._changed_due = min(self._changed_due, due)
        else:
            self._queue(author, others, now, serves, urgent=serves != served)

    def _queue(
        self,
        author: PeerId,
        links: dict[AnyLink, None],
        now: float,
        serves: object,
        *,
        urgent: bool = False,
    ) -> None:
        for link in {**links, **self._changed.pop(author, {})}:
            waiting = self._waiting.setdefault(link, {})
            waiting[author] = urgent or waiting.get(author, False)
        self._next.pop(author, None)
        self._next[author] = now + defaults.HAND_ON_AGAIN, serves
        while len(self._next) > defaults.MEMBERS:
            del self._next[next(iter(self._next))]

    def _add_changed(self, now: float) -> None:
        """Queue the records whose changes have waited long enough."""
        if now < self._changed_due:
            return
        self._changed_due = inf
        for author in list(self._changed):
            due, serves = self._next.get(author, (now, None))
            if due <= now:
                self._queue(author, {}, now, serves)
            else:
                self._changed_due = min(self._changed_due, due)

    def heard(self, link: AnyLink, authors: Iterable[PeerId]) -> None:
        """Drop announcements of these authors' records over a link.

        The link's peer has announced the same or later versions of these records itself.
        """
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
        """Return the time at which the next batch is due, or infinity if nothing is queued."""
        if not self._waiting:
            return self._changed_due
        soon = max(self._told_at + defaults.HAND_ON_PAUSE, self._bucket.due)
        return min(soon, self._changed_due)

    def take(self, now: float) -> list[tuple[AnyLink, list[PeerId], bool]]:
        """Remove the batch that is due from the queue.

        Return (link, authors to announce over it, whether any of them is urgent) for each link.
        """
        self._add_changed(now)
        if not self._waiting or now < self.next_at():
            return []
        links = list(islice(self._waiting, int(self._bucket.level(now))))
        self._bucket.take(now, len(links))
        self._told_at = now
        taken = [(link, self._waiting.pop(link)) for link in links]
        return [(link, list(authors), any(authors.values())) for link, authors in taken]

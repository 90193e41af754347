"""Multicast DNS on one interface (RFC 6762): when to query, when to reply, what to cache.

Sans-I/O: datagrams and the time go in, datagrams and peers come out.
"""

import math
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Final

from ..host.datagrams import Place
from ..host.seam import Interface
from ..rates import Bucket, Rate
from . import dns
from .defaults import (
    ANNOUNCEMENTS,
    ANSWER_S,
    FIRST_WAIT_S,
    KNOWN_ANSWERS,
    PORT,
    QUERY_S,
    LanLimits,
)
from .neighbours import Neighbours
from .service import Announcement, Found, query

_NEVER: Final = math.inf


class Responder:
    """Multicast DNS responder and querier.

    `luck` returns a random number from 0 to 1. Call `poll` at `due`, which `receive` may move to an
    earlier time.
    """

    def __init__(
        self,
        announcement: Announcement,
        interface: Interface,
        limits: LanLimits,
        luck: Callable[[], float],
        now: float,
    ) -> None:
        self.neighbours = Neighbours(limits, luck)
        self.dropped = 0
        """Datagrams dropped by the rate limiter."""
        self._announcement = announcement
        self._network: IPv4Network = IPv4Interface(
            f"{interface.address}/{interface.prefix}"
        ).network
        self._luck = luck
        self._taken = Bucket(Rate(limits.taken_burst, limits.taken_per_s), now)
        self._news = Bucket(Rate(limits.news_burst, limits.news_per_s), now)
        self._announce_at = [now + after for after in ANNOUNCEMENTS]
        self._answer_at = _NEVER  # when a reply about this node is due
        self._answered = -_NEVER
        self._kinds_at = _NEVER  # when a reply about our kind of service is due
        self._kinds_said = -_NEVER
        self._query_at = now + self._first_wait()
        self._pause = QUERY_S[0]

    def due(self) -> float:
        """Return when to call `poll` next."""
        own = (*self._announce_at[:1], self._answer_at, self._kinds_at, self._query_at)
        return min(*own, self.neighbours.due())

    def poll(self, now: float) -> list[bytes]:
        """Return the datagrams to send to the group now; forget expired peers."""
        late = self.neighbours.pass_time(now)
        found: list[bytes] = []
        if self._announce_at and self._announce_at[0] <= now:
            self._announce_at.pop(0)
            self._answer_at = min(self._answer_at, now)
        if self._answer_at <= now:
            self._answer_at, self._answered = _NEVER, now
            found.append(self._announcement.encode())
        if self._kinds_at <= now:
            self._kinds_at, self._kinds_said = _NEVER, now
            found.append(self._announcement.encode_service())
        if late or self._query_at <= now:
            found.append(query(self.neighbours.known(now)[:KNOWN_ANSWERS]))
            self._query_at = now + self._pause
            self._pause = min(2 * self._pause, QUERY_S[1])
        return found

    def goodbye(self) -> bytes:
        """Return the goodbye of this node."""
        return self._announcement.encode(ttl=0)

    def receive(self, data: bytes, source: Place, now: float) -> list[Found]:
        """Handle a datagram; return new peers with their addresses.

        Datagrams from another network or port are ignored: with several interfaces each socket
        receives a copy of everything.
        """
        if source[1] != PORT or IPv4Address(source[0]) not in self._network:
            return []
        if not self._taken.take(now):
            self.dropped += 1
            return []
        message = dns.decode(data)
        if message is None:
            return []
        if not message.response:
            self._be_asked(message, now)
            return []
        found = self._announcement.read(message, source[0])
        return [item for item in found if self._is_news(item, now)]

    def _is_news(self, found: Found, now: float) -> bool:
        """Store an announcement; return whether it is new. Beyond the rate new ones are dropped."""
        news = self.neighbours.is_news(found)
        if news and not self._news.take(now):
            return False
        if news or self.neighbours.knows(found):
            self.neighbours.hear(found, now)
        return news

    def _be_asked(self, message: dns.Message, now: float) -> None:
        """Schedule a reply: with a delay that merges several queries, and not too often."""
        if self._announcement.is_asked(message):
            at = max(now + self._first_wait(), self._answered + ANSWER_S)
            self._answer_at = min(self._answer_at, at)
        if self._announcement.asks_for_kinds(message):
            at = max(now + self._first_wait(), self._kinds_said + ANSWER_S)
            self._kinds_at = min(self._kinds_at, at)

    def _first_wait(self) -> float:
        low, high = FIRST_WAIT_S
        return low + (high - low) * self._luck()

"""Multicast DNS on one interface (RFC 6762): decides when to query, when to reply and what to
cache.

This module does no I/O. Its input is datagrams and the time, its output datagrams and newly found
peers.
"""

import math
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Final

from ..host.datagrams import Place
from ..host.seam import Interface
from ..rates import Rate, RateLimiter
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
from .neighbours import LanNeighbours
from .service import Announcement, FoundPeer, query

_NEVER: Final = math.inf


class MdnsResponder:
    """Multicast DNS responder and querier.

    `luck` returns a random number from 0 to 1. Call `poll` at the time that `due` returns. A call
    of `receive` may move that time to an earlier one.
    """

    def __init__(
        self,
        announcement: Announcement,
        interface: Interface,
        limits: LanLimits,
        luck: Callable[[], float],
        now: float,
    ) -> None:
        self.neighbours = LanNeighbours(limits, luck)
        self.dropped = 0
        """Number of datagrams that the rate limiter has dropped."""
        self._announcement = announcement
        self._network: IPv4Network = IPv4Interface(
            f"{interface.address}/{interface.prefix}"
        ).network
        self._luck = luck
        self._taken = RateLimiter(Rate(limits.taken_burst, limits.taken_per_s), now)
        self._news = RateLimiter(Rate(limits.news_burst, limits.news_per_s), now)
        self._announce_at = [now + after for after in ANNOUNCEMENTS]
        self._answer_at = _NEVER  # when a reply about this node is due
        self._answered = -_NEVER
        self._kinds_at = _NEVER  # when a reply about our kind of service is due
        self._kinds_said = -_NEVER
        self._query_at = now + self._first_wait()
        self._pause = QUERY_S[0]

    def due(self) -> float:
        """Return the time at which to call `poll` next."""
        own = (*self._announce_at[:1], self._answer_at, self._kinds_at, self._query_at)
        return min(*own, self.neighbours.due())

    def poll(self, now: float) -> list[bytes]:
        """Forget expired peers, and return the datagrams to send to the multicast group now."""
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
        """Return the datagram which announces that this node leaves (RFC 6762, section 10.1)."""
        return self._announcement.encode(ttl=0)

    def receive(self, data: bytes, source: Place, now: float) -> list[FoundPeer]:
        """Process a datagram and return the peers that it announces for the first time, with their
        addresses.

        A datagram from another network or port is ignored, because with several interfaces each
        socket receives a copy of every datagram.
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

    def _is_news(self, found: FoundPeer, now: float) -> bool:
        """Store an announcement and return whether its peer is new. If new peers exceed the rate
        limit, drop the announcement and return False."""
        news = self.neighbours.is_news(found)
        if news and not self._news.take(now):
            return False
        if news or self.neighbours.knows(found):
            self.neighbours.hear(found, now)
        return news

    def _be_asked(self, message: dns.DnsMessage, now: float) -> None:
        """Schedule a reply to a query. The delay lets one reply answer several queries, and keeps
        equal replies apart."""
        if self._announcement.is_asked(message):
            at = max(now + self._first_wait(), self._answered + ANSWER_S)
            self._answer_at = min(self._answer_at, at)
        if self._announcement.asks_for_kinds(message):
            at = max(now + self._first_wait(), self._kinds_said + ANSWER_S)
            self._kinds_at = min(self._kinds_at, at)

    def _first_wait(self) -> float:
        low, high = FIRST_WAIT_S
        return low + (high - low) * self._luck()

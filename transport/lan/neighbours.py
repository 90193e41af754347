"""Peers that announce themselves on a LAN, for as long as they say: limited, by our clock."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..host.datagrams import Place
from ..identity import PeerId
from .defaults import GOODBYE_S, REFRESH, REFRESH_SPREAD, LanLimits
from .service import Found


@dataclass(slots=True)
class Neighbour:
    """A peer at an address. `heard` and `expires` are on our clock, in seconds."""

    found: Found
    heard: float
    expires: float
    left: bool = False  # it said goodbye: remembered for a while, but not returned
    refreshed: int = 0  # how often its record was queried again
    spread: float = 0.0

    @property
    def refresh_at(self) -> float:
        """When to query its record again; infinite after the last attempt."""
        if self.left or self.refreshed >= len(REFRESH):
            return math.inf
        return self.heard + (REFRESH[self.refreshed] + self.spread) * (self.expires - self.heard)


class Neighbours:
    """All peers on one LAN. `luck` returns a random number from 0 to 1."""

    def __init__(self, limits: LanLimits, luck: Callable[[], float]) -> None:
        self._limits = limits
        self._luck = luck
        self._by_key: dict[tuple[PeerId, Place], Neighbour] = {}
        self._due = math.inf  # at or before the time when `pass_time` has work

    def __len__(self) -> int:
        return len(self._by_key)

    def places(self, peer: PeerId) -> list[Place]:
        """Return the addresses that a peer announced."""
        return [
            place
            for (known, place), item in self._by_key.items()
            if known == peer and not item.left
        ]

    def knows(self, found: Found) -> bool:
        """Whether that peer is stored at that address, also after its goodbye."""
        return (found.peer, found.place) in self._by_key

    def is_news(self, found: Found) -> bool:
        """Whether that peer is new at that address, within the limit per address."""
        if not found.ttl or self.knows(found):
            return False
        theirs = sum(place[0] == found.place[0] for _, place in self._by_key)
        return theirs < self._limits.per_source

    def hear(self, found: Found, now: float) -> None:
        """Store an announcement of a known or a new peer, or a goodbye."""
        key = found.peer, found.place
        known = self._by_key.get(key)
        if not found.ttl:
            if known is not None:
                known.left, known.expires = True, now + GOODBYE_S
                self._due = min(self._due, known.expires)
            return
        if known is None and len(self._by_key) >= self._limits.peers:
            del self._by_key[min(self._by_key, key=lambda each: self._by_key[each].expires)]
        spread = REFRESH_SPREAD * self._luck()
        item = self._by_key[key] = Neighbour(found, now, now + found.ttl, spread=spread)
        self._due = min(self._due, item.refresh_at)

    def due(self) -> float:
        """Return when to call `pass_time`; infinite while no peer is known."""
        return self._due

    def pass_time(self, now: float) -> bool:
        """Forget expired peers; return whether a query is due for any, and count it as sent."""
        if now < self._due:
            return False
        for key in [key for key, item in self._by_key.items() if item.expires <= now]:
            del self._by_key[key]
        late = [item for item in self._by_key.values() if item.refresh_at <= now]
        for item in late:
            item.refreshed += 1
        times = (min(item.expires, item.refresh_at) for item in self._by_key.values())
        self._due = min(times, default=math.inf)
        return bool(late)

    def known(self, now: float) -> list[tuple[bytes, int]]:
        """Return instances and their remaining seconds, freshest first.

        Only those with more than half of their life left are listed (RFC 6762, section 7.1).
        """
        fresh = [
            (item.expires - now, item.found.instance)
            for item in self._by_key.values()
            if not item.left and item.expires - now > (item.expires - item.heard) / 2
        ]
        return [(instance, int(rest)) for rest, instance in sorted(fresh, reverse=True)]

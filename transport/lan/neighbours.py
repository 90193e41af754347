"""Peers that announce themselves on a LAN, stored for as long as their announcements are valid."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..host.datagrams import Place
from ..identity import PeerId
from .defaults import GOODBYE_S, REFRESH, REFRESH_SPREAD, LanLimits
from .service import FoundPeer


@dataclass(slots=True)
class LanNeighbour:
    """A peer at an address. `heard` (when it was announced) and `expires` are times on this node's
    clock, in seconds."""

    found: FoundPeer
    heard: float
    expires: float
    left: bool = False  # after its goodbye: remembered for a while, but not returned to callers
    refreshed: int = 0  # how often its record was queried again
    spread: float = 0.0  # random addition to the times in `REFRESH`

    @property
    def refresh_at(self) -> float:
        """Time at which to query the peer's record again; infinite after the last attempt and after
        the peer's goodbye."""
        if self.left or self.refreshed >= len(REFRESH):
            return math.inf
        return self.heard + (REFRESH[self.refreshed] + self.spread) * (self.expires - self.heard)


class LanNeighbours:
    """The peers known on one LAN. `luck` returns a random number from 0 to 1."""

    def __init__(self, limits: LanLimits, luck: Callable[[], float]) -> None:
        self._limits = limits
        self._luck = luck
        self._by_key: dict[tuple[PeerId, Place], LanNeighbour] = {}
        self._due = math.inf  # not later than the time when `pass_time` has something to do

    def __len__(self) -> int:
        return len(self._by_key)

    def places(self, peer: PeerId) -> list[Place]:
        """Return the addresses that a peer has announced. Addresses withdrawn by a goodbye are left
        out."""
        return [
            place
            for (known, place), item in self._by_key.items()
            if known == peer and not item.left
        ]

    def knows(self, found: FoundPeer) -> bool:
        """Return whether the peer is stored at that address. This is still so for a while after its
        goodbye."""
        return (found.peer, found.place) in self._by_key

    def is_news(self, found: FoundPeer) -> bool:
        """Return whether the peer is new at that address and may be stored, given the limit on
        peers per IP address."""
        if not found.ttl or self.knows(found):
            return False
        theirs = sum(place[0] == found.place[0] for _, place in self._by_key)
        return theirs < self._limits.per_source

    def hear(self, found: FoundPeer, now: float) -> None:
        """Store the announcement of a peer. If it is a goodbye, mark the stored peer as having left
        instead."""
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
        item = self._by_key[key] = LanNeighbour(found, now, now + found.ttl, spread=spread)
        self._due = min(self._due, item.refresh_at)

    def due(self) -> float:
        """Return the time at which to call `pass_time` next; infinite while no peer is known."""
        return self._due

    def pass_time(self, now: float) -> bool:
        """Forget expired peers. Return whether the record of any peer must be queried again, and
        count that query as sent."""
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
        """Return (instance, remaining seconds) for the peers to list as known in a query, freshest
        first.

        Only peers with more than half of their lifetime left are listed (RFC 6762, section 7.1).
        """
        fresh = [
            (item.expires - now, item.found.instance)
            for item in self._by_key.values()
            if not item.left and item.expires - now > (item.expires - item.heard) / 2
        ]
        return [(instance, int(rest)) for rest, instance in sorted(fresh, reverse=True)]

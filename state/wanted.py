"""What this node lacks of others' feeds, who told of it, and whom to ask for it now.

A feed is asked of one teller at a time, and of the next when that one fails or is slow; a link has
one pull under way, the node a few. An author whose entries have been many of late waits: rates only
delay. Sans-I/O.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

from ..transport.identity import PeerId
from . import defaults
from .digest import Plot
from .gossip import Told

Place = tuple[bytes, Plot]
"""A feed by its author's public key, its kind and part."""


@dataclass(slots=True)
class _Want:
    tellers: dict[PeerId, Told] = field(default_factory=dict)
    asked: dict[PeerId, float] = field(default_factory=dict)  # under way, since when


class Wanted:
    """`lacks` says whether something told is news still."""

    def __init__(self, lacks: Callable[[Told], bool]) -> None:
        self._lacks = lacks
        self._wants: dict[Place, _Want] = {}
        self._pulls: dict[PeerId, float] = {}  # under way, since when
        self._vain: dict[tuple[PeerId, Told], float] = {}  # until when it is not asked for again
        self._free_at: dict[bytes, float] = {}  # by author: when what came is worked off

    def __len__(self) -> int:
        return len(self._wants)

    def tellers(self, place: Place) -> dict[PeerId, Told]:
        """Who has told of something lacking there."""
        want = self._wants.get(place)
        return {} if want is None else want.tellers

    def heard(self, peer: PeerId, heads: Iterable[Told], now: float) -> None:
        """A peer has these; note what is lacking here."""
        for told in heads:
            if not self._lacks(told) or self._vain.get((peer, told), now) > now:
                continue
            place = told.key, told.plot
            if place not in self._wants and len(self._wants) >= defaults.WANTS:
                break
            want = self._wants.setdefault(place, _Want())
            if peer in want.tellers or len(want.tellers) < defaults.TELLERS:
                want.tellers[peer] = told

    def next(self, now: float) -> dict[PeerId, list[Place]]:
        """Whom to ask for which feeds now; each ends with `ended`."""
        fresh = sum(now - since < defaults.PULL_PATIENCE for since in self._pulls.values())
        room = defaults.PULLS - fresh
        found: dict[PeerId, list[Place]] = {}
        for place, want in self._wants.items():
            if self._waits(place, want, now):
                continue
            peer = self._teller(want, found, room)
            if peer is not None:
                found.setdefault(peer, []).append(place)
                want.asked[peer] = now
        self._pulls |= dict.fromkeys(found, now)
        return found

    def _waits(self, place: Place, want: _Want, now: float) -> bool:
        if self._free_at.get(place[0], 0.0) - now > defaults.AUTHOR_BURST_S:
            return True
        return any(now - since < defaults.PULL_PATIENCE for since in want.asked.values())

    def _teller(self, want: _Want, found: dict[PeerId, list[Place]], room: int) -> PeerId | None:
        """The one with the latest head who is free, or is just about to be asked."""
        best: PeerId | None = None
        for peer, told in want.tellers.items():
            if peer in found:
                if len(found[peer]) >= defaults.PULL_FEEDS:
                    continue
            elif peer in self._pulls or len(found) >= room:
                continue
            if best is None or told[3:5] > want.tellers[best][3:5]:
                best = peer
        return best

    def next_at(self, now: float) -> float:
        """When `next` may find something that it does not find now, if nothing else happens."""
        late = [since + defaults.PULL_PATIENCE for since in self._pulls.values()]
        paced = [
            self._free_at.get(key, 0.0) - defaults.AUTHOR_BURST_S
            for key, _ in self._wants
            if key in self._free_at
        ]
        return min((when for when in (*late, *paced) if when > now), default=inf)

    def came(self, key: bytes, size: int, now: float) -> None:
        """Entries of an author came, so many bytes in all."""
        self._free_at[key] = max(self._free_at.get(key, 0.0), now) + size / defaults.AUTHOR_RATE
        if len(self._free_at) > defaults.WANTS:
            self._free_at = {key: when for key, when in self._free_at.items() if when > now}

    def ended(self, peer: PeerId, places: Iterable[Place], *, useful: bool, now: float) -> None:
        """A pull is over; what it did not bring is asked of the next, unless it is `useful` to ask
        this one again."""
        self._pulls.pop(peer, None)
        for place in places:
            want = self._wants.get(place)
            if want is None:
                continue
            want.asked.pop(peer, None)
            told = want.tellers.get(peer)
            if told is not None and not useful and self._lacks(told):
                del want.tellers[peer]
                self._set_vain(peer, told, now)
            self.settle(place)

    def _set_vain(self, peer: PeerId, told: Told, now: float) -> None:
        self._vain[peer, told] = now + defaults.VAIN_S
        while len(self._vain) > defaults.WANTS:
            del self._vain[next(iter(self._vain))]

    def settle(self, place: Place) -> None:
        """Something came of that feed: forget what is not lacking any more."""
        want = self._wants.get(place)
        if want is not None:
            for peer in [peer for peer, told in want.tellers.items() if not self._lacks(told)]:
                del want.tellers[peer]
            if not want.tellers:
                del self._wants[place]

    def lost(self, peer: PeerId) -> None:
        """The link to a peer is gone."""
        for place, want in list(self._wants.items()):
            want.tellers.pop(peer, None)
            if not want.tellers:
                del self._wants[place]

"""The peers with a link, what each keeps, and who of them is told news or compared with next.

News of a feed go to a few neighbours, those of them that keep it; where these are too few, to
others that do. So what few keep reaches them as well, if any of their links does. News of many
feeds at once, as after a cut of the network, go to more: together they cost little, and who hears
of them by few would have them late. Sans-I/O.
"""

from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import dataclass, field
from math import inf

from ..transport.identity import PeerId
from . import defaults
from .digest import Plot
from .interest import Keeps
from .kinds import all_parts

BucketAt = tuple[Plot, int]
"""A bucket of a plot's tree, by its number."""
Pair = tuple[bytes | None, bytes | None]
"""The hashes of a bucket here and there."""


@dataclass(slots=True)
class Neighbour:
    """What one node remembers of a peer that it exchanges feeds with."""

    comparing: bool = False
    turn: bool = False  # drawn by `next_round`, and not compared with since
    differed: bool = True  # when last compared: then the roots are sent at once
    pairs: dict[BucketAt, Pair] = field(default_factory=dict)
    """Buckets that differ, with nothing in them that is lacking here."""
    keeps: Keeps = None  # as it said last
    own_at: float = -inf  # when it may be asked again for own feeds that are not compared

    def shares(self, plot: Plot) -> bool:
        """Whether it keeps this, as far as it has said."""
        return self.keeps is None or plot in self.keeps


class Neighbours:
    """Of one node. `draw(n)` is a random number below n."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw
        self._peers: dict[PeerId, Neighbour] = {}
        self._compared: set[PeerId] = set()  # peers that had a turn, while others wait for theirs
        self._near: list[PeerId] = []  # who is told news: the first of them of few, all of many
        self._turned = 0.0

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._peers)

    def __contains__(self, peer: object) -> bool:
        return peer in self._peers

    def __len__(self) -> int:
        return len(self._peers)

    def get(self, peer: PeerId) -> Neighbour | None:
        return self._peers.get(peer)

    def add(self, peer: PeerId) -> None:
        """There is a link."""
        self._peers.setdefault(peer, Neighbour())

    def remove(self, peer: PeerId) -> None:
        """There is none any more."""
        self._peers.pop(peer, None)
        self._compared.discard(peer)
        if peer in self._near:
            self._near.remove(peer)

    def forget_pairs(self, numbers: Container[int] = range(256)) -> None:
        """Compare buckets with these numbers again: more is kept now than when they were."""
        for known in self._peers.values():
            for at in [at for at in known.pairs if at[1] in numbers]:
                del known.pairs[at]

    def sharing(self, plots: Collection[Plot]) -> list[PeerId]:
        """Who keeps any of these."""
        return [
            peer for peer, known in self._peers.items() if any(known.shares(plot) for plot in plots)
        ]

    def some(self, peers: list[PeerId], count: int) -> list[PeerId]:
        """So many of them, or all, by lot."""
        left = list(peers)
        return [left.pop(self._draw(len(left))) for _ in range(min(count, len(left)))]

    def somebody(self, keeps: Keeps) -> PeerId | None:
        """Return a random peer to compare with, but none twice before all others had their turn,
        so that the turn of an honest peer comes among many liars. Every second time it is one that
        keeps what is drawn of what this node keeps: of that few others may keep anything."""
        peers = list(self._peers)
        if self._draw(2):
            plots = list(all_parts()) if keeps is None else sorted(keeps)
            peers = self.sharing(plots[self._draw(len(plots)) :][:1]) or peers
        if not peers:
            return None
        waiting = [peer for peer in peers if peer not in self._compared]
        if not waiting:
            self._compared.difference_update(peers)
            waiting = peers
        found = waiting[self._draw(len(waiting))]
        self._compared.add(found)
        return found

    def turn(self, now: float) -> None:
        """Whom to tell news: few, at random, another one now and then."""
        if self._near and now - self._turned > defaults.NEIGHBOUR_TURN:
            self._turned = now
            self._near.pop(self._draw(min(len(self._near), defaults.NEIGHBOURS)))
        others = [peer for peer in self._peers if peer not in self._near]
        self._near += self.some(others, defaults.NEIGHBOURS_MOST - len(self._near))

    def keepers(self, plot: Plot, count: int = defaults.NEIGHBOURS) -> list[PeerId]:
        """Return the peers to tell news of a plot: those of the first `count` neighbours that keep
        it, and other peers that do where these are few."""
        found = [peer for peer in self._near[:count] if self._peers[peer].shares(plot)]
        least = min(defaults.COVER, count)
        if len(found) < least:
            others = [peer for peer in self.sharing((plot,)) if peer not in found]
            found += self.some(others, least - len(found))
        return found

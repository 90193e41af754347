"""Choice of the linked peers that get news of feeds, and of those to compare with.

News of a feed goes to the few neighbours that keep it. If these are too few, it also goes to other
peers that keep it, so that rare feeds still reach their replicas. News of many feeds at once, as
after a partition, goes to more peers: a batch costs little, and it would spread slowly through few.
No I/O.
"""

from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import dataclass, field
from math import inf

from ...transport.identity import PeerId
from .. import defaults
from ..feeds.digest import Plot
from ..feeds.kinds import all_parts
from .interest import Keeps

BucketAt = tuple[Plot, int]
"""A bucket of a plot's tree, by its number."""
Pair = tuple[bytes | None, bytes | None]
"""The hashes of a bucket at this node and at the peer."""


@dataclass(slots=True)
class Neighbour:
    """The state of the exchange with one linked peer."""

    comparing: bool = False
    turn: bool = False  # chosen by `next_round`, and not compared with since
    differed: bool = True  # at the last comparison; if so, the roots are sent at once
    pairs: dict[BucketAt, Pair] = field(default_factory=dict)
    """Buckets that differ, but have nothing that this node lacks."""
    keeps: Keeps = None  # by its latest message
    own_at: float = -inf  # when it may be asked again for own feeds that are not compared

    def shares(self, plot: Plot) -> bool:
        """Whether the peer keeps this plot, as far as is known."""
        return self.keeps is None or plot in self.keeps


class Neighbours:
    """The neighbours of one node. `draw(n)` returns a random number below n."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw
        self._peers: dict[PeerId, Neighbour] = {}
        self._compared: set[PeerId] = set()  # peers that had a turn, while others wait for theirs
        self._near: list[PeerId] = []  # peers that get news: of few feeds only the first
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
        """Add a peer that has a link now."""
        self._peers.setdefault(peer, Neighbour())

    def remove(self, peer: PeerId) -> None:
        """Remove a peer that has lost its link."""
        self._peers.pop(peer, None)
        self._compared.discard(peer)
        if peer in self._near:
            self._near.remove(peer)

    def forget_pairs(self, numbers: Container[int] = range(256)) -> None:
        """Let buckets with these numbers be compared again, because more is kept now."""
        for known in self._peers.values():
            for at in [at for at in known.pairs if at[1] in numbers]:
                del known.pairs[at]

    def sharing(self, plots: Collection[Plot]) -> list[PeerId]:
        """Return the peers that keep any of these plots."""
        return [
            peer for peer, known in self._peers.items() if any(known.shares(plot) for plot in plots)
        ]

    def some(self, peers: list[PeerId], count: int) -> list[PeerId]:
        """Return `count` of these peers at random, or all if there are fewer."""
        left = list(peers)
        return [left.pop(self._draw(len(left))) for _ in range(min(count, len(left)))]

    def somebody(self, keeps: Keeps) -> PeerId | None:
        """Return a random peer to compare with, or None.

        Each peer gets one turn before any gets a second, so that an honest peer gets its turn among
        many liars. Every second time or so, a random plot is drawn, and the peer is one that keeps
        it, because few peers may keep a rare plot.
        """
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
        """Update the random set of peers that get news. One of them is replaced from time to
        time."""
        if self._near and now - self._turned > defaults.NEIGHBOUR_TURN:
            self._turned = now
            self._near.pop(self._draw(min(len(self._near), defaults.NEIGHBOURS)))
        others = [peer for peer in self._peers if peer not in self._near]
        self._near += self.some(others, defaults.NEIGHBOURS_MOST - len(self._near))

    def keepers(self, plot: Plot, count: int = defaults.NEIGHBOURS) -> list[PeerId]:
        """Return the peers that get news of a plot.

        These are the ones among the first `count` neighbours that keep it, and other peers that
        keep it if those are few.
        """
        found = [peer for peer in self._near[:count] if self._peers[peer].shares(plot)]
        least = min(defaults.COVER, count)
        if len(found) < least:
            others = [peer for peer in self.sharing((plot,)) if peer not in found]
            found += self.some(others, least - len(found))
        return found

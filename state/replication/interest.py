"""Which feeds a node stores, which its linked peers store, and which peers therefore get news.

A small node stores the feeds about members, models and private groups, and of the other kinds only
what it uses. Feeds that it has not used for a while are dropped. It always stores its own feeds.
Two nodes compare and announce only feeds of plots (kinds and parts) that both store.

News of a feed goes to the few neighbours that store feeds of its plot. If these are too few, the
news also goes to other peers that do, so that rare feeds still reach their replicas. News of many
feeds at once, as after a partition, goes to more peers, because each message costs little and such
news would spread slowly through few peers. No I/O.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

from ...transport.identity import PeerId
from .. import defaults
from ..feeds.digest import Plot
from ..feeds.kinds import all_parts

Keeps = frozenset[Plot] | None
"""The plots (kinds and parts) that a node stores. None means all that its version knows."""
BASE: Final[frozenset[Plot]] = frozenset((("member", 0), ("models", 0), ("group", 0)))
"""Plots that every node stores. Without these feeds it would not know which authors to store."""
WORK: Final[frozenset[Plot]] = frozenset((("jobs", 0), ("claims", 0)))
"""Plots that a node stores as soon as it writes a feed of either, because each is useless without
the other."""
TUNING: Final[frozenset[Plot]] = frozenset((("tuning", 0),))
"""Plots that a node stores as soon as it takes part in a run of training."""


class Interest:
    """The plots (kinds and parts) of which one node stores other authors' feeds.

    `keeps` are the plots that the node stores at first, besides BASE. None means that it always
    stores all plots.
    """

    def __init__(self, keeps: Iterable[Plot] | None = None) -> None:
        self.on_gained: list[Callable[[frozenset[Plot]], None]] = []
        """Called with the plots that are stored from now on and were not before."""
        self._needed: Keeps = None if keeps is None else BASE | frozenset(keeps)
        self._stored = self._needed
        self._work: frozenset[Plot] = frozenset()
        # plots that are no longer needed, and until when they are stored
        self._until: dict[Plot, float] = {}

    def __call__(self, plot: Plot) -> bool:
        """Return whether other authors' feeds of this plot are stored."""
        return self._stored is None or plot in self._stored

    @property
    def stored(self) -> Keeps:
        """The plots that are stored. None means all."""
        return self._stored

    def aside(self) -> list[Plot]:
        """Return the plots of which only this node's own feeds are stored."""
        return [plot for plot in all_parts() if not self(plot)]

    def need(self, plots: Iterable[Plot], now: float) -> bool:
        """Set the plots that this node needs from now on. Return whether they have changed.

        Feeds that are no longer needed are stored for another UNUSED_KEPT seconds.
        """
        if self._needed is None:
            return False
        needed = BASE | self._work | frozenset(plots)
        if needed == self._needed:
            return False
        for plot in sorted(self._needed - needed):
            self._until[plot] = now + defaults.UNUSED_KEPT
        for plot in sorted(needed):
            self._until.pop(plot, None)
        self._needed = needed
        self._gain(needed)
        return True

    def wrote(self, plot: Plot) -> None:
        """Record that this node has a feed of its own of this plot.

        If the plot is one of WORK or TUNING, all of them are stored from now on.
        """
        for group in (WORK, TUNING):
            if plot in group and not group <= self._work and self._needed is not None:
                self._work |= group
                self._needed |= group
                self._gain(group)

    def _gain(self, plots: frozenset[Plot]) -> None:
        if self._stored is not None and (gained := plots - self._stored):
            self._stored |= gained
            for callback in self.on_gained:
                callback(gained)

    def next_at(self) -> float:
        """Return the time at which `expire` may have work if nothing else happens, or infinity."""
        return min(self._until.values(), default=inf)

    def expire(self, now: float) -> frozenset[Plot]:
        """Stop storing the plots that have not been needed for UNUSED_KEPT seconds. Return them."""
        gone = frozenset(plot for plot, until in self._until.items() if until <= now)
        for plot in sorted(gone):
            del self._until[plot]
        if self._stored is not None:
            self._stored -= gone
        return gone


def both(one: Keeps, other: Keeps) -> Keeps:
    """Return the plots that both nodes store. None means all."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


BucketAt = tuple[Plot, int]
"""A bucket of a plot's hash tree: (plot, number of the bucket)."""
Pair = tuple[bytes | None, bytes | None]
"""The hashes of a bucket at this node and at the peer."""


@dataclass(slots=True)
class Neighbour:
    """The state of the feed exchange with one linked peer."""

    comparing: bool = False
    turn: bool = False  # chosen by `next_round`, and not compared with since
    differed: bool = True  # at the last comparison; if so, the roots are sent at once
    pairs: dict[BucketAt, Pair] = field(default_factory=dict)
    """Hashes of the buckets that differ, but in which the peer has nothing that this node lacks."""
    keeps: Keeps = None  # by its latest message
    own_at: float = -inf  # when to ask again for this node's feeds that are not compared

    def shares(self, plot: Plot) -> bool:
        """Return whether the peer stores feeds of this plot. Returns True if that is unknown."""
        return self.keeps is None or plot in self.keeps


class Neighbours:
    """The linked peers of one node. `draw(n)` returns a random number below n."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw
        self._peers: dict[PeerId, Neighbour] = {}
        # peers that had their turn, while others wait for theirs
        self._compared: set[PeerId] = set()
        # peers that get news; if it is of few feeds, only the first ones
        self._near: list[PeerId] = []
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
        """Remove a peer whose link has ended."""
        self._peers.pop(peer, None)
        self._compared.discard(peer)
        if peer in self._near:
            self._near.remove(peer)

    def forget_pairs(self, numbers: Container[int] = range(256)) -> None:
        """Forget the hashes of differing buckets (`Neighbour.pairs`) with these numbers.

        The next comparison with each peer then includes these buckets of all plots again. This is
        needed when this node stores more feeds than before.
        """
        for known in self._peers.values():
            for at in [at for at in known.pairs if at[1] in numbers]:
                del known.pairs[at]

    def sharing(self, plots: Collection[Plot]) -> list[PeerId]:
        """Return the peers that store feeds of any of these plots."""
        return [
            peer for peer, known in self._peers.items() if any(known.shares(plot) for plot in plots)
        ]

    def some(self, peers: list[PeerId], count: int) -> list[PeerId]:
        """Return `count` of these peers, chosen at random, or all of them if there are fewer."""
        left = list(peers)
        return [left.pop(self._draw(len(left))) for _ in range(min(count, len(left)))]

    def somebody(self, keeps: Keeps) -> PeerId | None:
        """Return a random peer to compare feeds with, or None if there is none.

        Each peer gets one turn before any gets a second, so that an honest peer gets its turn among
        many liars. About every second time, a random plot is drawn first, and the peer is one that
        stores feeds of this plot, because few peers may store a rare plot.
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
        """Fill up the random list of peers that get news.

        From time to time, replace one of them.
        """
        if self._near and now - self._turned > defaults.NEIGHBOUR_TURN:
            self._turned = now
            self._near.pop(self._draw(min(len(self._near), defaults.NEIGHBOURS)))
        others = [peer for peer in self._peers if peer not in self._near]
        self._near += self.some(others, defaults.NEIGHBOURS_MOST - len(self._near))

    def keepers(self, plot: Plot, count: int = defaults.NEIGHBOURS) -> list[PeerId]:
        """Return the peers that get news of a feed of this plot.

        The first `count` neighbours get the news if they store feeds of the plot. If they are fewer
        than COVER, other peers that store such feeds are added.
        """
        found = [peer for peer in self._near[:count] if self._peers[peer].shares(plot)]
        least = min(defaults.COVER, count)
        if len(found) < least:
            others = [peer for peer in self.sharing((plot,)) if peer not in found]
            found += self.some(others, least - len(found))
        return found

"""Selection of the kinds of feeds that a node replicates: all, or only those that it uses.

A small node stores the feeds about members, models and private groups, and of the other kinds only
what it uses. Feeds that it has not used for a while are dropped. It always stores its own feeds.
Two nodes compare and announce only feeds of plots (kinds and parts) that both store. No I/O.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from .. import defaults
from ..feeds.digest import Plot
from ..feeds.kinds import all_parts

Keeps = frozenset[Plot] | None
"""The plots (kinds and parts) that a node stores. None means all that its version knows."""
BASE: Final[frozenset[Plot]] = frozenset((("member", 0), ("models", 0), ("group", 0)))
"""Plots that every node stores. Without these feeds it would not know which authors to store."""
WORK: Final[frozenset[Plot]] = frozenset((("jobs", 0), ("claims", 0)))
"""Plots that a node stores together if it writes a feed of one. Each is useless without the
other."""


class Interest:
    """The plots (kinds and parts) of which one node stores other authors' feeds.

    `keeps` are the plots that the node stores at first, besides BASE. None means that it always
    stores all plots.
    """

    def __init__(self, keeps: Iterable[Plot] | None = None) -> None:
        self.on_gained: list[Callable[[frozenset[Plot]], None]] = []
        """Called with the plots that are stored from now on and were not before."""
        self._needed: Keeps = None if keeps is None else BASE | frozenset(keeps)
        self._kept = self._needed
        self._work: frozenset[Plot] = frozenset()
        # plots that are no longer needed, and until when they are stored
        self._until: dict[Plot, float] = {}

    def __call__(self, plot: Plot) -> bool:
        """Return whether other authors' feeds of this plot are stored."""
        return self._kept is None or plot in self._kept

    @property
    def kept(self) -> Keeps:
        """The plots that are stored. None means all."""
        return self._kept

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
        for plot in self._needed - needed:
            self._until[plot] = now + defaults.UNUSED_KEPT
        for plot in needed:
            self._until.pop(plot, None)
        self._needed = needed
        self._gain(needed)
        return True

    def wrote(self, plot: Plot) -> None:
        """Record that this node has a feed of its own of this plot.

        If the plot is one of WORK, all of WORK is stored from now on.
        """
        if plot in WORK and not self._work and self._needed is not None:
            self._work = WORK
            self._needed |= WORK
            self._gain(WORK)

    def _gain(self, plots: frozenset[Plot]) -> None:
        if self._kept is not None and (gained := plots - self._kept):
            self._kept |= gained
            for callback in self.on_gained:
                callback(gained)

    def next_at(self) -> float:
        """Return the time at which `expire` may have work if nothing else happens, or infinity."""
        return min(self._until.values(), default=inf)

    def expire(self, now: float) -> frozenset[Plot]:
        """Stop storing the plots that have not been needed for UNUSED_KEPT seconds. Return them."""
        gone = frozenset(plot for plot, until in self._until.items() if until <= now)
        for plot in gone:
            del self._until[plot]
        if self._kept is not None:
            self._kept -= gone
        return gone


def both(one: Keeps, other: Keeps) -> Keeps:
    """Return the plots that both nodes store. None means all."""
    if one is None or other is None:
        return other if one is None else one
    return one & other

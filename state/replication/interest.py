"""Selection of the kinds of feeds that a node replicates: all, or only those that it uses.

A small node keeps the feeds about members, models and private groups, and of the rest only what it
uses. Feeds that it has not used for a while are dropped. It always keeps its own feeds. Two nodes
compare and announce only the feeds that both keep. No I/O.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from .. import defaults
from ..feeds.digest import Plot
from ..feeds.kinds import all_parts

Keeps = frozenset[Plot] | None
"""The kinds and parts that a node keeps; None means all that its version knows."""
BASE: Final[frozenset[Plot]] = frozenset((("member", 0), ("models", 0), ("group", 0)))
"""What every node keeps. Without these feeds it would not know whose feeds to keep."""
WORK: Final[frozenset[Plot]] = frozenset((("jobs", 0), ("claims", 0)))
"""Kinds that a node keeps together if it writes one of them. Each is useless without the other."""


class Interest:
    """The interest of one node. `keeps` is what it keeps at first besides BASE; None means all,
    always."""

    def __init__(self, keeps: Iterable[Plot] | None = None) -> None:
        self.on_gained: list[Callable[[frozenset[Plot]], None]] = []
        """Called with the plots that are newly kept."""
        self._needed: Keeps = None if keeps is None else BASE | frozenset(keeps)
        self._kept = self._needed
        self._work: frozenset[Plot] = frozenset()
        self._until: dict[Plot, float] = {}  # kept though no longer needed

    def __call__(self, plot: Plot) -> bool:
        """Whether other authors' feeds of this kind and part are kept."""
        return self._kept is None or plot in self._kept

    @property
    def kept(self) -> Keeps:
        """Return the kinds and parts that are kept; None means all."""
        return self._kept

    def aside(self) -> list[Plot]:
        """Return the kinds and parts of which only own feeds are kept."""
        return [plot for plot in all_parts() if not self(plot)]

    def need(self, plots: Iterable[Plot], now: float) -> bool:
        """Set what this node needs from now on, and return whether that is a change.

        Feeds that are no longer needed are dropped after UNUSED_KEPT seconds.
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
        """Note that this node has an own feed of this kind and part."""
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
        """Return when `expire` may have work, if nothing else happens."""
        return min(self._until.values(), default=inf)

    def expire(self, now: float) -> frozenset[Plot]:
        """Drop the kinds and parts that have not been used for long, and return them."""
        gone = frozenset(plot for plot, until in self._until.items() if until <= now)
        for plot in gone:
            del self._until[plot]
        if self._kept is not None:
            self._kept -= gone
        return gone


def both(one: Keeps, other: Keeps) -> Keeps:
    """Return the kinds and parts that both nodes keep."""
    if one is None or other is None:
        return other if one is None else one
    return one & other

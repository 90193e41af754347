"""Which feeds of others a node keeps: all, or those that it has use for.

A small node keeps who is in the swarm, what models there are and the private groups, and of the
rest what it uses; what it has not used for a while goes. Its own feeds are kept whatever they are.
Nodes compare, and tell each other, what both keep. Sans-I/O.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from . import defaults
from .digest import Plot
from .kinds import all_parts

Keeps = frozenset[Plot] | None
"""The kinds and parts that a node keeps; None: all that its version knows."""
BASE: Final[frozenset[Plot]] = frozenset((("member", 0), ("models", 0), ("group", 0)))
"""What every node keeps: without it none knows whose feeds to keep."""
WORK: Final[frozenset[Plot]] = frozenset((("jobs", 0), ("claims", 0)))
"""What whoever writes any of it keeps: neither means anything without the other."""


class Interest:
    """Of one node. `keeps`: what it begins with, besides BASE; None: all, and that stays so."""

    def __init__(self, keeps: Iterable[Plot] | None = None) -> None:
        self.on_gained: list[Callable[[frozenset[Plot]], None]] = []
        """Called with what is kept from now on."""
        self._needed: Keeps = None if keeps is None else BASE | frozenset(keeps)
        self._kept = self._needed
        self._work: frozenset[Plot] = frozenset()
        self._until: dict[Plot, float] = {}  # kept though not needed any more

    def __call__(self, plot: Plot) -> bool:
        """Whether others' feeds of it are kept."""
        return self._kept is None or plot in self._kept

    @property
    def kept(self) -> Keeps:
        """All that is kept."""
        return self._kept

    def aside(self) -> list[Plot]:
        """What is not kept of others."""
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
        """This node has a feed of its own there."""
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
        """When `expire` may have something to do, if nothing else happens."""
        return min(self._until.values(), default=inf)

    def expire(self, now: float) -> frozenset[Plot]:
        """What is not kept any more since it has not been used for long."""
        gone = frozenset(plot for plot, until in self._until.items() if until <= now)
        for plot in gone:
            del self._until[plot]
        if self._kept is not None:
            self._kept -= gone
        return gone


def both(one: Keeps, other: Keeps) -> Keeps:
    """What two nodes keep both."""
    if one is None or other is None:
        return other if one is None else one
    return one & other

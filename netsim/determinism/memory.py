"""Garbage collection at moments that depend only on the program, not on the machine.

A collection runs finalizers, closes leaked resources and starts trio's clean-up tasks, so the trace
shows when it happened. The interpreter's own trigger is therefore off during a run. Instead, the
clock calls the collector after every instant, and the amount of work done so far (events and
instants) decides when to collect. Young objects are collected often, because their number
determines the cost. Full collections happen at growing intervals, because each one walks the whole
heap, which may have gigabytes. After a middle or full collection, free memory is returned to the
operating system, because a swarm needs less memory once it has started.
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG: Final = 20_000
"""Amount of work, in events plus instants, between two collections of the youngest generation."""
MIDDLE: Final = 10 * YOUNG
FULL_FIRST: Final = 12 * YOUNG
FULL_AT_MOST: Final = 1_000 * YOUNG
"""The work between two full collections doubles from `FULL_FIRST` up to this value."""


class Collector:
    """Garbage collector that collects after a fixed amount of work."""

    __slots__ = ("_full", "_interval", "_middle", "_turns", "_young", "trim")

    def __init__(self) -> None:
        self._turns = 0
        # `malloc_trim` of glibc returns free memory; it takes 5 ms for 200 MiB
        self.trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._young = YOUNG
        self._middle = MIDDLE
        self._full = self._interval = FULL_FIRST

    def turn(self, events: int) -> None:
        """Count the end of an instant, and collect garbage if enough work has been done. `events`
        is the number of events run so far.
        """
        self._turns += 1
        work = events + self._turns
        if work >= self._young:
            self._collect(work)

    def _collect(self, work: int) -> None:
        """Collect the oldest generation that is due, and all younger ones. Set the amount of work
        at which each generation is due next.
        """
        self._young = work + YOUNG
        if work >= self._full:
            self._interval = min(2 * self._interval, FULL_AT_MOST)
            self._full = work + self._interval
            self._middle = work + MIDDLE
            gc.collect(2)
            self._give_back()
        elif work >= self._middle:
            self._middle = work + MIDDLE
            gc.collect(1)
            self._give_back()
        else:
            gc.collect(0)

    def _give_back(self) -> None:
        """Return free memory to the operating system, if the C library can."""
        if self.trim is not None:
            self.trim(0)


@contextmanager
def deterministic_collection() -> Iterator[Collector]:
    """Replace the interpreter's own garbage collection with a Collector, for the duration of the
    context. Objects that exist at the start are not collected until the end.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield Collector()
    finally:
        gc.unfreeze()  # unfreezes all: counting what was frozen before would walk the whole heap
        if was_enabled:
            gc.enable()

"""Garbage collection at moments that depend on the program only, not on the machine.

A collection runs finalizers, closes forgotten resources and starts trio's clean-up tasks, so its
moment shows in the trace. Therefore the interpreter's own trigger is off during a run. The clock
calls the collector after every instant, and collections happen at counts of work done. Young
objects are collected often, at a cost that grows with their number. Full collections come at
growing intervals, so that a heap of gigabytes is not walked all the time. Free memory is then
returned to the operating system: a swarm needs less once it has started.
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG: Final = 20_000
"""Events and instants between collections of the youngest objects."""
MIDDLE: Final = 10 * YOUNG
FULL_FIRST: Final = 12 * YOUNG
FULL_AT_MOST: Final = 1_000 * YOUNG
"""The interval between full collections doubles from the first value to this one."""


class Collector:
    """Decides what to collect from the work done so far."""

    __slots__ = ("_full", "_interval", "_middle", "_trim", "_turns", "_young")

    def __init__(self) -> None:
        self._turns = 0
        # function of glibc; 5 ms for 200 MiB
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._young = YOUNG
        self._middle = MIDDLE
        self._full = self._interval = FULL_FIRST

    def turn(self, events: int) -> None:
        """Note the end of an instant; `events` events have run so far."""
        self._turns += 1
        work = events + self._turns
        if work >= self._young:
            self._collect(work)

    def _collect(self, work: int) -> None:
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
        if self._trim is not None:
            self._trim(0)


@contextmanager
def deterministic_collection() -> Iterator[Collector]:
    """Replace the interpreter's own trigger while the context lasts; ignore objects that exist
    already.
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

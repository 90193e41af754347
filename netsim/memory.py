"""Garbage collection at moments that the program decides, not the machine.

A collection runs finalizers, closes what was forgotten and starts trio's clean-up tasks: where
it falls shows in the trace. So the interpreter's own trigger is off during a run; instead the
clock asks after every instant, and collections come at counts of work done. The young are
collected often, which costs as much as there are young objects. Everything at ever longer
intervals, so that a heap of gigabytes is not walked all the time. What then is free goes back to
the operating system: a swarm that has booted needs less than while it does.
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
"""The interval between full collections doubles from the first to this."""


class Collector:
    """Decides by the work done so far what is collected."""

    __slots__ = ("_full", "_interval", "_middle", "_trim", "_turns", "_young")

    def __init__(self) -> None:
        self._turns = 0
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; 5 ms for 200 MiB
        self._young = YOUNG
        self._middle = MIDDLE
        self._full = self._interval = FULL_FIRST

    def turn(self, events: int) -> None:
        """An instant is over, and `events` events have run so far."""
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
    """The interpreter's own trigger off; what was there before is not looked at."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield Collector()
    finally:
        gc.unfreeze()  # what was frozen before as well: to count it first would walk the whole heap
        if was_enabled:
            gc.enable()

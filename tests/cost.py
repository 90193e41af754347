"""Time in milliseconds of a reference machine, for tests that bound what a piece of code takes.

A bound in seconds fails where the machine is slow, or where other programs share its cores. A
piece of code that takes 50 reference ms takes 50 times as long as `bench/yardstick.py` on any
machine, and both grow with the load. The samples of the yardstick are taken right before and right
after what is measured.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.yardstick import Yardstick

SAMPLES = 4


@dataclass
class Cost:
    """CPU time that the body of a `with cost()` has taken."""

    reference_ms: float = 0.0


@contextmanager
def cost(clock: Callable[[], float] = time.thread_time) -> Iterator[Cost]:
    """Measure the body with this clock, which is the CPU time of the thread unless given.

    Collections of garbage look only at the objects of the body: a walk through what earlier tests
    have left takes a third of a second.
    """
    found, yardstick = Cost(), Yardstick(clock)
    yardstick.sample(SAMPLES)
    gc.freeze()
    began = clock()
    try:
        yield found
    finally:
        took = clock() - began
        gc.unfreeze()
        yardstick.sample(SAMPLES)
        found.reference_ms = yardstick.reference_ms(took * 1e3)

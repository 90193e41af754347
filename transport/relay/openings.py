"""Admission of new circuits: a few open at a time, so that each opens quickly; members first.

Handshakes are most of what a circuit for hole punching carries. If all began at once, each would
get so little of a small rate that all would time out and start again.
"""

from collections import Counter

import trio

from ..host.seam import Host
from .defaults import (
    OPENING_RATE,
    OPENING_S,
    OPENINGS_LEAST,
    QUEUE,
    QUEUE_PER_SOURCE,
    QUEUE_S,
)


class Openings:
    """Limits the handshakes in progress at a relay with a rate of `rate` bytes per second."""

    def __init__(self, host: Host, rate: int) -> None:
        self._host = host
        self._most = max(OPENINGS_LEAST, rate // OPENING_RATE)
        self._open: dict[object, float] = {}  # until when each counts as opening
        self._waiting: dict[bool, dict[object, None]] = {True: {}, False: {}}  # by membership
        self._sources: Counter[str] = Counter()  # sources of waiting circuits
        self._changed = trio.Event()

    async def enter(self, key: object, source: str, *, member: bool) -> bool:
        """Wait up to `QUEUE_S` seconds for a turn; return whether it came. If so, call `leave`."""
        line = self._waiting[member]
        if len(line) >= QUEUE or self._sources[source] >= QUEUE_PER_SOURCE:
            return False
        line[key] = None
        self._sources[source] += 1
        try:
            with trio.move_on_after(QUEUE_S):
                while not self._may(key):
                    with trio.move_on_after(self._next_free()):
                        await self._changed.wait()
                self._open[key] = self._host.now() + OPENING_S
                return True
        finally:
            del line[key]
            self._sources -= Counter((source,))
            self._wake()
        return False

    def leave(self, key: object) -> None:
        """Free the turn when the circuit is open or has ended. May be repeated."""
        if self._open.pop(key, None) is not None:
            self._wake()

    def _may(self, key: object) -> bool:
        now = self._host.now()
        for old in [old for old, until in self._open.items() if until <= now]:
            del self._open[old]
        first = next((each for line in self._waiting.values() for each in line), None)
        return key is first and len(self._open) < self._most

    def _next_free(self) -> float:
        soonest = min(self._open.values(), default=0.0) - self._host.now()
        return max(0.01, soonest)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

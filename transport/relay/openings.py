"""Queue of circuits that wait to be opened. Only a few open at a time, and members come first.

A circuit for hole punching carries mostly handshakes. If all handshakes began at once, each would
get so little of a small rate that all would time out and begin again.
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
    """Limiter of the handshakes in progress at a relay with a rate of `rate` bytes per second."""

    def __init__(self, host: Host, rate: int) -> None:
        self._host = host
        self._most = max(OPENINGS_LEAST, rate // OPENING_RATE)
        self._open: dict[object, float] = {}  # time until which each circuit counts as opening
        # Waiting circuits of members (True) and of strangers (False), in order of arrival.
        self._waiting: dict[bool, dict[object, None]] = {True: {}, False: {}}
        self._sources: Counter[str] = Counter()  # sources of waiting circuits
        self._changed = trio.Event()

    async def enter(self, key: object, source: str, *, member: bool) -> bool:
        """Wait up to `QUEUE_S` seconds until a circuit may be opened. Return whether it may.

        `key` identifies the circuit. If the result is True, the caller must call `leave`. Returns
        False at once if too many circuits are waiting.
        """
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
        """Stop counting a circuit, because it has been opened or has ended. May be called
        repeatedly."""
        if self._open.pop(key, None) is not None:
            self._wake()

    def _may(self, key: object) -> bool:
        """Return whether a waiting circuit is the first one and may be opened now."""
        now = self._host.now()
        for old in [old for old, until in self._open.items() if until <= now]:
            del self._open[old]
        first = next((each for line in self._waiting.values() for each in line), None)
        return key is first and len(self._open) < self._most

    def _next_free(self) -> float:
        """Return the seconds until the next circuit stops counting as opening."""
        soonest = min(self._open.values(), default=0.0) - self._host.now()
        return max(0.01, soonest)

    def _wake(self) -> None:
        """Wake all waiting tasks."""
        self._changed.set()
        self._changed = trio.Event()

"""Limiter of concurrent actions that shares its slots fairly between sources.

A liar can name any number of addresses from which no reply ever comes. A dial of each occupies a
slot until it times out. If all slots are taken, the source with the most slots therefore loses its
oldest slot to a source with fewer. When a slot becomes free, it goes to the waiting source with the
fewest slots. The shares are max-min fair (`shares.py`).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

import trio

from ..shares import Shares

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Use:
    """One action that waits for a slot or has one, charged to the source `name`."""

    name: str
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    admitted: trio.Event = field(default_factory=trio.Event)


class FairSlots:
    """Slots for at most `count` concurrent actions.

    If more than `waiting` actions wait for a slot, the source with the most waiting actions loses
    the latest of them.
    """

    def __init__(self, count: int, *, waiting: float = inf) -> None:
        self._count = count
        self._most = waiting
        self._used: dict[_Use, None] = {}  # oldest first
        self.waiting: dict[_Use, None] = {}
        """Actions that wait for a slot, the earliest first."""
        self.shares = Shares()
        """Number of slots that each source has."""
        self.queued = Shares()

    def __len__(self) -> int:
        """Return the number of slots in use."""
        return len(self._used)

    async def use(self, names: Sequence[str], action: Callable[[], Awaitable[T]]) -> T | None:
        """Run `action` in a slot. Return its result, or None if it lost its slot to another source.

        `names` are the sources for which the action runs. The slot is charged to the one that has
        the fewest slots.
        """
        use = _Use(min(names, key=self.shares.__getitem__))
        self._enter(use)
        try:
            await use.admitted.wait()
            if not use.scope.cancel_called:
                with use.scope:
                    return await action()
            return None
        finally:
            self._leave(use)

    def _enter(self, use: _Use) -> None:
        """Give a slot to an action, or queue the action.

        If all slots are taken, the action gets the slot of another source if that is fair.
        """
        if len(self._used) >= self._count:
            largest = self.shares.largest(use.name, {use.name: 1})
            if largest == use.name:
                self._queue(use)
                return
            oldest = next(each for each in self._used if each.name == largest)
            self._free(oldest)
            oldest.scope.cancel()
        self._admit(use)

    def _queue(self, use: _Use) -> None:
        """Append an action to the queue. If the queue is too long, cancel one action."""
        self.waiting[use] = None
        self.queued.change(use.name, 1)
        if len(self.waiting) > self._most:
            largest = self.queued.largest(use.name, {})
            latest = next(each for each in reversed(self.waiting) if each.name == largest)
            self._unqueue(latest)
            latest.scope.cancel()
            latest.admitted.set()

    def _unqueue(self, use: _Use) -> None:
        """Remove an action from the queue."""
        del self.waiting[use]
        self.queued.change(use.name, -1)

    def _admit(self, use: _Use) -> None:
        """Give a slot to an action."""
        self._used[use] = None
        self.shares.change(use.name, 1)
        use.admitted.set()

    def _free(self, use: _Use) -> None:
        """Take the slot away from an action."""
        del self._used[use]
        self.shares.change(use.name, -1)

    def _leave(self, use: _Use) -> None:
        """Release the slot of an action that has ended, and give the slot to the next action."""
        if use in self.waiting:
            self._unqueue(use)
        if use not in self._used:
            return  # another use has taken the slot
        self._free(use)
        if self.waiting:
            following = min(self.waiting, key=lambda each: self.shares[each.name])
            self._unqueue(following)
            self._admit(following)

"""Places for what only so much of may be under way, in equal shares by who caused it.

A liar names addresses that swallow everything, anybody's and as many as it likes. Each takes a
place for as long as an answer is waited for; so where all places are taken, whoever has most of
them loses its oldest to another, and of those that wait the one with the fewest comes first.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

import trio

from .shares import Shares

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Use:
    name: str
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    admitted: trio.Event = field(default_factory=trio.Event)


class Slots:
    """`count` places; of more than `waiting` that wait for one, who has most of those loses its
    latest."""

    def __init__(self, count: int, *, waiting: float = inf) -> None:
        self._count = count
        self._most = waiting
        self._used: dict[_Use, None] = {}  # the oldest first
        self._waiting: dict[_Use, None] = {}
        self._shares = Shares()
        self._queued = Shares()

    def __len__(self) -> int:
        """Places that are taken."""
        return len(self._used)

    async def use(self, names: Sequence[str], action: Callable[[], Awaitable[T]]) -> T | None:
        """What `action` returns, run in a place of the one of `names` that has the fewest; None
        where it was to make room for another."""
        use = _Use(min(names, key=self._shares.__getitem__))
        self._come(use)
        try:
            await use.admitted.wait()
            if not use.scope.cancel_called:
                with use.scope:
                    return await action()
            return None
        finally:
            self._leave(use)

    def _come(self, use: _Use) -> None:
        if len(self._used) >= self._count:
            largest = self._shares.largest(use.name, {use.name: 1})
            if largest == use.name:
                self._queue(use)
                return
            oldest = next(each for each in self._used if each.name == largest)
            self._free(oldest)
            oldest.scope.cancel()
        self._admit(use)

    def _queue(self, use: _Use) -> None:
        self._waiting[use] = None
        self._queued.change(use.name, 1)
        if len(self._waiting) > self._most:
            largest = self._queued.largest(use.name, {})
            latest = next(each for each in reversed(self._waiting) if each.name == largest)
            self._unqueue(latest)
            latest.scope.cancel()
            latest.admitted.set()

    def _unqueue(self, use: _Use) -> None:
        del self._waiting[use]
        self._queued.change(use.name, -1)

    def _admit(self, use: _Use) -> None:
        self._used[use] = None
        self._shares.change(use.name, 1)
        use.admitted.set()

    def _free(self, use: _Use) -> None:
        del self._used[use]
        self._shares.change(use.name, -1)

    def _leave(self, use: _Use) -> None:
        if use in self._waiting:
            self._unqueue(use)
        if use not in self._used:
            return  # another has its place
        self._free(use)
        if self._waiting:
            following = min(self._waiting, key=lambda each: self._shares[each.name])
            self._unqueue(following)
            self._admit(following)

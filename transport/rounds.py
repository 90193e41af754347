"""Tries something again and again, without a slow try holding up the next."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import trio

T = TypeVar("T")

_AT_ONCE: Final = 2


class Rounds(Generic[T]):
    """A new round begins `pause` seconds after one has failed, and at the latest `every()` seconds
    after it began: a dial into a dead network waits ever longer between its packets, a new
    one sends at once. Two are under way at most; a third ends the older one."""

    def __init__(self, *, pause: float, every: Callable[[], float]) -> None:
        self._pause = pause
        self._every = every
        self._wait = trio.CancelScope()
        self._woken = False
        self._result: T | None = None

    def wake(self) -> None:
        """Something has changed: a new round is worth a try now."""
        self._woken = True
        self._wait.cancel()

    async def run(self, once: Callable[[], Awaitable[T | None]]) -> T:
        """Until one of them returns something."""
        scopes: deque[trio.CancelScope] = deque()
        async with trio.open_nursery() as nursery:
            while self._result is None:
                if len(scopes) == _AT_ONCE:
                    scopes.popleft().cancel()
                scope, over = trio.CancelScope(), trio.Event()
                scopes.append(scope)
                nursery.start_soon(self._one, once, scope, over, nursery)
                self._woken = False
                await trio.sleep(self._pause)
                with trio.move_on_after(self._every() - self._pause) as self._wait:
                    if not self._woken:
                        await over.wait()
            nursery.cancel_scope.cancel()
        assert self._result is not None
        return self._result

    async def _one(
        self,
        once: Callable[[], Awaitable[T | None]],
        scope: trio.CancelScope,
        over: trio.Event,
        nursery: trio.Nursery,
    ) -> None:
        with scope:
            self._result = await once()
        if self._result is not None:
            nursery.cancel_scope.cancel()
        over.set()

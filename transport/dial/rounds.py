"""Retry loop in which a slow attempt does not delay the next one."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import trio

from ..host.seam import Host

T = TypeVar("T")

_AT_ONCE: Final = 3  # largest number of concurrent rounds
_LONGER: Final = 1.3  # factor by which the pause grows after each round
_APART_S: Final = 1.0  # shortest time between the starts of two rounds, in seconds


class RetryRounds(Generic[T]):
    """Rounds of retries.

    A new round begins `pause` seconds after the last one has failed, and at the latest `every()`
    seconds after that one began. The pause grows slightly with each round. Rounds overlap because a
    TCP dial into a dead network waits longer and longer between its packets, while a new dial sends
    at once. At most three rounds run at the same time; a fourth cancels the oldest. All these times
    are multiplied by `times()`.
    """

    def __init__(
        self,
        host: Host,
        *,
        pause: float,
        every: Callable[[], float],
        times: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._times = times
        self._host = host
        self._pause = pause
        self._every = every
        self._began = host.now()  # start of the latest round
        self._next = trio.CancelScope()  # the wait for the next round
        self._result: T | None = None

    def wake(self) -> None:
        """Begin a new round as soon as possible, because something has changed."""
        self._next.deadline = min(self._next.deadline, self._began + _APART_S * self._times())

    async def run(self, once: Callable[[], Awaitable[T | None]]) -> T:
        """Call `once` in rounds until it returns something other than None, and return that."""
        scopes: deque[trio.CancelScope] = deque()
        pause = self._pause
        async with trio.open_nursery() as nursery:
            while self._result is None:
                if len(scopes) == _AT_ONCE:
                    scopes.popleft().cancel()
                scope, over = trio.CancelScope(), trio.Event()
                scopes.append(scope)
                nursery.start_soon(self._one, once, scope, over, nursery)
                self._began = self._host.now()
                every = self._every() * self._times()
                with trio.CancelScope(deadline=self._began + every) as self._next:
                    await over.wait()
                    await trio.sleep(pause * self._times())
                    pause *= _LONGER
        assert self._result is not None
        return self._result

    async def _one(
        self,
        once: Callable[[], Awaitable[T | None]],
        scope: trio.CancelScope,
        over: trio.Event,
        nursery: trio.Nursery,
    ) -> None:
        """Run one round. If it has a result, end all rounds."""
        with scope:
            self._result = await once()
        if self._result is not None:
            nursery.cancel_scope.cancel()
        over.set()

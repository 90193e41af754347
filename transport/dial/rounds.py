"""Retry loop in which a slow try does not delay the next one."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import trio

from ..host.seam import Host

T = TypeVar("T")

_AT_ONCE: Final = 3
_LONGER: Final = 1.3
_APART_S: Final = 1.0


class Rounds(Generic[T]):
    """Rounds of retries. A new round begins `pause` seconds after one has failed, slightly longer
    each time, and at the latest `every()` seconds after it began. A dial into a dead network
    waits longer and longer between its packets, but a new dial sends at once. At most three
    rounds run at the same time; a fourth cancels the oldest. `times()` multiplies all these
    times."""

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
        """Begin a new round now, because something has changed."""
        self._next.deadline = min(self._next.deadline, self._began + _APART_S * self._times())

    async def run(self, once: Callable[[], Awaitable[T | None]]) -> T:
        """Run rounds until one returns a result, and return that."""
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
        with scope:
            self._result = await once()
        if self._result is not None:
            nursery.cancel_scope.cancel()
        over.set()

"""Lets jobs compute only while the node has no interactive requests."""

from collections.abc import Callable

import trio

from . import defaults


class IdleTime:
    """`Turn` of jobs. `waited_for` returns the number of interactive requests."""

    def __init__(self, waited_for: Callable[[], int]) -> None:
        self._waited_for = waited_for

    def is_over(self) -> bool:
        return self._waited_for() > 0

    async def come(self) -> None:
        while self.is_over():  # noqa: ASYNC110  two counters of other parts, without events
            await trio.sleep(defaults.PAUSE)

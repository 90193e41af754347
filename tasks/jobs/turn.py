"""When a node computes for jobs: while nobody waits for an answer of it."""

from collections.abc import Callable

import trio

from . import defaults


class IdleTime:
    """`Turn` of jobs. `waited_for`: of how many requests somebody waits for the answer."""

    def __init__(self, waited_for: Callable[[], int]) -> None:
        self._waited_for = waited_for

    def is_over(self) -> bool:
        return self._waited_for() > 0

    async def come(self) -> None:
        while self.is_over():  # noqa: ASYNC110  two counts of other parts, which tell nobody
            await trio.sleep(defaults.PAUSE)

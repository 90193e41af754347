"""How many rows of jobs a node computes at once: more while all have room, fewer when stages
refuse."""

import trio

from . import defaults


class Places:
    """Places for rows. A row is a task that holds a place (`limiter`) while it is computed."""

    def __init__(self) -> None:
        self._limit = float(defaults.FIRST_ROWS)
        self._gate = trio.Lock()
        self.limiter = trio.CapacityLimiter(defaults.FIRST_ROWS)

    @property
    def busy(self) -> int:
        """Number of rows that are computed now."""
        return int(self.limiter.borrowed_tokens)

    @property
    def free(self) -> int:
        """Number of further rows that could be computed now."""
        waiting = self.limiter.statistics().tasks_waiting
        return max(0, int(self._limit) - self.busy - waiting)

    async def begin(self) -> None:
        """Wait until a row may begin: one after the other, so that the event loop of a node that
        opens many sessions answers its user's requests meanwhile."""
        async with self._gate:
            await trio.sleep(defaults.ROW_PAUSE)

    def had_room(self) -> None:
        """Record that a row was computed without a refusal."""
        self._set(self._limit + 1.0)

    def had_no_room(self) -> None:
        """Record that a stage has refused a row because of what else it computes."""
        self._set(min(self._limit, self.busy) * 0.75)

    def _set(self, limit: float) -> None:
        self._limit = min(max(limit, 1.0), float(defaults.ROWS_AT_ONCE))
        self.limiter.total_tokens = int(self._limit)

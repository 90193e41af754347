"""One alarm for the deadlines of all calls. A cancel scope for each would cost 10 µs per call."""

from collections.abc import Callable
from math import inf

import trio

from ..defaults import ALARM_S
from ..host.seam import Host


class Alarm:
    """Alarm that calls `expire(now)` at the earliest time that was passed to `set`.

    `expire` returns the time of the next alarm, infinity for none. Times are seconds on the host's
    clock. The first alarm is on time. Later ones may be up to `ALARM_S` late, so that one call of
    `expire` handles many deadlines.
    """

    def __init__(self, host: Host, expire: Callable[[float], float]) -> None:
        self._host = host
        self._expire = expire
        self._at = inf
        self._scope: trio.CancelScope | None = None

    def set(self, at: float) -> None:
        """Schedule an alarm at the time `at` or earlier."""
        if at < self._at:
            self._at = at
            if self._scope is not None:
                self._scope.deadline = at

    def move(self, at: float) -> None:
        """Schedule the next alarm at the time `at`, which may be later than before."""
        if at != self._at:
            self._at = at
            if self._scope is not None:
                self._scope.deadline = at

    async def run(self) -> None:
        """Wait for alarms and call `expire`, until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._at) as self._scope:
                await trio.sleep_forever()
            self._scope, self._at = None, inf
            now = self._host.now()
            self.set(max(self._expire(now), now + ALARM_S))

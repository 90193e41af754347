"""One alarm for the deadlines of all calls: a cancel scope for each costs 10 µs a call."""

from collections.abc import Callable
from math import inf

import trio

from .defaults import ALARM_S
from .host import Host


class Alarm:
    """Calls `expire(now)` at the earliest time that was `set`; it returns the next one.

    Times are the host's. The first is met exactly, those that follow at most `ALARM_S` late, so
    that many of them cost one look.
    """

    def __init__(self, host: Host, expire: Callable[[float], float]) -> None:
        self._host = host
        self._expire = expire
        self._at = inf
        self._scope: trio.CancelScope | None = None

    def set(self, at: float) -> None:
        """Something is due at this time."""
        if at < self._at:
            self._at = at
            if self._scope is not None:
                self._scope.deadline = at

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._at) as self._scope:
                await trio.sleep_forever()
            self._scope, self._at = None, inf
            now = self._host.now()
            self.set(max(self._expire(now), now + ALARM_S))

"""One shared alarm for the deadlines of all calls; a cancel scope for each costs 10 µs a call."""

from collections.abc import Callable
from math import inf

import trio

from ..defaults import ALARM_S
from ..host.seam import Host


class Alarm:
    """Alarm that calls `expire(now)` at the earliest time that was `set`. `expire` returns the
    next time.

    Times are the host's. The first deadline is met exactly. Later ones may be up to `ALARM_S`
    late, so that one call of `expire` handles many of them.
    """

    def __init__(self, host: Host, expire: Callable[[float], float]) -> None:
        self._host = host
        self._expire = expire
        self._at = inf
        self._scope: trio.CancelScope | None = None

    def set(self, at: float) -> None:
        """Make sure that the alarm goes off at this time or earlier."""
        if at < self._at:
            self._at = at
            if self._scope is not None:
                self._scope.deadline = at

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._at) as self._scope:
                await trio.sleep_forever()
            self._scope, self._at = None, inf
            now = self._host.now()
            self.set(max(self._expire(now), now + ALARM_S))

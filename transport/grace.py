"""The time in which a link has no path, or may have none soon: both sides look for a new one
(docs/spec/lane.md, section 5)."""

from collections.abc import Awaitable, Callable

import trio

from . import defaults
from .host import Host
from .legs import Legs
from .limits import Limits


class Grace:
    """One link's grace, each time that it has one. `quiet`: its peer has not been heard of for
    `Limits.quiet_s`."""

    def __init__(
        self,
        host: Host,
        limits: Limits,
        legs: Legs,
        *,
        rescue: Callable[[], Awaitable[str | None]],
        at_stake: Callable[[], bool],
        quiet: Callable[[], None],
        back: Callable[[], None],
        end: Callable[[str], None],
    ) -> None:
        """`rescue` looks for a path until cancelled, or returns a code to `end` the link with;
        `at_stake` says whether somebody would miss the link; `quiet` and `back` are called when
        the peer grows quiet, and when it is there again."""
        self.quiet = False
        self._host = host
        self._limits = limits
        self._legs = legs
        self._rescue = rescue
        self._at_stake = at_stake
        self._tell_quiet = quiet
        self._tell_back = back
        self._end = end
        self._scope: trio.CancelScope | None = None

    @property
    def under_way(self) -> bool:
        """Whether a path is looked for."""
        return self._scope is not None

    async def run(self) -> None:
        """Look for a path until the peer is `found`, or the link's time is over."""
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            nursery.start_soon(self._run_out)
            code = await self._rescue()
            if code is not None:
                self._end(code)
            nursery.cancel_scope.cancel()
        self._scope = None

    def found(self) -> None:
        """The peer is there: nothing need be looked for."""
        if self._scope is not None:
            self._scope.cancel()
        if self.quiet:
            self.quiet = False
            self._tell_back()

    async def _run_out(self) -> None:
        """Without a connection it grows quiet, and ends: later where somebody would miss it.
        Time in which our own loop stood still (a laptop's sleep) does not count."""
        limits, now = self._limits, self._host.now()
        heard = now + defaults.RESTORE_S - limits.quiet_s
        while True:
            heard = max(heard, self._legs.heard)
            silence = now - heard if self._legs.missing else 0.0
            if silence >= limits.quiet_s and not self.quiet:
                self.quiet = True
                self._tell_quiet()
            if silence >= limits.hold_s or (silence >= limits.grace_s and not self._at_stake()):
                self._end("silent" if self._legs.silent else "unreachable")
                return
            await trio.sleep(defaults.TICK_S)
            late = self._host.now() - now - defaults.TICK_S
            heard += late if late > defaults.STALL_S else 0.0
            now = self._host.now()

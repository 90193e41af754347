"""Grace period of a link, in which both sides search for a new path (docs/spec/lane.md, section 5).

It begins when the link has lost its last path, or may lose it soon.
"""

from typing import Protocol

import trio

from .. import defaults
from .paths import LinkPaths
from .shared import Shared


class SearchingLink(Protocol):
    """Part of a link's interface that its grace period uses."""

    @property
    def at_stake(self) -> bool: ...

    async def rescue(self) -> str | None: ...

    def fell_quiet(self) -> None: ...

    def came_back(self) -> None: ...

    def close(self, code: str) -> None: ...


class Grace:
    """Grace periods of one link, one after the other.

    `quiet` says whether the link has no path and its peer has been silent for `Limits.quiet_s`
    seconds.
    """

    def __init__(
        self,
        shared: Shared,
        paths: LinkPaths,
        link: SearchingLink,
    ) -> None:
        self.quiet = False
        self._host = shared.host
        self._limits = shared.limits
        self._paths = paths
        self._link = link
        self._scope: trio.CancelScope | None = None

    @property
    def under_way(self) -> bool:
        """Whether a search for a path is under way."""
        return self._scope is not None

    async def run(self) -> None:
        """Search for a path until `found` is called or the grace period has ended."""
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            nursery.start_soon(self._run_out)
            code = await self._link.rescue()
            if code is not None:
                self._link.close(code)
            nursery.cancel_scope.cancel()
        self._scope = None

    def found(self) -> None:
        """End the search, because something was received from the peer."""
        if self._scope is not None:
            self._scope.cancel()
        if self.quiet:
            self.quiet = False
            self._link.came_back()

    async def _run_out(self) -> None:
        """Report the link as quiet, and later end it, if it has no path and the peer stays silent.

        The link ends later if `at_stake`. Time in which this node itself stood still (for example,
        a laptop's sleep) does not count as silence.
        """
        limits, now = self._limits, self._host.now()
        heard = now + defaults.RESTORE_S - limits.quiet_s
        while True:
            heard = max(heard, self._paths.heard)
            silence = now - heard if self._paths.missing else 0.0
            if silence >= limits.quiet_s and not self.quiet:
                self.quiet = True
                self._link.fell_quiet()
            if silence >= limits.hold_s or (silence >= limits.grace_s and not self._link.at_stake):
                self._link.close("silent" if self._paths.silent else "unreachable")
                return
            wait = self._wait(silence)
            await trio.sleep(wait)
            late = self._host.now() - now - wait
            heard += late if late > defaults.STALL_S else 0.0
            now = self._host.now()

    def _wait(self, silence: float) -> float:
        """Return the seconds until the next look, given the seconds of silence so far.

        The times at which the link is reported or ends are met exactly, if the silence lasts.
        """
        limits = self._limits
        if not self._paths.missing:  # the path may be lost at any time
            return defaults.TICK_S
        times = limits.quiet_s, limits.grace_s, limits.hold_s
        left = [max(at - silence, defaults.TICK_S) for at in times if at > silence]
        return min(defaults.GRACE_LOOK_S, *left)

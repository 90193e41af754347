"""Grace period of a link that has lost its path, or may lose it soon: both sides search for a new
one (docs/spec/lane.md, section 5)."""

from typing import Protocol

import trio

from .. import defaults
from .paths import LinkPaths
from .shared import Shared


class SearchingLink(Protocol):
    """A link, as its grace period needs it."""

    @property
    def at_stake(self) -> bool: ...

    async def rescue(self) -> str | None: ...

    def fell_quiet(self) -> None: ...

    def came_back(self) -> None: ...

    def close(self, code: str) -> None: ...


class Grace:
    """Grace periods of one link. `quiet` means that its peer has been silent for
    `Limits.quiet_s`."""

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
        """Whether a path is being searched for."""
        return self._scope is not None

    async def run(self) -> None:
        """Search for a path until `found` is called or the link's time has run out."""
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            nursery.start_soon(self._run_out)
            code = await self._link.rescue()
            if code is not None:
                self._link.close(code)
            nursery.cancel_scope.cancel()
        self._scope = None

    def found(self) -> None:
        """End the search, because the peer has been heard."""
        if self._scope is not None:
            self._scope.cancel()
        if self.quiet:
            self.quiet = False
            self._link.came_back()

    async def _run_out(self) -> None:
        """Declare the link quiet, then end it, after silence without a connection. It ends later if
        a caller would miss it. Time in which our own loop stood still (a laptop's sleep) does not
        count."""
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
            await trio.sleep(defaults.TICK_S)
            late = self._host.now() - now - defaults.TICK_S
            heard += late if late > defaults.STALL_S else 0.0
            now = self._host.now()

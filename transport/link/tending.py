"""The task of a link that searches for a path whenever the link needs one."""

from typing import Protocol

import trio

from .. import defaults
from ..lane.lane import Lane
from .grace import Grace
from .paths import LinkPaths
from .shared import Shared


class TendedLink(Protocol):
    """Part of a link's interface that this task uses."""

    @property
    def alive(self) -> bool: ...

    def doubted(self, doubtful: bool) -> None: ...


class Tending:
    """Task of one link: searches for a path while there is none, or while the used one is suspect.
    Otherwise sends frames."""

    def __init__(
        self, shared: Shared, lane: Lane, paths: LinkPaths, grace: Grace, link: TendedLink
    ) -> None:
        self._host = shared.host
        self._limits = shared.limits
        self._lane = lane
        self._paths = paths
        self._grace = grace
        self._link = link
        self._changed = trio.lowlevel.ParkingLot()
        self._doubted = False  # whether a search was reported and has not ended

    def look_again(self) -> None:
        """Wake the task, which checks whether the link needs a new path."""
        self._changed.unpark_all()

    async def run(self) -> None:
        """Tend to the link until it ends."""
        while self._link.alive:
            if self._paths.missing or self._paths.is_suspect(self._host.now()):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._doubt)
                    await self._grace.run()
                    nursery.cancel_scope.cancel()
                if self._link.alive and self._doubted:
                    self._doubted = False
                    self._link.doubted(False)
            else:
                self._paths.flush()
                await self._changed.park()

    async def _doubt(self) -> None:
        """Report that the link is in doubt, at a time that depends on the reason.

        If a relay has ended the last path because the circuit had reached its time limit, the
        report waits `LAPSED_S` seconds: the peer is most likely alive, and a new circuit opens
        within a second. If the link has no path for another reason, it is reported at once. If a
        path is left but the peer is silent, the report waits until the silence has lasted
        `Limits.silent_s` seconds, because relays are slow at times.
        """
        if not self._paths.missing:
            silence = self._host.now() - self._lane.heard
            await trio.sleep(max(0.0, self._limits.silent_s - silence))
        elif self._paths.lapsed:
            await trio.sleep(defaults.LAPSED_S)
        self._doubted = True
        self._link.doubted(True)

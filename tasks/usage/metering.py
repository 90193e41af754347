"""Counters of what the gateways of other nodes use of this node.

`accounting.py` adds the counts to the permanent sums. The owner's own requests are not
counted, except those that it makes for a job.
"""

from collections.abc import Mapping
from typing import NamedTuple

import trio

from ...state.views.usage import UsageCount
from ...transport.identity import PeerId


class Use(NamedTuple):
    """A gateway, the root of a model, and the job that the gateway named ("" if none)."""

    gateway: PeerId
    root: str
    job: str = ""


class UsageMeter:
    """Usage counts since the last `take`. Their number is bounded by the number of sessions."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self._counts: dict[Use, UsageCount] = {}
        self._news = trio.lowlevel.ParkingLot()  # woken when there are counts to take
        self.total = UsageCount()
        """Sum over all uses by other nodes since the start."""

    def opened(self, use: Use) -> None:
        """Count one opened session."""
        self._add(use, UsageCount(requests=1))

    def read(self, use: Use, tokens: int) -> None:
        """Count prompt tokens that this node will compute."""
        self._add(use, UsageCount(tokens_in=tokens))

    def made(self, use: Use, *, tokens: int, seconds: float) -> None:
        """Count tokens that this node helped to generate, and the seconds that its device
        computed."""
        busy = round(1000 * seconds) if 0 <= seconds < _LONGEST else 0
        self._add(use, UsageCount(tokens_out=tokens, busy_ms=busy))

    def take(self) -> Mapping[Use, UsageCount]:
        """Return the counts since the last call and reset them."""
        counts, self._counts = self._counts, {}
        return counts

    async def used(self) -> None:
        """Wait until there are counts to take."""
        while not self._counts:
            await self._news.park()

    def _add(self, use: Use, count: UsageCount) -> None:
        if use.gateway != self._own:
            self.total += count
        if use.gateway != self._own or use.job:
            if not self._counts:
                self._news.unpark_all()
            self._counts[use] = self._counts.get(use, _NOTHING) + count


_NOTHING = UsageCount()
_LONGEST = 3600.0  # seconds of one span; larger values come from a wrong engine clock

"""Counters of what the gateways of other nodes used of this node; `accounting.py` keeps the sums.

No I/O. The owner's own requests are not counted.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ...state.views.usage import Count
from ...transport.identity import PeerId


class Use(NamedTuple):
    """A gateway, the root of a model, and the job that the gateway named, if any."""

    gateway: PeerId
    root: str
    job: str = ""


class Meter:
    """Counts by use since the last `take`. Bounded by the number of sessions since then."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self._counts: dict[Use, Count] = {}
        self.total = Count()
        """The sum over all uses since the start."""

    def opened(self, use: Use) -> None:
        """Count one session."""
        self._add(use, Count(requests=1))

    def read(self, use: Use, tokens: int) -> None:
        """Count prompt tokens that this node will compute."""
        self._add(use, Count(tokens_in=tokens))

    def made(self, use: Use, *, tokens: int, seconds: float) -> None:
        """Count tokens that this node helped to generate, and its device's computing seconds."""
        busy = round(1000 * seconds) if 0 <= seconds < _LONGEST else 0
        self._add(use, Count(tokens_out=tokens, busy_ms=busy))

    def take(self) -> Mapping[Use, Count]:
        """Return the counts and reset them."""
        counts, self._counts = self._counts, {}
        return counts

    def _add(self, use: Use, count: Count) -> None:
        if use.gateway != self._own:
            self.total += count
        if use.gateway != self._own or use.job:
            self._counts[use] = self._counts.get(use, _NOTHING) + count


_NOTHING = Count()
_LONGEST = 3600.0  # seconds of one span; larger values come from a wrong engine clock

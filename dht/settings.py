"""Settings of one node's DHT."""

from dataclasses import dataclass, field
from pathlib import Path

from ..transport.rates import DialLimiter
from . import defaults
from .lookup.query import LookupSettings


@dataclass(frozen=True, slots=True)
class DhtSettings:
    """Settings of one node's DHT. Tests can switch the defences off."""

    folder: Path | None = None
    """Folder where contacts and own records are saved for the next start. None: not saved."""
    lookups: LookupSettings = field(default_factory=LookupSettings)
    subnet_limits: bool = True
    """Whether the number of contacts of one public network in the table is limited."""
    store_bytes: int = defaults.STORE_BYTES
    """Most bytes of records of other authors."""
    dial_pauses: tuple[float, float] | None = None
    """Seconds between two dials for background work: at first, and at most. None: no limit."""

    def limiter(self, now: float) -> DialLimiter | None:
        """Return a new rate limiter of dials for background work, or None for no limit."""
        if self.dial_pauses is None:
            return None
        first, most = self.dial_pauses
        return DialLimiter(first, now, most)

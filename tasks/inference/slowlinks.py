"""Links that are too slow for exact hidden states, as measured while these are sent. No I/O.

A stage sends a part of a prompt whenever it has computed one. If the part before it has not left
the node by then, although a round trip has passed, the link is slower than the stage. The stage
tells the gateway the rate, and the gateway lets the hidden states of later sessions travel packed.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

RATE_S: Final = 600.0
"""Seconds for which a measured rate is believed. Then exact hidden states are tried again."""
LINKS: Final = 256
"""Links whose rates are remembered."""
ROUND_TRIPS: Final = 2.0
"""Round trips in which a part should have left: one to arrive, one of tolerance."""
LEAST_S: Final = 0.25
"""Seconds in which a part should have left, at least. Faster ones hardly delay a prompt."""
STARTING: Final = 10.0
"""Round trips for which a link that was empty is not measured, because TCP starts slowly."""
PART_BYTES: Final = 32 << 10
"""Bytes of the smallest part that is measured. What waits behind a smaller one may be anything."""
OTHER_BYTES: Final = 1024
"""Bytes of a message besides its hidden states, at most."""

Key = TypeVar("Key", bound=Hashable)


class RecentRates(Generic[Key]):
    """Rates of slow links in byte/s, by any key, each for RATE_S seconds."""

    def __init__(self) -> None:
        self._rates: OrderedDict[Key, tuple[float, float]] = OrderedDict()

    def note(self, key: Key, rate: float, now: float) -> None:
        """Remember a rate."""
        self._rates[key] = rate, now
        self._rates.move_to_end(key)
        if len(self._rates) > LINKS:
            self._rates.popitem(last=False)

    def rate(self, key: Key, now: float) -> float:
        """Return the rate of a slow link, or 0 if the link is fast enough or was not measured."""
        rate, at = self._rates.get(key, (0.0, now))
        return rate if now - at < RATE_S else 0.0


@dataclass(slots=True)
class _Sending:
    """Amount sent on a link since it was last empty, and the shortest round trip, since a
    full link measures a longer one."""

    round_trip: float  # seconds
    since: float = 0.0
    sent: int = 0  # bytes
    at: float = 0.0  # time of the latest part
    size: int = 0  # bytes of the latest part
    after: int = 0  # bytes of tokens and drafts that were sent after it, with their headers


class SlowLinks:
    """The links of a node to the next stages of its sessions."""

    def __init__(self) -> None:
        self._rates = RecentRates[str]()
        self._sending: dict[str, _Sending] = {}

    def sends(self, peer: str, size: int, waiting: int, round_trip: float, now: float) -> None:
        """Note that `size` bytes of a prompt are sent now, behind `waiting` bytes that have not
        arrived yet. `round_trip` is in seconds."""
        if size < PART_BYTES:
            self.passes(peer, size)
            return
        link = self._sending.setdefault(peer, _Sending(round_trip))
        link.round_trip = min(link.round_trip, round_trip)
        waiting = max(0, waiting - link.after)
        if not waiting or not link.sent:
            link.since, link.sent = now, 0
        late = now - link.at > max(LEAST_S, ROUND_TRIPS * link.round_trip)
        busy = now - link.since
        if late and waiting * 2 > link.size and busy > STARTING * link.round_trip:
            self._rates.note(peer, max(1, link.sent - waiting) / busy, now)
        link.sent += size
        link.at, link.size, link.after = now, size, 0

    def passes(self, peer: str, size: int) -> None:
        """Note that `size` bytes of tokens or drafts are sent now, which the latest part of a
        prompt does not wait for."""
        if peer in self._sending:
            self._sending[peer].after += size + OTHER_BYTES

    def lost(self, peer: str) -> None:
        """Forget what was sent on a link that has ended."""
        self._sending.pop(peer, None)

    def rate(self, peer: str, now: float) -> float:
        """Return the rate of the link to a peer in byte/s, or 0 if it is fast enough."""
        return self._rates.rate(peer, now)

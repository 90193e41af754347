"""Usage, written down: what other nodes' gateways had of this node, as facts of its own feed.

The sums go on over restarts, for they are read back from the feed; what was counted since the
last writing is lost in a crash. Where there are more users than the feed is to hold, those that
had least go together into one sum. Spec: docs/spec/jobs.md, Usage.
"""

from collections.abc import Mapping
from contextlib import suppress

import trio

from ..state.errors import FeedFull
from ..state.service import State
from ..state.views.usage import Count, usage_fact, usage_key
from ..transport.identity import PeerId
from . import defaults
from .metering import Meter, User

KIND = "usage"
NO_ROOT = "0" * 64
"""The model of a sum of many."""
_FIELDS = ("requests", "in", "out", "busy")


class Accounting:
    """Of one node. `State.run` must be running."""

    def __init__(self, state: State, own: PeerId, meter: Meter) -> None:
        self._state = state
        self._own = own
        self._meter = meter

    async def run(self) -> None:
        """Write now and then, until cancelled."""
        await self._state.shown.wait()
        while True:
            await trio.sleep(defaults.USAGE_PACE)
            self.write()

    def write(self) -> None:
        """Add what was counted to what the feed says; a feed that takes nothing gets it later."""
        counted = self._meter.take()
        if not counted or not self._state.shown.is_set():
            self._meter.put_back(counted)
            return
        before = {key: self._count(key) for key in self._state.keys(KIND)}
        sums = merged(self._own, before, counted)
        try:
            for key in sorted(before.keys() - sums.keys()):
                self._state.set(KIND, key, None)
            for key, count in sums.items():
                self._state.set(KIND, key, usage_fact(count))
        except FeedFull:
            for key, count in before.items():
                with suppress(FeedFull):
                    self._state.set(KIND, key, usage_fact(count))
            self._meter.put_back(counted)

    def _count(self, key: str) -> Count:
        said = self._state.get(KIND, key) or {}
        numbers = (said.get(name, 0) for name in _FIELDS)
        return Count(*(number if type(number) is int else 0 for number in numbers))


def merged(
    own: PeerId, before: Mapping[str, Count], counted: Mapping[User, Count]
) -> dict[str, Count]:
    """The sums by key. Beyond USAGE_USERS those with the least computing, then the fewest tokens
    and requests, go together under `others_key`, and stay there."""
    others = others_key(own)
    sums = {key: count for key, count in before.items() if key != others}
    for (client, root), count in counted.items():
        key = usage_key(client, root)
        sums[key] = sums.get(key, Count()) + count
    ranked = sorted(sums, key=lambda key: (_rank(sums[key]), key), reverse=True)
    rest = before.get(others, Count())
    for key in ranked[defaults.USAGE_USERS :]:
        rest += sums.pop(key)
    if rest != Count():
        sums[others] = rest
    return sums


def others_key(own: PeerId) -> str:
    """Where those go together that had least: under the provider's own name, for no model."""
    return usage_key(own, NO_ROOT)


def _rank(count: Count) -> tuple[int, int, int]:
    return count.busy_ms, count.tokens_in + count.tokens_out, count.requests

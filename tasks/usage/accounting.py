"""Usage accounting: records in this node's feed what the gateways of other nodes used of it.

The sums survive restarts, because they are read back from the feed. A crash loses what was counted
since the last write. If there are more users than the feed may hold, those with the least usage
are merged into one sum. Spec: docs/spec/jobs.md, Usage.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

import trio

from ...state.errors import FeedFull
from ...state.service import State
from ...state.views.usage import Count, usage_fact, usage_key
from ...transport.identity import PeerId
from .. import defaults
from .metering import Meter, Use

KIND = "usage"
NO_ROOT = "0" * 64
"""Root in the key of the sum that merges the smallest users."""
_FIELDS = ("requests", "in", "out", "busy")

User = tuple[PeerId, str]
"""The node that is charged, and the root of the model that it used."""

Payer = Callable[[Use], PeerId | None]
"""Return the node to charge for a use, or None while the job that the gateway named is unknown."""


def gateway_pays(use: Use) -> PeerId:
    """Return the gateway, whatever job it named."""
    return use.gateway


class Accounting:
    """Transfers one node's usage from its meter into its feed. `State.run` must be running.

    A stage may compute for a job before the job and the claim on it reach this node, and both may
    have ended when the sums are written. So the payer of each use is looked up every USAGE_LOOK
    seconds. If the job is still unknown after USAGE_LOOKS lookups, the gateway is charged. It is
    charged at once if USAGE_UNKNOWN of its jobs are unknown already: it may have invented them.
    """

    def __init__(
        self, state: State, own: PeerId, meter: Meter, payer: Payer = gateway_pays
    ) -> None:
        self._state = state
        self._own = own
        self._meter = meter
        self._payer = payer
        self._counted: dict[User, Count] = {}
        self._unknown: dict[Use, tuple[Count, int]] = {}  # and the number of lookups so far

    async def run(self) -> None:
        """Look up payers and write sums, until cancelled."""
        await self._state.shown.wait()
        looks = round(defaults.USAGE_PACE / defaults.USAGE_LOOK)
        while True:
            for _ in range(looks):
                await trio.sleep(defaults.USAGE_LOOK)
                self._settle(patient=True)
            self.write()

    def write(self, *, last: bool = False) -> None:
        """Add the new counts to the sums in the feed, or keep them for later if the feed is full.
        `last`: there are no more lookups, so the gateways of unknown jobs are charged now."""
        self._settle(patient=not last)
        if not self._counted or not self._state.shown.is_set():
            return
        before = {key: self._count(key) for key in self._state.keys(KIND)}
        sums = merged(self._own, before, self._counted)
        try:
            for key in sorted(before.keys() - sums.keys()):
                self._state.set(KIND, key, None)
            for key, count in sums.items():
                self._state.set(KIND, key, usage_fact(count))
        except FeedFull:
            for key, count in before.items():
                with suppress(FeedFull):
                    self._state.set(KIND, key, usage_fact(count))
        else:
            self._counted = {}

    def _settle(self, *, patient: bool) -> None:
        """Charge the new counts to their payers, where these are known."""
        looked, self._unknown = self._unknown, {}
        for use, count in self._meter.take().items():
            known, times = looked.get(use, (Count(), 0))
            looked[use] = known + count, times
        waiting = Counter[PeerId]()
        for use, (count, times) in looked.items():
            payer = self._payer(use)
            wait = patient and times < defaults.USAGE_LOOKS
            if payer is None and wait and waiting[use.gateway] < defaults.USAGE_UNKNOWN:
                self._unknown[use] = count, times + 1
                waiting[use.gateway] += 1
                continue
            user = payer or use.gateway, use.root
            if user[0] != self._own:
                self._counted[user] = self._counted.get(user, Count()) + count

    def _count(self, key: str) -> Count:
        said = self._state.get(KIND, key) or {}
        numbers = (said.get(name, 0) for name in _FIELDS)
        return Count(*(number if type(number) is int else 0 for number in numbers))


def merged(
    own: PeerId, before: Mapping[str, Count], counted: Mapping[User, Count]
) -> dict[str, Count]:
    """Return the sums by key. Beyond USAGE_USERS, the users with the least computing time, then
    the fewest tokens and requests, are merged under `others_key` for good."""
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
    """Return the key of the merged sum: the provider's own peer id and a root of zeros."""
    return usage_key(own, NO_ROOT)


def _rank(count: Count) -> tuple[int, int, int]:
    return count.busy_ms, count.tokens_in + count.tokens_out, count.requests

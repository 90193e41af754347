"""Usage accounting: records in this node's feed how much the gateways of other nodes have used it.

The sums survive restarts, because they are read back from the feed. A crash loses the counts since
the last write. If there are more users than the feed may hold, those with the least usage are
merged into one sum. Spec: docs/spec/jobs.md, Usage.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

import trio

from ...state.errors import FeedFull
from ...state.service import State
from ...state.views.usage import CHECKED, UsageCount, usage_fact, usage_key
from ...transport.identity import PeerId
from .. import defaults
from .metering import UsageMeter, Use

KIND = "usage"
NO_ROOT = "0" * 64
"""Root in the key of the sum into which the smallest users are merged."""
_FIELDS = ("requests", "in", "out", "busy")

User = tuple[PeerId, str]
"""(peer id of the node that is charged, root of the model that it used)."""

Payer = Callable[[Use], PeerId | None]
"""Returns the node to charge for a use, or None while the job that the gateway named is unknown."""


def gateway_pays(use: Use) -> PeerId:
    """Return the use's gateway as the payer, whatever job the gateway named."""
    return use.gateway


class Accounting:
    """Transfer of one node's usage counts from its meter into its feed.

    `State.run` must be running. A stage may compute for a job before the job and the claim on it
    reach this node, and both may have ended when the sums are written. Therefore the payer of each
    use is looked up every USAGE_LOOK seconds while there are such uses. If the job is still unknown
    after USAGE_LOOKS lookups, the gateway is charged. If USAGE_UNKNOWN jobs of one gateway are
    unknown already, the gateway is charged for further ones at once, because it may have invented
    them.
    """

    def __init__(
        self,
        state: State,
        own: PeerId,
        meter: UsageMeter,
        payer: Payer = gateway_pays,
        *,
        write_more: Callable[[], None] = lambda: None,
    ) -> None:
        """`write_more` is called at each write."""
        self._state = state
        self._own = own
        self._meter = meter
        self._payer = payer
        self._write_more = write_more
        self._counted: dict[User, UsageCount] = {}
        self._unknown: dict[Use, tuple[UsageCount, int]] = {}  # (count, lookups so far)

    async def run(self) -> None:
        """Look up payers, and write the sums to the feed every USAGE_PACE seconds, until
        cancelled."""
        await self._state.shown.wait()
        while True:
            with trio.move_on_after(defaults.USAGE_PACE):
                await self._look_up()
            self.write()

    async def _look_up(self) -> None:
        """Look up the payers of new and of unknown uses, until cancelled."""
        while True:
            if not self._unknown:
                await self._meter.used()
            await trio.sleep(defaults.USAGE_LOOK)
            self._settle(patient=True)

    def write(self, *, last: bool = False) -> None:
        """Add the new counts to the sums in the feed. If the feed is full, retry at the next write.

        If `last`, there will be no more lookups, so the gateways of unknown jobs are charged now.
        """
        self._settle(patient=not last)
        if self._state.shown.is_set():
            self._write_more()
        if not self._counted or not self._state.shown.is_set():
            return
        keys = [key for key in self._state.keys(KIND) if not key.startswith(CHECKED)]
        before = {key: self._count(key) for key in keys}
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
        """Charge the meter's new counts to their payers.

        If `patient`, a use whose job is unknown may wait for another lookup. Otherwise its gateway
        is charged.
        """
        looked, self._unknown = self._unknown, {}
        for use, count in self._meter.take().items():
            known, times = looked.get(use, (UsageCount(), 0))
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
                self._counted[user] = self._counted.get(user, UsageCount()) + count

    def _count(self, key: str) -> UsageCount:
        """Return the sum under this key in the feed. Missing and malformed numbers count as 0."""
        said = self._state.get(KIND, key) or {}
        numbers = (said.get(name, 0) for name in _FIELDS)
        return UsageCount(*(number if type(number) is int else 0 for number in numbers))


def merged(
    own: PeerId, before: Mapping[str, UsageCount], counted: Mapping[User, UsageCount]
) -> dict[str, UsageCount]:
    """Return the new sums by key: the sums in the feed (`before`) plus the new counts (`counted`).

    Beyond USAGE_USERS users, those with the least computing time are merged permanently into the
    sum under `others_key`. Ties go by tokens, then by requests.
    """
    others = others_key(own)
    sums = {key: count for key, count in before.items() if key != others}
    for (client, root), count in counted.items():
        key = usage_key(client, root)
        sums[key] = sums.get(key, UsageCount()) + count
    ranked = sorted(sums, key=lambda key: (_rank(sums[key]), key), reverse=True)
    rest = before.get(others, UsageCount())
    for key in ranked[defaults.USAGE_USERS :]:
        rest += sums.pop(key)
    if rest != UsageCount():
        sums[others] = rest
    return sums


def others_key(own: PeerId) -> str:
    """Return the key of the merged sum: this node's peer id with a root of zeros."""
    return usage_key(own, NO_ROOT)


def _rank(count: UsageCount) -> tuple[int, int, int]:
    return count.busy_ms, count.tokens_in + count.tokens_out, count.requests

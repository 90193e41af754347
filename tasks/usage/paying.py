"""Which peer pays for work that a gateway or a trainer asks for: itself, or the author of a job."""

from collections import Counter

import trio

from ...state.views.jobs import Jobs
from ...transport.guard import Guard
from ...transport.identity import PeerId
from .. import defaults
from .metering import Use


class Payers:
    """Payers of what other nodes use of this one, by the claims that this node knows."""

    def __init__(self, jobs: Jobs, guard: Guard) -> None:
        self._jobs = jobs
        self._guard = guard
        self._waits = Counter[PeerId]()  # uses that wait for a claim, by gateway

    def now(self, use: Use) -> PeerId | None:
        """Return the peer that pays for a use.

        This is the gateway or, if it names a job, the author of that job. The gateway must have
        claimed the job; otherwise it could name any job. Returns None if this node does not know
        the job or the claim.
        """
        if not use.job:
            return use.gateway
        author: PeerId | None = None
        with self._guard.around(use.gateway):
            standing = self._jobs.get(use.job)
            if standing is not None and standing.job is not None:
                author = standing.job.author if self._jobs.claim_by(use.gateway, use.job) else None
        return author

    async def soon(self, use: Use) -> PeerId:
        """Return the peer that pays for a use that begins and occupies a place, once the claim is
        here.

        Any peer may claim any job, so only the claim that counts makes the author pay. It spreads
        through feeds, and may arrive after the request for which it was made. After USAGE_CLAIM
        seconds without it, the gateway pays. It pays at once if too many uses wait, since each one
        looks at every change of jobs.
        """
        waits, waiting = self._waits[use.gateway], self._waits.total()
        if waits < defaults.USAGE_WAITS and waiting < defaults.USAGE_WAITING:
            self._waits[use.gateway] += 1
            try:
                await self._wait(use)
            finally:
                self._waits -= Counter((use.gateway,))
        payer = self.now(use) if self._has_right(use) else None
        return use.gateway if payer is None else payer

    async def _wait(self, use: Use) -> None:
        changes = self._jobs.watch()
        with trio.move_on_after(defaults.USAGE_CLAIM):
            while not self._has_right(use):
                await changes.__anext__()

    def _has_right(self, use: Use) -> bool:
        """Return whether the gateway names no job, or one that it now does by the claim that
        counts."""
        standing = self._jobs.get(use.job) if use.job else None
        claim = None if standing is None else standing.claim
        return not use.job or (
            standing is not None
            and standing.job is not None
            and claim is not None
            and claim.claimant == use.gateway
            and not claim.done
        )

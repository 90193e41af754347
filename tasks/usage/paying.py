"""Which peer pays for work that a gateway or a trainer asks for: itself, or the author of a job."""

from collections import Counter

import trio

from ...state.views.jobs import Job, Jobs
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

        This is the gateway or, if it names a job, the author of that job. The gateway must have the
        claim that counts; otherwise it could name any job, as any peer may claim any job. Returns
        None if this node does not know the job or that claim.
        """
        if not use.job:
            return use.gateway
        job: Job | None = None
        with self._guard.around(use.gateway):
            job = self._claimed(use)
        return None if job is None else job.author

    async def soon(self, use: Use) -> PeerId:
        """Return the peer that pays for a use that begins and occupies a place, once the claim is
        here.

        That claim spreads through feeds, and may arrive after the request for which it was made.
        After USAGE_CLAIM seconds without it, the gateway pays. It pays at once if too many uses
        wait, since each one looks at every change of jobs.
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
        return not use.job or self._claimed(use, done=False) is not None

    def _claimed(self, use: Use, *, done: bool = True) -> Job | None:
        """Return the job that a use names, if the claim that counts is the gateway's. `done` says
        whether the claim may be that of a finished job."""
        standing = self._jobs.get(use.job)
        claim = None if standing is None else standing.claim
        if standing is None or claim is None or claim.claimant != use.gateway:
            return None
        return None if claim.done and not done else standing.job

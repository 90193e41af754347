"""This node's claims on jobs: its feed has them, within the space that claims may take.

Spec: docs/spec/jobs.md.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ...state.errors import FeedFull
from ...state.feeds.kinds import KINDS
from ...state.service import State
from ...state.views.jobs import CLAIMS, Claim, claim_fact
from ...transport.identity import PeerId
from . import defaults
from .errors import BadOutcome
from .results import read_outcome
from .shelf import Shelves

ROOM: Final = KINDS[CLAIMS].live_bytes  # space in bytes for all claims of this node
_NOBODY: Final = PeerId("")
"""Stands for the author of jobs that no longer exist."""


class OwnClaims:
    """The claims of one node, `own`, and the blobs that they name on its shelf.

    `health` receives a sentence about what prevents claims.
    """

    def __init__(
        self, state: State, own: PeerId, shelf: Shelves, health: Callable[[str | None], None]
    ) -> None:
        self._state, self._own = state, own
        self._jobs = state.views.jobs
        self._shelf = shelf
        self._health = health
        # By author of jobs: the bytes that these jobs take in this node's claims.
        self._spent: Counter[PeerId] = Counter()

    def on(self, job: str) -> Claim | None:
        """Return this node's claim on a job, or None if there is none."""
        return self._jobs.claim_by(self._own, job)

    def write(self, claim: Claim) -> bool:
        """Write a claim into the feed. Return False if the feed is full."""
        try:
            self._state.set(CLAIMS, claim.job, claim_fact(claim))
        except FeedFull as full:
            self._health(f"cannot claim a job: {full.message}")
            return False
        return True

    def withdraw(self, job: str) -> None:
        """Remove this node's claim on a job from the feed."""
        if self.on(job) is None and self._state.get(CLAIMS, job) is None:
            return
        with suppress(FeedFull):  # if the feed has forked, its entries are ignored anyway
            self._state.set(CLAIMS, job, None)

    def weigh(self) -> None:
        """Compute the bytes that the jobs of each author take in this node's claims."""
        self._spent = Counter()
        for claim in self._jobs.claims_by(self._own):
            standing = self._jobs.get(claim.job)
            author = standing.job.author if standing and standing.job else _NOBODY
            self._spent[author] += defaults.CLAIM_BYTES + len(claim.result)

    def has_room(self, author: PeerId) -> bool:
        """Return whether there is room for a claim on one more job of an author, as of the last
        `weigh`.

        The claims on one author's jobs may take at most as much space as is still free.
        """
        left = ROOM - self._spent.total() - defaults.CLAIM_BYTES - defaults.INLINE_BYTES
        return self._spent[author] <= left

    @property
    def is_scarce(self) -> bool:
        """Whether the space for claims is scarce, as of the last `weigh`."""
        return self._spent.total() > ROOM / 2

    async def tidy_blobs(self) -> None:
        """Delete the blobs for claims that no claim names any more."""
        claims = list(self._jobs.claims_by(self._own))
        results = {_blob_of(claim) for claim in claims} | {c.saved[:32].hex() for c in claims}
        await self._shelf.tidy(results)

    async def remove(self, job: str) -> None:
        """Remove the claim on a job, and the blob with its result."""
        claim = self.on(job)
        self.withdraw(job)
        if claim is not None and (root := _blob_of(claim)):
            await self._shelf.drop(root)


def _blob_of(claim: Claim) -> str:
    """Return the root of the blob in a claim's result, or ""."""
    with suppress(BadOutcome):
        return read_outcome(claim.result).blob
    return ""

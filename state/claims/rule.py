"""The rule that decides which node holds a job and whose result counts.

Each claim is a fact in its claimant's feed. Claims are no locks: several nodes may claim one job.
Nodes that see the same claims agree on the winner, whatever the order of arrival and whatever their
clocks say. Among completed claims, the one with the lowest attempt wins. While none is completed,
the claim with the highest attempt wins. Of claims with equal attempts, the one with the lowest hash
of job and claimant wins. Spec: docs/spec/state.md, Claims.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...transport.identity import PeerId
from .. import defaults
from ..feeds.entry import FeedName

KIND = "claims"
_DOMAIN = b"shoal/claim/1 "


@dataclass(frozen=True, slots=True)
class Claim:
    """A node's statement about its work on a job.

    Claims on one job are ordered by the rule above: the winner is the smallest.
    """

    claimant: PeerId
    job: str  # 64 hex digits
    attempt: int  # 1 .. MAX_ATTEMPT
    done: bool = False
    step: int = 0  # progress; only grows
    result: bytes = b""  # if done: a small result, or a reference to a large one
    hash: bytes = field(repr=False, default=b"")

    @property
    def feed(self) -> FeedName:
        """The name of the claimant's feed that contains this claim."""
        return FeedName(self.claimant, KIND, 0)

    @property
    def rank(self) -> tuple[bool, int, bytes, PeerId]:
        """The sort key of the claim. Of two claims on one job, the one with the lower rank wins."""
        return not self.done, self.attempt if self.done else -self.attempt, self.hash, self.claimant

    def __lt__(self, other: "Claim") -> bool:
        return self.rank < other.rank


def claim_hash(job: str, claimant: PeerId) -> bytes:
    """Return the 32 bytes that decide between claims with equal attempts; the lowest wins.

    The bytes are a hash of job and claimant, so no claimant has an advantage in all jobs.
    """
    return hashlib.sha256(_DOMAIN + job.encode() + claimant.encode()).digest()


def new_claim(
    claimant: PeerId,
    job: str,
    attempt: int,
    *,
    done: bool = False,
    step: int = 0,
    result: bytes = b"",
) -> Claim:
    """Return a claim with its hash. `attempt` and `step` are clamped to their limits."""
    return Claim(
        claimant=claimant,
        job=job,
        attempt=min(max(attempt, 1), defaults.MAX_ATTEMPT),
        done=done,
        step=min(max(step, 0), defaults.MAX_STEP),
        result=result if done else b"",
        hash=claim_hash(job, claimant),
    )


def claim_fact(claim: Claim) -> Mapping[str, object]:
    """Return the value of the fact that states this claim. The fact's key is the job's id."""
    fact: dict[str, object] = {"attempt": claim.attempt}
    if claim.step:
        fact["step"] = claim.step
    if claim.done:
        fact |= {"done": True, "result": claim.result}
    return fact

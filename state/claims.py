"""The rule of claims: who holds a job, and whose result counts.

Claims stand in their claimants' feeds, and nothing is a lock: several may claim one job. Whoever
sees the same claims sees the same one ahead, in whatever order they came and whatever any clock
says. Of the completed ones it is the first by (attempt, hash of job and claimant); while there is
none, the last attempt's with the lowest hash. Spec: docs/spec/state.md, Claims.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..transport.identity import PeerId
from . import defaults
from .entry import FeedName

KIND = "claims"
_DOMAIN = b"shoal/claim/1 "


@dataclass(frozen=True, slots=True)
class Claim:
    """What a node says of its work on a job. Sorts by the rule: the one ahead is the least."""

    claimant: PeerId
    job: str  # 64 hex digits
    attempt: int  # 1 .. MAX_ATTEMPT
    done: bool = False
    step: int = 0  # how far it is; grows
    result: bytes = b""  # of a done one: small, or naming where the rest is
    hash: bytes = field(repr=False, default=b"")

    @property
    def feed(self) -> FeedName:
        """The feed of the claimant in which it stands."""
        return FeedName(self.claimant, KIND, 0)

    @property
    def rank(self) -> tuple[bool, int, bytes, PeerId]:
        """The place in the order: lower is ahead."""
        return not self.done, self.attempt if self.done else -self.attempt, self.hash, self.claimant

    def __lt__(self, other: "Claim") -> bool:
        return self.rank < other.rank


def claim_hash(job: str, claimant: PeerId) -> bytes:
    """What decides between two claims of one attempt: 32 bytes that neither can choose for all
    jobs."""
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
    """A claim with its hash; numbers are brought within their bounds."""
    return Claim(
        claimant=claimant,
        job=job,
        attempt=min(max(attempt, 1), defaults.MAX_ATTEMPT),
        done=done,
        step=min(max(step, 0), defaults.MAX_STEP),
        result=result if done else b"",
        hash=claim_hash(job, claimant),
    )


def claim_fact(claim: Claim) -> Mapping[str, Any]:
    """The value of an own fact; its key is the job."""
    fact: dict[str, Any] = {"attempt": claim.attempt}
    if claim.step:
        fact["step"] = claim.step
    if claim.done:
        fact |= {"done": True, "result": claim.result}
    return fact

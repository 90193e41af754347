"""What is to be done, who is at it, what came of it: the jobs of all, merged with all claims.

A job's id is the hash of its author's key and a nonce, so that nobody can write another's. Claims
may come before their job; they count from when it comes.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Any

from ...transport.identity import PeerId, public_key_of
from .. import claims, defaults
from ..claims import Claim
from ..entry import FeedName
from ..errors import BadFact
from .fact import (
    read_bytes,
    read_each,
    read_peer,
    read_rate,
    read_root,
    read_text,
    read_whole,
)
from .view import View

_DOMAIN = b"shoal/job/1 "
_COMPACT = 4  # a heap is made anew once one in so many of its claims is no more


class State(Enum):
    """How far a job is."""

    OPEN = "open"  # nobody claims it
    CLAIMED = "claimed"
    DONE = "done"
    UNKNOWN = "unknown"  # there are claims, but no job


KNOWN = (State.OPEN, State.CLAIMED, State.DONE)
"""States of jobs that there are."""


@dataclass(frozen=True, slots=True)
class Job:
    """What somebody wants done."""

    id: str  # 64 hex digits
    author: PeerId
    kind: str
    spec: bytes = field(repr=False, default=b"")  # what the kind makes of it
    needs: tuple[str, ...] = ()  # jobs to be done before
    lease: float = defaults.JOB_LEASE[1]  # seconds without progress after which others may try
    refused: Collection[PeerId] = ()  # whose claims do not count


@dataclass(frozen=True, slots=True)
class Standing:
    """A job, and the claim that is ahead: it holds the job, or it is the result."""

    id: str
    job: Job | None
    claim: Claim | None

    @property
    def state(self) -> State:
        """How far the job is."""
        if self.job is None:
            return State.UNKNOWN
        if self.claim is None:
            return State.OPEN
        return State.DONE if self.claim.done else State.CLAIMED

    @property
    def attempt(self) -> int:
        """The number of the attempt that is ahead; 0: none."""
        return self.claim.attempt if self.claim else 0


@dataclass(slots=True)
class _Entry:
    """What is kept of a job: a heap of its claims, some of which may be no more."""

    standing: Standing
    heap: list[Claim] = field(default_factory=list)
    refused: tuple[Claim, ...] = ()  # taken from the top of it
    live: int = 0  # claims there are, in both


class Jobs(View[str, Job | Claim, Standing]):
    """Jobs by their ids, with the claim that is ahead. Each change costs the logarithm of the
    job's claims, however many somebody makes."""

    kinds = ("jobs", claims.KIND)

    def __init__(self) -> None:
        super().__init__()
        self._entries: dict[str, _Entry] = {}
        self._in: dict[State, dict[str, None]] = {state: {} for state in KNOWN}
        self._waiting: dict[PeerId, dict[str, None]] = {}
        self._held: Counter[PeerId] = Counter()

    def get(self, subject: str) -> Standing | None:
        """How a job stands."""
        entry = self._entries.get(subject)
        return None if entry is None else entry.standing

    def all_in(self, state: State) -> Mapping[str, None]:
        """The ids of all jobs in one of the KNOWN states, as it is now: the mapping goes on
        changing."""
        return self._in[state]

    @property
    def waiting(self) -> Mapping[PeerId, Mapping[str, None]]:
        """The ids of all jobs that are not done, by author, as it is now."""
        return self._waiting

    def held(self, author: PeerId) -> int:
        """How many of an author's jobs somebody is at."""
        return self._held[author]

    def claims_of(self, job: str) -> list[Claim]:
        """All claims on a job, those that do not count as well, by the rule."""
        entry = self._entries.get(job)
        found = [] if entry is None else [*entry.heap, *entry.refused]
        return sorted(filter(self._lives, found), key=lambda claim: claim.rank)

    def claim_by(self, claimant: PeerId, job: str) -> Claim | None:
        """A node's claim on a job."""
        found = self._said(FeedName(claimant, claims.KIND, 0)).get(job)
        return found if isinstance(found, Claim) else None

    def claims_by(self, claimant: PeerId) -> Iterator[Claim]:
        """All claims of a node."""
        for fact in self._said(FeedName(claimant, claims.KIND, 0)).values():
            if isinstance(fact, Claim):
                yield fact

    def of(self, author: PeerId) -> list[str]:
        """The ids of an author's jobs."""
        return sorted(self._said(FeedName(author, "jobs", 0)))

    def _read(self, name: FeedName, key: str, value: Mapping[str, Any]) -> Job | Claim:
        job = read_root(key)
        return self._claim(name, job, value) if name.kind == claims.KIND else _job(name, job, value)

    def _claim(self, name: FeedName, job: str, value: Mapping[str, Any]) -> Claim:
        done = value.get("done") is True
        return Claim(
            claimant=name.author,
            job=job,
            attempt=read_whole(value.get("attempt"), defaults.MAX_ATTEMPT, 1),
            done=done,
            step=read_whole(value.get("step", 0), defaults.MAX_STEP),
            result=read_bytes(value.get("result", b""), defaults.JOB_RESULT_BYTES) if done else b"",
            hash=claims.claim_hash(job, name.author),
        )

    def _replace(
        self, name: FeedName, key: str, old: Job | Claim | None, new: Job | Claim | None
    ) -> None:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(Standing(key, None, None))
        job = entry.standing.job
        if name.kind == claims.KIND:
            entry.live += (new is not None) - (old is not None)
            if isinstance(new, Claim):
                heappush(entry.heap, new)
        else:
            job = new if isinstance(new, Job) else None
            for claim in entry.refused:  # perhaps not any more
                heappush(entry.heap, claim)
            entry.refused = ()
        self._settle(entry, Standing(key, job, self._ahead(entry, job)))

    def _ahead(self, entry: _Entry, job: Job | None) -> Claim | None:
        """The claim that the rule puts first."""
        heap = entry.heap
        if len(heap) + len(entry.refused) > entry.live + entry.live // _COMPACT:
            heap[:] = filter(self._lives, [*heap, *entry.refused])
            heapify(heap)
            entry.refused = ()
        refused = job.refused if job else ()
        while heap:
            if not self._lives(heap[0]):
                heappop(heap)
            elif heap[0].claimant in refused:
                entry.refused += (heappop(heap),)
            else:
                return heap[0]
        return None

    def _lives(self, claim: Claim) -> bool:
        return self._said(claim.feed).get(claim.job) is claim

    def _settle(self, entry: _Entry, standing: Standing) -> None:
        """Show the job so."""
        before, entry.standing = entry.standing, standing
        was, now = before.state, standing.state
        if was is not now:
            self._count(before, was, -1)
            self._count(standing, now, 1)
        if was is not now and was is not State.UNKNOWN:
            del self._in[was][standing.id]
        if now is not State.UNKNOWN:
            self._in[now][standing.id] = None
        elif not entry.live:
            del self._entries[standing.id]
        if before != standing:
            self._tell(standing.id)

    def _count(self, standing: Standing, state: State, change: int) -> None:
        """Keep what is waiting for each author; it is one author's whatever it says."""
        if standing.job is None or state not in (State.OPEN, State.CLAIMED):
            return
        author = standing.job.author
        mine = self._waiting.setdefault(author, {})
        if change > 0:
            mine[standing.id] = None
        else:
            mine.pop(standing.id, None)
        if not mine:
            del self._waiting[author]
        self._held[author] += change * (state is State.CLAIMED)
        if not self._held[author]:
            del self._held[author]


def job_id(author: PeerId, nonce: bytes) -> str:
    """The id of a job of this author, another for each nonce."""
    return hashlib.sha256(_DOMAIN + public_key_of(author) + nonce).hexdigest()


def job_fact(job: Job, nonce: bytes) -> dict[str, Any]:
    """The value of an own fact; its key is the id, `job_id` of the nonce."""
    fact: dict[str, Any] = {"kind": job.kind, "nonce": nonce, "spec": job.spec, "lease": job.lease}
    if job.needs:
        fact["needs"] = list(job.needs)
    if job.refused:
        fact["refused"] = sorted(job.refused)
    return fact


def _job(name: FeedName, key: str, value: Mapping[str, Any]) -> Job:
    nonce = read_bytes(value.get("nonce"), defaults.JOB_NONCE_BYTES)
    if job_id(name.author, nonce) != key:
        raise BadFact("a job's id is not its author's")
    least, otherwise, most = defaults.JOB_LEASE
    return Job(
        id=key,
        author=name.author,
        kind=sys.intern(read_text(value.get("kind"), defaults.JOB_KIND_BYTES)),
        spec=read_bytes(value.get("spec", b""), defaults.JOB_SPEC_BYTES),
        needs=read_each(value.get("needs", []), defaults.JOB_DEPENDENCIES, read_root),
        lease=read_rate(value.get("lease", otherwise), most, least),
        # A set of strangers' words takes twice the memory of a tuple (defaults.FACT_MEMORY).
        refused=read_each(value.get("refused", []), defaults.JOB_REFUSED, read_peer),
    )

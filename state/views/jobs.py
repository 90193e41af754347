"""View of all jobs, with the claims on them: the state, the worker and the result of each job.

A job's id is the hash of its author's key and a nonce, so that no other author can write the job. A
claim may arrive before its job; it counts once the job arrives.

Each claim is a fact in its claimant's feed. Claims are no locks: several nodes may claim one job.
Nodes that see the same claims agree on the winner, whatever the order of arrival and whatever their
clocks say. Among completed claims, the one with the lowest attempt wins. While none is completed,
the claim with the highest attempt wins. Of claims with equal attempts, the one with the lowest hash
of job and claimant wins. Spec: docs/spec/state.md, Claims.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush

from ...transport.identity import PeerId, public_key_of
from .. import defaults
from ..errors import BadFact
from ..feeds.entry import FeedName
from .fields import read_bytes, read_each, read_peer, read_rate, read_root, read_text, read_whole
from .view import View

CLAIMS = "claims"
"""The kind of feeds with claims."""
_JOB_DOMAIN = b"shoal/job/1 "
_CLAIM_DOMAIN = b"shoal/claim/1 "
_COMPACT = 4  # a heap is rebuilt once more than about one in COMPACT of its claims is stale


class JobState(Enum):
    """The state of a job."""

    OPEN = "open"  # without a claim
    CLAIMED = "claimed"
    DONE = "done"
    UNKNOWN = "unknown"  # with claims, but its job has not arrived


KNOWN = (JobState.OPEN, JobState.CLAIMED, JobState.DONE)
"""The states of a job whose own fact has arrived, and not only claims on it."""


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
    takes: int = 0  # seconds that the claimant expects the work to take; 0: unknown
    saved: bytes = b""  # names the blob with the work up to `step`; see docs/spec/jobs.md
    left: bool = False  # the claimant has stopped; only `step` and `saved` count
    hash: bytes = field(repr=False, default=b"")

    @property
    def feed(self) -> FeedName:
        """The name of the claimant's feed that contains this claim."""
        return FeedName(self.claimant, CLAIMS, 0)

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
    return hashlib.sha256(_CLAIM_DOMAIN + job.encode() + claimant.encode()).digest()


def new_claim(
    claimant: PeerId,
    job: str,
    attempt: int,
    *,
    done: bool = False,
    step: int = 0,
    result: bytes = b"",
    takes: int = 0,
    saved: bytes = b"",
) -> Claim:
    """Return a claim with its hash. `attempt`, `step` and `takes` are clamped to their limits."""
    return Claim(
        claimant=claimant,
        job=job,
        attempt=min(max(attempt, 1), defaults.MAX_ATTEMPT),
        done=done,
        step=min(max(step, 0), defaults.MAX_STEP),
        result=result if done else b"",
        takes=min(max(takes, 0), defaults.MAX_CLAIM_TAKES),
        saved=b"" if done else saved,
        hash=claim_hash(job, claimant),
    )


def claim_fact(claim: Claim) -> Mapping[str, object]:
    """Return the value of the fact that states this claim. The fact's key is the job's id."""
    fact: dict[str, object] = {"attempt": claim.attempt}
    if claim.step:
        fact["step"] = claim.step
    if claim.takes:
        fact["takes"] = claim.takes
    if claim.saved:
        fact["saved"] = claim.saved
    if claim.left:
        fact["left"] = True
    if claim.done:
        fact |= {"done": True, "result": claim.result}
    return fact


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its author has described it, or a piece of a job that is divided.

    A job of many rows is a job for each of its pieces. The pieces name the first one in `of`, whose
    id is the id of the whole. `part` of `parts` is the place of a piece.
    """

    id: str  # 64 hex digits
    author: PeerId
    kind: str
    spec: bytes = field(repr=False, default=b"")  # interpreted by the kind
    needs: tuple[str, ...] = ()  # jobs that must be done first
    lease: float = defaults.JOB_LEASE[1]  # seconds without progress after which others may try
    refused: Collection[PeerId] = ()  # claimants whose claims do not count
    of: str = ""  # id of the first piece, in the pieces after it
    part: int = 0
    parts: int = 1
    rows: int = 1
    priority: int = defaults.JOB_PRIORITY  # among its author's jobs; higher comes first
    deadline: int = 0  # seconds since 1970 by which its author needs it; 0: none

    @property
    def whole(self) -> str:
        """The id of the job that this is a piece of, or its own id."""
        return self.of or self.id


@dataclass(frozen=True, slots=True)
class JobStanding:
    """A job with its winning claim.

    If the winning claim is done, it has the job's result. Otherwise its claimant holds the job.
    `job` is None if only claims have arrived, and `claim` is None if no claim counts.
    """

    id: str
    job: Job | None
    claim: Claim | None

    @property
    def state(self) -> JobState:
        """The state of the job."""
        if self.job is None:
            return JobState.UNKNOWN
        if self.claim is None:
            return JobState.OPEN
        return JobState.DONE if self.claim.done else JobState.CLAIMED

    @property
    def attempt(self) -> int:
        """The attempt number of the winning claim, or 0 if there is none."""
        return self.claim.attempt if self.claim else 0


@dataclass(slots=True)
class _Entry:
    """A job in the view, with a heap of the claims on it.

    Stale claims stay in the heap for a while.
    """

    standing: JobStanding
    heap: list[Claim] = field(default_factory=list)
    refused: tuple[Claim, ...] = ()  # claims that do not count, taken from the heap
    live: int = 0  # number of current claims in both
    left: tuple[Claim, ...] = ()  # current claims of nodes that have stopped


class Jobs(View[str, Job | Claim, JobStanding]):
    """Jobs by id, each with its winning claim.

    A change takes time logarithmic in the number of claims on the job.
    """

    kinds = ("jobs", CLAIMS)

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, _Entry] = {}
        self._in: dict[JobState, dict[str, None]] = {state: {} for state in KNOWN}
        self._waiting: dict[PeerId, dict[str, None]] = {}
        self._held: Counter[PeerId] = Counter()

    def get(self, subject: str) -> JobStanding | None:
        """Return a job with its winning claim, or None if neither the job nor a claim on it has
        arrived."""
        entry = self.entries.get(subject)
        return None if entry is None else entry.standing

    def all_in(self, state: JobState) -> Mapping[str, None]:
        """Return the ids of all jobs in one of the KNOWN states.

        The mapping changes with the view.
        """
        return self._in[state]

    @property
    def waiting(self) -> Mapping[PeerId, Mapping[str, None]]:
        """The ids of all unfinished jobs, by author. The mapping changes with the view."""
        return self._waiting

    def held(self, author: PeerId) -> int:
        """Return how many of an author's jobs are claimed and not done."""
        return self._held[author]

    def claims_of(self, job: str) -> list[Claim]:
        """Return all claims on a job, the winning one first.

        The claims of claimants that the job's author refuses are included, although they do not
        count.
        """
        entry = self.entries.get(job)
        found = [] if entry is None else [*entry.heap, *entry.refused]
        return sorted(filter(self._lives, found), key=lambda claim: claim.rank)

    def saved_of(self, job: str) -> list[Claim]:
        """Return the claims that name a blob with unfinished work, the one with the most work
        first."""
        entry = self.entries.get(job)
        found = [] if entry is None else [*filter(self._lives, entry.heap), *entry.left]
        refused = () if entry is None or entry.standing.job is None else entry.standing.job.refused
        kept = [claim for claim in found if claim.saved and claim.claimant not in refused]
        return sorted(kept, key=lambda claim: (-claim.step, claim.rank))

    def claim_by(self, claimant: PeerId, job: str) -> Claim | None:
        """Return a node's claim on a job, or None if it has none."""
        found = self._said(FeedName(claimant, CLAIMS, 0)).get(job)
        return found if isinstance(found, Claim) else None

    def claims_by(self, claimant: PeerId) -> Iterator[Claim]:
        """Yield all claims of a node, on any job."""
        for fact in self._said(FeedName(claimant, CLAIMS, 0)).values():
            if isinstance(fact, Claim):
                yield fact

    def of(self, author: PeerId) -> list[str]:
        """Return the ids of an author's jobs, sorted."""
        return sorted(self._said(FeedName(author, "jobs", 0)))

    def _read(self, name: FeedName, key: str, value: Mapping[str, object]) -> Job | Claim:
        job = read_root(key)
        return self._claim(name, job, value) if name.kind == CLAIMS else _job(name, job, value)

    def _claim(self, name: FeedName, job: str, value: Mapping[str, object]) -> Claim:
        done = value.get("done") is True
        return Claim(
            claimant=name.author,
            job=job,
            attempt=read_whole(value.get("attempt"), defaults.MAX_ATTEMPT, 1),
            done=done,
            step=read_whole(value.get("step", 0), defaults.MAX_STEP),
            result=read_bytes(value.get("result", b""), defaults.JOB_RESULT_BYTES) if done else b"",
            takes=read_whole(value.get("takes", 0), defaults.MAX_CLAIM_TAKES),
            saved=b"" if done else read_bytes(value.get("saved", b""), defaults.CLAIM_SAVED_BYTES),
            left=not done and value.get("left") is True,
            hash=claim_hash(job, name.author),
        )

    def _replace(
        self, name: FeedName, key: str, old: Job | Claim | None, new: Job | Claim | None
    ) -> None:
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = _Entry(JobStanding(key, None, None))
        job = entry.standing.job
        if name.kind == CLAIMS:
            entry.live += _counts(new) - _counts(old)
            if entry.left:
                entry.left = tuple(claim for claim in entry.left if claim is not old)
            if isinstance(new, Claim) and new.left:
                entry.left += (new,)
            elif isinstance(new, Claim):
                heappush(entry.heap, new)
        else:
            job = new if isinstance(new, Job) else None
            for claim in entry.refused:  # the new version of the job may no longer refuse them
                heappush(entry.heap, claim)
            entry.refused = ()
        self._settle(entry, JobStanding(key, job, self.ahead(entry, job)))

    def ahead(self, entry: _Entry, job: Job | None) -> Claim | None:
        """Remove stale claims and those of refused claimants from the top of a job's heap.

        Returns the claim that is then on top, which wins, or None if none is left.
        """
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

    def _settle(self, entry: _Entry, standing: JobStanding) -> None:
        """Store the new standing of a job, and update the indexes by state and by author."""
        before, entry.standing = entry.standing, standing
        was, now = before.state, standing.state
        if was is not now:
            self._count(before, was, -1)
            self._count(standing, now, 1)
        if was is not now and was is not JobState.UNKNOWN:
            del self._in[was][standing.id]
        if now is not JobState.UNKNOWN:
            self._in[now][standing.id] = None
        elif not entry.live and not entry.left:
            del self.entries[standing.id]
        if before != standing:
            self._tell(standing.id)

    def _count(self, standing: JobStanding, state: JobState, change: int) -> None:
        """Add a job to its author's unfinished jobs if `change` is 1, or remove it if -1.

        The number of the author's claimed jobs is updated, too.
        """
        if standing.job is None or state not in (JobState.OPEN, JobState.CLAIMED):
            return
        author = standing.job.author
        mine = self._waiting.setdefault(author, {})
        if change > 0:
            mine[standing.id] = None
        else:
            mine.pop(standing.id, None)
        if not mine:
            del self._waiting[author]
        self._held[author] += change * (state is JobState.CLAIMED)
        if not self._held[author]:
            del self._held[author]


def _counts(claim: Job | Claim | None) -> bool:
    """Return whether a claim holds its job or ends it."""
    return isinstance(claim, Claim) and not claim.left


def job_id(author: PeerId, nonce: bytes) -> str:
    """Return the id of the job that this author has created with this nonce."""
    return hashlib.sha256(_JOB_DOMAIN + public_key_of(author) + nonce).hexdigest()


def job_fact(job: Job, nonce: bytes) -> dict[str, object]:
    """Return the value of the fact about a job of this node. The fact's key is the job's id."""
    fact: dict[str, object] = {
        "kind": job.kind,
        "nonce": nonce,
        "spec": job.spec,
        "lease": job.lease,
    }
    if job.needs:
        fact["needs"] = list(job.needs)
    if job.refused:
        fact["refused"] = sorted(job.refused)
    if job.of:
        fact["of"] = job.of
    counts = (
        ("part", job.part, 0),
        ("parts", job.parts, 1),
        ("rows", job.rows, 1),
        ("priority", job.priority, defaults.JOB_PRIORITY),
        ("deadline", job.deadline, 0),
    )
    return fact | {name: value for name, value, otherwise in counts if value != otherwise}


def _job(name: FeedName, key: str, value: Mapping[str, object]) -> Job:
    nonce = read_bytes(value.get("nonce"), defaults.JOB_NONCE_BYTES)
    if job_id(name.author, nonce) != key:
        raise BadFact("a job's id does not match its author and nonce")
    least, otherwise, most = defaults.JOB_LEASE
    of, parts = value.get("of", ""), read_whole(value.get("parts", 1), defaults.JOB_PARTS, 1)
    return Job(
        id=key,
        author=name.author,
        kind=sys.intern(read_text(value.get("kind"), defaults.JOB_KIND_BYTES)),
        spec=read_bytes(value.get("spec", b""), defaults.JOB_SPEC_BYTES),
        needs=read_each(value.get("needs", []), defaults.JOB_DEPENDENCIES, read_root),
        lease=read_rate(value.get("lease", otherwise), most, least),
        # A set would take twice the memory of a tuple (defaults.FACT_MEMORY).
        refused=read_each(value.get("refused", []), defaults.JOB_REFUSED, read_peer),
        of=read_root(of) if of else "",
        part=read_whole(value.get("part", 0), parts - 1),
        parts=parts,
        rows=read_whole(value.get("rows", 1), defaults.JOB_ROWS, 1),
        priority=read_whole(value.get("priority", defaults.JOB_PRIORITY), defaults.MAX_PRIORITY),
        deadline=read_whole(value.get("deadline", 0), defaults.MAX_DEADLINE),
    )

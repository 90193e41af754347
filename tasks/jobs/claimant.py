"""Decisions of one node about jobs: which to claim, retry, abandon or report as done.

No I/O. `now` is the node's own monotonic clock, in seconds. It decides when this node acts, and
never what a view shows. The caller writes the claims that the `Claimant` returns into this node's
feed, does the work, and reports every job whose state has changed.

Nodes that learn of each other's claims too late do the same work twice. Therefore each node first
takes the jobs that other nodes are unlikely to take: jobs in its own share (`WorkerRing`), then
jobs in the shares of live peers, then jobs of peers that have been silent for long, and last jobs
that another node has begun. A job in a live peer's share is left to that peer for some seconds
first.

An author with thousands of jobs does not block other authors. Among equally urgent jobs, the node
takes one of the author for which it has begun the least work (`fairness.py`). If no node works for
an author, and one of its jobs has waited for long, that job comes before all others.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from ...state import defaults as state_defaults
from ...state.errors import FeedFull
from ...state.views.jobs import Claim, Job, Jobs, JobStanding, JobState, claim_hash, new_claim
from ...transport.identity import PeerId
from . import defaults
from .crew import WorkerRing
from .fairness import FairQueue, Order

Urgency = tuple[int, Order, bytes]
"""Sort key of a job: its place in the order of the constants below, its order among users and their
jobs, and a hash that differs between nodes. The lowest comes first."""
# Places of jobs, most urgent first: claimed by this node in an earlier run; of an author that has
# waited for long; in this node's share; in a live peer's share; in a dead worker's share that this
# node or another one inherits; held by a claimant that shows no progress; held by one that is much
# later than it expected.
_RESUMED, _WAITED, _OWN, _OTHERS, _LEFT, _LEFT_TO_OTHERS, _AGAIN, _HEDGED = range(8)


@dataclass(slots=True)
class _Run:
    """A job that this node is working on."""

    claim: Claim
    stubborn: bool  # other open claims do not stop it, only a completed one
    hedge: bool = False  # another node works on it too, and the claim is written at the end
    doubted: Claim | None = None  # the other node's claim, whose progress is to be checked first


@dataclass(frozen=True, slots=True)
class _Pause:
    """A job that this node has given up, and does not try again before `until`."""

    until: float
    length: float  # seconds


@dataclass(slots=True)
class _Seen:
    """The claim that currently holds a job, with times by this node's clock in seconds."""

    claim: Claim
    since: float  # when the claimant began, or last named a blob with more work
    first: float  # since when any node has held the job without proven progress
    begun: float  # since when this claimant has held it
    proven: float  # when the claimant began, or this node last checked that it has done more
    step: int = 0  # the progress that was proven


class Workers(Protocol):
    """Facts for a claimant about the nodes that do jobs, including this one."""

    shares: WorkerRing

    def silent(self, peer: PeerId) -> float:
        """Return for how many seconds a peer has not answered: 0 while it answers, infinity if it
        never did."""
        ...

    def patience(self) -> float:
        """Return the seconds of silence after which other nodes take a peer's jobs."""
        ...


@dataclass(frozen=True, slots=True)
class JobHandling:
    """How this node handles one job."""

    willing: Callable[[Job], bool]
    """Returns whether this node can and may do the job."""
    work: Callable[[Job], float] = lambda job: float(job.rows)
    """Returns how much work the job is, by which its author is charged."""
    guard: Callable[[str], AbstractContextManager[None]] = lambda job: nullcontext()
    """Returns the guard of a block that handles the job with this id."""


class Claimant:
    """The decisions of one node about jobs. `queue` is the order of users and their jobs."""

    def __init__(
        self,
        own: PeerId,
        jobs: Jobs,
        workers: Workers,
        handling: JobHandling,
        queue: FairQueue | None = None,
    ) -> None:
        self._own = own
        self._jobs = jobs
        self._workers = workers
        self._handling = handling
        self._runs: dict[str, _Run] = {}
        self._seen: dict[str, _Seen] = {}
        self._paused: dict[str, _Pause] = {}
        self._gone: dict[str, float] = {}  # job that this node claims -> since when it is unknown
        self._open: dict[str, float] = {}  # job -> since when it has been unclaimed
        self.queue = queue or FairQueue()
        """The order of users and their jobs, by the work that this node has begun."""
        self._round: Iterator[str] = iter(())

    @property
    def running(self) -> list[str]:
        """The ids of the jobs that this node is working on."""
        return [job for job, run in self._runs.items() if not run.claim.done]

    def next(self, now: float) -> Claim | None:
        """Choose the next job to begin.

        Return the claim to write for it, or None if there is none now.
        """
        best: tuple[Urgency, JobStanding] | None = None
        for job in self._some_jobs():
            with self._handling.guard(job):
                standing = self._jobs.get(job)
                if standing is None:
                    continue
                self._look(job, standing, now)
                urgency = self._urgency(standing, now)
                if urgency is not None and (best is None or urgency < best[0]):
                    best = urgency, standing
        claim: Claim | None = None
        if best is not None:
            with self._handling.guard(best[1].id):
                claim = self._begin(best[1], best[0][0], now)
        return claim

    def expect(self, job: str, seconds: float) -> Claim:
        """Return the claim to write for a job that has just begun and will take `seconds`."""
        run = self._runs[job]
        takes = min(math.ceil(seconds), state_defaults.MAX_CLAIM_TAKES)
        run.claim = replace(run.claim, takes=takes)
        return run.claim

    def hedges(self, job: str) -> bool:
        """Return whether this node works on a job beside the node that holds it. Its claim must not
        be written before the work is done."""
        return self._runs[job].hedge

    def doubted(self, job: str) -> Claim | None:
        """Return the claim of another node whose progress must be checked before this node begins
        the job, or None."""
        return self._runs[job].doubted

    def judge(self, job: str, step: int, now: float) -> bool:
        """Record that the doubted claimant of a job has provably done the work up to `step`.

        Return True if that is progress. This node then leaves the job to it. Otherwise the
        caller begins the job.
        """
        run, standing, seen = self._runs[job], self._jobs.get(job), self._seen.get(job)
        run.doubted = None
        if seen is not None and step > seen.step:
            seen.step, seen.since, seen.proven, seen.first = step, now, now, now
            del self._runs[job]
            return True
        if standing is not None and standing.job is not None:
            self.queue.begin(standing.job.author, self._handling.work(standing.job))
        return False

    def step(self, job: str, step: int, saved: bytes = b"") -> Claim:
        """Return the claim to write once the work up to `step` is stored safely.

        `saved` names the blob that has this work. Without it, the claim shows no progress to
        other nodes.
        """
        return self._say(job, step=step, saved=saved)

    def leave(self, job: str) -> Claim | None:
        """Return the claim to write when this node stops working on a job that other nodes can
        continue, or None if it has stored nothing."""
        claim = self._runs[job].claim
        return replace(claim, left=True) if claim.saved else None

    def finish(self, job: str, result: bytes) -> Claim:
        """Return the claim to write when the work is done.

        Raises FeedFull if `result` is too large for a claim. The caller must then store the result
        elsewhere, and pass a reference to it.
        """
        if len(result) > state_defaults.JOB_RESULT_BYTES:
            most = state_defaults.JOB_RESULT_BYTES
            raise FeedFull("fact-too-large", f"a job's result exceeds {most} bytes")
        return self._say(job, done=True, result=result)

    def give_up(self, job: str, now: float, *, failed: bool = True) -> None:
        """Record that this node has stopped working on a job without a result.

        The caller then removes this node's claim. Other nodes may try the job, and so may this node
        after a pause. The pause is the job's lease if the work has `failed`. If it stopped because
        this node had no capacity, the pause is short at first and doubles each time.
        """
        del self._runs[job]
        length = self._lease(job)
        if not failed:
            before = self._paused.get(job)
            length = min(length, 2 * before.length if before else state_defaults.CLAIM_PAUSE)
        self._paused[job] = _Pause(now + length, length)

    def put_off(self, job: str, now: float) -> None:
        """Do not begin a job for the time of its lease, because a bug came up while this node
        looked at it."""
        self._runs.pop(job, None)
        length = self._lease(job)
        self._paused[job] = _Pause(now + length, length)

    def _lease(self, job: str) -> float:
        standing = self._jobs.get(job)
        return standing.job.lease if standing and standing.job else state_defaults.JOB_LEASE[1]

    def noticed(self, job: str, now: float) -> bool:
        """Process a change of a job's state. Return True if this node must stop working on the job.

        The caller must then remove this node's claim as well.
        """
        standing = self._jobs.get(job)
        self._look(job, standing, now)
        run = self._runs.get(job)
        if run is None:
            return False
        if run.claim.done:  # kept until the view shows the claim, or this node would begin again
            if standing is None or self._jobs.claim_by(self._own, job) == run.claim:
                del self._runs[job]
            return False
        if standing is not None and not self._must_stop(run, standing):
            return False
        del self._runs[job]
        return True

    def known(self) -> list[str]:
        """Return the ids of all jobs that this node has records of, and of all claimed jobs.

        There may be very many. Call `noticed` for each if it is unknown which jobs have changed.
        """
        held = self._jobs.all_in(JobState.CLAIMED)
        return list(dict.fromkeys((*self._seen, *self._open, *self._runs, *self._paused, *held)))

    def outdated(self, now: float, *, kept: float = state_defaults.CLAIM_KEPT) -> list[str]:
        """Return the jobs from which the caller must remove this node's claim.

        This node is not working on these jobs. Either its claim is unfinished and another node's
        claim is ahead, or the job has been unknown for `kept` seconds. Call this periodically.
        """
        own = [c for c in self._jobs.claims_by(self._own) if c.job not in self._runs]
        unknown = (claim.job for claim in own if self._is_unknown(claim.job))
        self._gone = {job: self._gone.get(job, now) for job in unknown}
        found = [job for job, since in self._gone.items() if now - since >= kept]
        behind = [c.job for c in own if not c.done and self._is_behind(c)]
        return sorted({*found, *behind})

    def _some_jobs(self) -> list[str]:
        """Return the next unfinished jobs to consider.

        After the last job, starts again with the first.
        """
        found = list(islice(self._round, state_defaults.CLAIM_SCANNED))
        if not found:
            self._round = self._new_round()
            found = list(islice(self._round, state_defaults.CLAIM_SCANNED))
        return found

    def _new_round(self) -> Iterator[str]:
        """Yield all unfinished jobs, one job of each author in turn.

        A job that arrives during the round may not be yielded before the next round.
        """
        waiting = self._jobs.waiting
        authors: deque[tuple[PeerId, Iterator[str] | None]]
        authors = deque((author, None) for author in tuple(waiting))
        while authors:
            author, jobs = authors.popleft()
            if jobs is None:  # copied only when the author's turn comes
                jobs = iter(tuple(waiting.get(author, {})))
            job = next(jobs, None)
            if job is not None:
                yield job
                authors.append((author, jobs))

    def _urgency(self, standing: JobStanding, now: float) -> Urgency | None:
        """Return how urgently this node should take a job, or None if it should not take the job
        now."""
        job = standing.job
        if job is None or job.id in self._runs or self._is_paused(job.id, now):
            return None
        place = self._place(standing, job, now)
        if place is None or self._own in job.refused or not self._ready(job):
            return None
        if not self._handling.willing(job):
            return None
        whole = float(job.parts * job.rows)
        self.queue.came(job.author, job.whole, whole, now)
        order = self.queue.order(
            job.author, job.whole, whole, priority=job.priority, deadline=job.deadline
        )
        return place, order, claim_hash(job.id, self._own)

    def _is_paused(self, job: str, now: float) -> bool:
        pause = self._paused.get(job)
        return pause is not None and now < pause.until

    def _place(self, standing: JobStanding, job: Job, now: float) -> int | None:
        claim = standing.claim
        if claim is not None:
            if claim.done:
                return None
            if claim.claimant == self._own:
                return _RESUMED
            if self._is_stuck(job, claim, now):
                return _AGAIN
            return _HEDGED if self._is_late(job, claim, now) else None
        waited = (now - self._open.get(job.id, now)) / self._stretch(job)
        if waited >= state_defaults.CLAIM_WAITED and not self._jobs.held(job.author):
            return _WAITED
        return self._fallen(job, courteous=waited < state_defaults.CLAIM_COURTESY)

    def _fallen(self, job: Job, *, courteous: bool) -> int | None:
        """Return how urgent an unclaimed job is (`_OWN`, `_OTHERS`, …), according to the ring.

        Returns None if the job is left to another node for now. If `courteous`, a job in the share
        of a live worker is always left to that worker.
        """
        left = False  # whether the first worker is dead
        for worker in islice(self._workers.shares.heirs(job.id), state_defaults.CLAIM_HEIRS):
            if worker == self._own:
                return _LEFT if left else _OWN
            silent = self._workers.silent(worker)
            if silent < self._workers.patience():
                others = _LEFT_TO_OTHERS if left else _OTHERS
                # It may work on the job behind a partition, or be about to begin.
                return None if silent or courteous else others
            left = True
        return _LEFT_TO_OTHERS if left else _OWN

    def _stretch(self, job: Job) -> float:
        """Return the factor, 1 to 2, by which this node extends its waiting times for a job.

        The factor differs between nodes, so that they do not all begin at the same time.
        """
        return 1 + claim_hash(job.id, self._own)[0] / 256

    def _ready(self, job: Job) -> bool:
        done = self._jobs.all_in(JobState.DONE)
        return all(need in done for need in job.needs)

    def _is_stuck(self, job: Job, claim: Claim, now: float) -> bool:
        """Return whether the claimant of a job shows no progress any more.

        A claimant that does not answer gets more time, because it may be working behind a
        partition.
        """
        silent, seen = self._workers.silent(claim.claimant), self._seen[job.id]
        # One node checks what a claimant has done. The others believe that it has done it.
        idle = now - (seen.proven if self._is_next(job, claim) else seen.since)
        stuck = silent >= self._workers.patience() if silent else idle >= job.lease
        return stuck or self._is_overdue(job, now)

    def _is_late(self, job: Job, claim: Claim, now: float) -> bool:
        """Return whether a claimant is so late that this node works on the job, too.

        Only the first live node on the ring, other than the claimant, may do that.
        """
        late = defaults.HEDGE_TIMES * claim.takes + defaults.HEDGE_LEAST
        if not claim.takes or now - self._seen[job.id].begun < late:
            return False
        return self._is_next(job, claim)

    def _is_next(self, job: Job, claim: Claim) -> bool:
        """Return whether this node is the first live one on the job's ring besides the claimant."""
        for worker in islice(self._workers.shares.heirs(job.id), state_defaults.CLAIM_HEIRS):
            if worker == self._own:
                return True
            if worker != claim.claimant and self._workers.silent(worker) < self._workers.patience():
                return False
        return False

    def _is_overdue(self, job: Job, now: float) -> bool:
        """Return whether a job has been held for so long that progress of its claimants no longer
        counts unless it is proven."""
        seen = self._seen.get(job.id)
        most = self._stretch(job) * state_defaults.CLAIM_LEASES * job.lease
        return seen is not None and now - seen.first >= most

    def _begin(self, standing: JobStanding, place: int, now: float) -> Claim:
        assert standing.job is not None
        attempt = standing.attempt + (place != _RESUMED)
        claim = new_claim(self._own, standing.id, attempt)
        own = self._jobs.claim_by(self._own, standing.id)
        if own is not None and own.saved:  # still needed if this run ends before it stores anything
            claim = replace(claim, step=own.step, saved=own.saved)
        stubborn = attempt >= state_defaults.CLAIM_STUBBORN or self._is_overdue(standing.job, now)
        hedge = place == _HEDGED
        other = standing.claim if place == _AGAIN else None
        doubted = None
        if other is not None and other.saved and not self._workers.silent(other.claimant):
            doubted = other
        else:
            self.queue.begin(standing.job.author, self._handling.work(standing.job))
        self._runs[standing.id] = _Run(claim, stubborn or hedge, hedge, doubted)
        self._round = iter(())  # begin a new round, so that turns count at once
        return claim

    def _say(
        self,
        job: str,
        *,
        done: bool = False,
        step: int = 0,
        result: bytes = b"",
        saved: bytes = b"",
    ) -> Claim:
        run = self._runs[job]
        attempt, takes = run.claim.attempt, run.claim.takes
        run.claim = new_claim(
            self._own, job, attempt, done=done, step=step, result=result, takes=takes, saved=saved
        )
        return run.claim

    def _must_stop(self, run: _Run, standing: JobStanding) -> bool:
        """Return whether this node must stop working on a job.

        The node must stop if another node has done the job, if another claim is ahead and this
        node's run is not stubborn, if the job no longer exists, or if the job's author refuses this
        node's claims.
        """
        claim = standing.claim
        if standing.job is None or self._own in standing.job.refused:
            return True
        if claim is None or claim.claimant == self._own:
            return False
        return claim.done or (not run.stubborn and claim < run.claim)

    def _is_unknown(self, job: str) -> bool:
        standing = self._jobs.get(job)
        return standing is not None and standing.job is None

    def _is_behind(self, claim: Claim) -> bool:
        standing = self._jobs.get(claim.job)
        ahead = standing.claim if standing else None
        if ahead is None or ahead.claimant == self._own:
            return False
        # This node's stored work is needed until another node has stored as much.
        return ahead.done or not claim.left or (bool(ahead.saved) and ahead.step >= claim.step)

    def _look(self, job: str, standing: JobStanding | None, now: float) -> None:
        """Note since when a job has had no claim, has been held by a claim, and has been held by
        the present one."""
        if standing is None or standing.state is not JobState.OPEN:
            self._open.pop(job, None)
        else:
            self._open.setdefault(job, now)
        if standing is None or standing.state is not JobState.CLAIMED or standing.claim is None:
            self._seen.pop(job, None)
            if standing is None or standing.state in (JobState.DONE, JobState.UNKNOWN):
                self._paused.pop(job, None)
            return
        seen = self._seen.get(job)
        if seen is None:
            self._seen[job] = _Seen(standing.claim, now, now, now, now)
        elif seen.claim is not standing.claim:
            before, after = seen.claim, standing.claim
            if (before.claimant, before.attempt) != (after.claimant, after.attempt):
                seen.begun = seen.since = seen.proven = now
                seen.step = 0
            elif after.saved not in (b"", before.saved) and after.step > before.step:
                seen.since = now
            seen.claim = after

"""When a node claims a job, tries one again that another holds, gives way, or says it is done.

No I/O. `now` is the node's own monotonic clock, in seconds: it decides when this node acts, and
never what anybody's view shows. The caller writes the claims it is given into its feed, does the
work, and tells of every job that stands otherwise.

Nodes that hear of each other too late do the same work twice, so they look first for what nobody
else is likely to do: what falls to them (`Shares`), then what falls to others who answer, then what
is left by those who have been silent for long, and last what another has begun. What falls to
others is left to them for some seconds.

No author waits for another who lists thousands of jobs: of equal ones the next is that author's of
whom this node has begun the fewest, and the job of one for whom nobody works comes before all.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from ..transport.identity import PeerId
from . import defaults
from .claims import Claim, claim_hash, new_claim
from .errors import FeedFull
from .shares import Shares
from .views.jobs import Job, Jobs, Standing, State

Urgency = tuple[int, int, bytes]
"""The place, the author's turn, a lot: lower is to be done first."""
_RESUMED, _WAITED, _OWN, _OTHERS, _LEFT, _LEFT_TO_OTHERS, _AGAIN = range(7)


@dataclass(slots=True)
class _Run:
    """A job that this node is at."""

    claim: Claim
    stubborn: bool  # it goes on whatever others claim, until one is done


@dataclass(frozen=True, slots=True)
class _Pause:
    """A job that was given up here, and is left alone for now."""

    until: float
    length: float  # seconds


@dataclass(slots=True)
class _Seen:
    """The claim that holds a job, as this node's clock saw it."""

    claim: Claim
    since: float  # it is like this
    first: float  # that the job is held by anybody


class _Turns:
    """Whose jobs this node begins next: of each author as many, however many it lists."""

    def __init__(self) -> None:
        self._turns: dict[PeerId, int] = {}  # of those beyond `_now`
        self._now = 0

    def of(self, author: PeerId) -> int:
        return max(self._turns.get(author, 0), self._now)

    def begin(self, author: PeerId) -> None:
        """A job of this author's is begun. Who comes anew has no arrears."""
        self._now = self.of(author)
        self._turns[author] = self._now + 1
        self._turns = {peer: turn for peer, turn in self._turns.items() if turn > self._now}


def patience(silent: int, workers: int) -> float:
    """For how many seconds those who fell silent are believed to be at their jobs: for long where
    many did, of all that answered lately, for there may be a cut; else they have ended."""
    few = max(1, int(workers * defaults.CLAIM_FEW))
    return defaults.CLAIM_PATIENCE[silent > few]


class Claimant:
    """Decides for one node. `willing`: whether it can and may do a job; `silent`: for how many
    seconds a peer has not answered, 0 while it does, infinite where it never did; `patience`: from
    how many on its jobs are others'."""

    def __init__(
        self,
        own: PeerId,
        jobs: Jobs,
        shares: Shares,
        *,
        willing: Callable[[Job], bool],
        silent: Callable[[PeerId], float],
        patience: Callable[[], float],
    ) -> None:
        self._own = own
        self._jobs = jobs
        self._shares = shares
        self._willing = willing
        self._silent = silent
        self._patience = patience
        self._runs: dict[str, _Run] = {}
        self._seen: dict[str, _Seen] = {}
        self._paused: dict[str, _Pause] = {}
        self._gone: dict[str, float] = {}  # since when own claims have no job
        self._open: dict[str, float] = {}  # since when a job was seen to be nobody's
        self._turns = _Turns()
        self._round: Iterator[str] = iter(())

    @property
    def running(self) -> list[str]:
        """The jobs that this node is at."""
        return [job for job, run in self._runs.items() if not run.claim.done]

    def next(self, now: float) -> Claim | None:
        """The claim to write and the job to begin, where there is one for this node."""
        best: tuple[Urgency, Standing] | None = None
        for job in self._some_jobs():
            standing = self._jobs.get(job)
            if standing is None:
                continue
            self._look(job, standing, now)
            urgency = self._urgency(standing, now)
            if urgency is not None and (best is None or urgency < best[0]):
                best = urgency, standing
        return None if best is None else self._begin(best[1], best[0][0], now)

    def step(self, job: str, step: int) -> Claim:
        """The claim to write once a part of the work is safe: it keeps others from trying."""
        return self._say(job, step=step)

    def finish(self, job: str, result: bytes) -> Claim:
        """The claim to write when the work is done. Raises FeedFull where the result is too large:
        it is to name then where the rest is."""
        if len(result) > defaults.JOB_RESULT_BYTES:
            most = defaults.JOB_RESULT_BYTES
            raise FeedFull("fact-too-large", f"the result of a job has over {most} bytes")
        return self._say(job, done=True, result=result)

    def give_up(self, job: str, now: float, *, failed: bool = True) -> None:
        """The work ended here without a result: the claim is to be taken out; others, or this
        node later, try. Where it has not `failed`, but found no room, this node tries soon, and
        each time after twice as long."""
        del self._runs[job]
        standing = self._jobs.get(job)
        length = standing.job.lease if standing and standing.job else defaults.JOB_LEASE[1]
        if not failed:
            before = self._paused.get(job)
            length = min(length, 2 * before.length if before else defaults.CLAIM_PAUSE)
        self._paused[job] = _Pause(now + length, length)

    def noticed(self, job: str, now: float) -> bool:
        """A job stands otherwise. Whether this node is to stop working on it: it has given way
        then, and its claim is to be taken out."""
        standing = self._jobs.get(job)
        self._look(job, standing, now)
        run = self._runs.get(job)
        if run is None:
            return False
        if run.claim.done:  # kept until the view has it, or this node would begin again
            if standing is None or self._jobs.claim_by(self._own, job) == run.claim:
                del self._runs[job]
            return False
        if standing is not None and not self._gives_way(run, standing):
            return False
        del self._runs[job]
        return True

    def known(self) -> list[str]:
        """The jobs that are to be `noticed` where any may stand otherwise: perhaps very many."""
        held = self._jobs.all_in(State.CLAIMED)
        return list(dict.fromkeys((*self._seen, *self._open, *self._runs, *self._paused, *held)))

    def outdated(self, now: float, *, kept: float = defaults.CLAIM_KEPT) -> list[str]:
        """Own claims to take out: of a former run, where others are ahead, and those of which the
        job has been gone for `kept` seconds. To be asked now and then."""
        own = [c for c in self._jobs.claims_by(self._own) if c.job not in self._runs]
        unknown = (claim.job for claim in own if self._is_unknown(claim.job))
        self._gone = {job: self._gone.get(job, now) for job in unknown}
        found = [job for job, since in self._gone.items() if now - since >= kept]
        return sorted(found + [c.job for c in own if not c.done and self._is_behind(c)])

    def _some_jobs(self) -> list[str]:
        """The next jobs to look at, of all that are not done; a round of them ends a call."""
        found = list(islice(self._round, defaults.CLAIM_SCANNED))
        if not found:
            self._round = self._new_round()
            found = list(islice(self._round, defaults.CLAIM_SCANNED))
        return found

    def _new_round(self) -> Iterator[str]:
        """All jobs that are not done, one of each author after the other. What comes meanwhile
        waits for the next round."""
        waiting = self._jobs.waiting
        authors: deque[tuple[PeerId, Iterator[str] | None]]
        authors = deque((author, None) for author in tuple(waiting))
        while authors:
            author, jobs = authors.popleft()
            if jobs is None:  # they are copied only when it is its turn
                jobs = iter(tuple(waiting.get(author, {})))
            job = next(jobs, None)
            if job is not None:
                yield job
                authors.append((author, jobs))

    def _urgency(self, standing: Standing, now: float) -> Urgency | None:
        """How soon this node should take a job; None: not now."""
        job = standing.job
        if job is None or job.id in self._runs or self._is_paused(job.id, now):
            return None
        place = self._place(standing, job, now)
        if place is None or self._own in job.refused or not self._ready(job):
            return None
        if not self._willing(job):
            return None
        return place, self._turns.of(job.author), claim_hash(job.id, self._own)

    def _is_paused(self, job: str, now: float) -> bool:
        pause = self._paused.get(job)
        return pause is not None and now < pause.until

    def _place(self, standing: Standing, job: Job, now: float) -> int | None:
        claim = standing.claim
        if claim is not None:
            if claim.done:
                return None
            if claim.claimant == self._own:
                return _RESUMED
            return _AGAIN if self._is_stuck(job, claim, now) else None
        waited = (now - self._open.get(job.id, now)) / self._stretch(job)
        if waited >= defaults.CLAIM_WAITED and not self._jobs.held(job.author):
            return _WAITED
        return self._fallen(job, courteous=waited < defaults.CLAIM_COURTESY)

    def _fallen(self, job: Job, *, courteous: bool) -> int | None:
        """To whom it falls, and whether it is left to that one for now."""
        left = False  # whether who comes first is gone
        for worker in islice(self._shares.heirs(job.id), defaults.CLAIM_HEIRS):
            if worker == self._own:
                return _LEFT if left else _OWN
            silent = self._silent(worker)
            if silent < self._patience():
                others = _LEFT_TO_OTHERS if left else _OTHERS
                # Behind a cut, perhaps, and at it; or about to begin.
                return None if silent or courteous else others
            left = True
        return _LEFT_TO_OTHERS if left else _OWN

    def _stretch(self, job: Job) -> float:
        """By how much longer than others this node waits, 1 to 2: or all would begin at once."""
        return 1 + claim_hash(job.id, self._own)[0] / 256

    def _ready(self, job: Job) -> bool:
        done = self._jobs.all_in(State.DONE)
        return all(need in done for need in job.needs)

    def _is_stuck(self, job: Job, claim: Claim, now: float) -> bool:
        """Whether the holder answers and shows nothing, or has not answered for long: it may be
        behind a cut, and at it."""
        silent = self._silent(claim.claimant)
        idle = now - self._seen[job.id].since
        stuck = silent >= self._patience() if silent else idle >= job.lease
        return stuck or self._is_overdue(job, now)

    def _is_overdue(self, job: Job, now: float) -> bool:
        """Whether it has been held for so long that holders are not believed any more."""
        seen = self._seen.get(job.id)
        most = self._stretch(job) * defaults.CLAIM_LEASES * job.lease
        return seen is not None and now - seen.first >= most

    def _begin(self, standing: Standing, place: int, now: float) -> Claim:
        assert standing.job is not None
        attempt = standing.attempt + (place != _RESUMED)
        claim = new_claim(self._own, standing.id, attempt)
        stubborn = attempt >= defaults.CLAIM_STUBBORN or self._is_overdue(standing.job, now)
        self._runs[standing.id] = _Run(claim, stubborn)
        self._turns.begin(standing.job.author)
        self._round = iter(())  # the next one is whose turn is first, again
        return claim

    def _say(self, job: str, *, done: bool = False, step: int = 0, result: bytes = b"") -> Claim:
        run = self._runs[job]
        attempt = run.claim.attempt
        run.claim = new_claim(self._own, job, attempt, done=done, step=step, result=result)
        return run.claim

    def _gives_way(self, run: _Run, standing: Standing) -> bool:
        """Whether others make this node's run needless."""
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
        return ahead is not None and ahead.claimant != self._own

    def _look(self, job: str, standing: Standing | None, now: float) -> None:
        """Note since when it has been nobody's, or its holder has shown nothing new."""
        if standing is None or standing.state is not State.OPEN:
            self._open.pop(job, None)
        else:
            self._open.setdefault(job, now)
        if standing is None or standing.state is not State.CLAIMED or standing.claim is None:
            self._seen.pop(job, None)
            if standing is None or standing.state in (State.DONE, State.UNKNOWN):
                self._paused.pop(job, None)
            return
        seen = self._seen.get(job)
        if seen is None:
            self._seen[job] = _Seen(standing.claim, now, now)
        elif seen.claim is not standing.claim:
            seen.claim, seen.since = standing.claim, now

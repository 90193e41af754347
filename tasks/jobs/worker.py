"""Worker of a node, which does pieces of jobs of any node: it selects the next pieces, claims them,
runs them, and publishes their results.

The claim is on this node's disk before the work begins, and later contains the result. The node
claims as many pieces as it will do in about PIECE_TIME, and no more while it has interactive
requests. Spec: docs/spec/jobs.md.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import trio

from ...dht.errors import NotEnoughDisk
from ...state import defaults as state_defaults
from ...state.errors import FeedFull
from ...state.views.jobs import Claim, Job, JobStanding
from ...state.views.members import JOBS, Member, jobs_fact
from ...state.views.view import ViewWatch
from ...transport.errors import ShoalError
from ...transport.identity import PeerId
from . import defaults
from .claimant import Claimant, JobHandling
from .claims import OwnClaims
from .crew import Crew, WorkTerms, does_jobs
from .desk import JobNode
from .fairness import FairQueue
from .results import JobOutcome, failed, pack_outcome
from .runner import MOVED, NOT_NOW, Runner
from .sealing.seals import JobSeals
from .shelf import Shelves

Item = TypeVar("Item")
Replicate = Callable[[str, str, int], Awaitable[bool]]
"""(job, root of a blob, its bytes): has another node keep the blob. Returns whether one does."""


@dataclass(slots=True)
class _Work:
    """A job that this node is working on."""

    job: Job
    claim: Claim
    seconds: float = 0.0  # that it will probably take, without other work
    hedge: bool = False  # whether another node works on it too, and its claim comes at the end
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    shown: float = 0.0  # time at which progress was last written
    step: int = 0  # the progress of the work; rows, if there are several
    output: tuple[str, int] | None = None  # root and bytes of the blob with its output
    failed: bool = True  # whether an end without a result counts as a failure of the job

    @property
    def left(self) -> float:
        """Predicted seconds of what is left."""
        rows = self.job.rows
        return self.seconds * (1 - min(self.step, rows) / rows if rows > 1 else 1)


@dataclass(frozen=True, slots=True)
class OutputStores:
    """Where a worker stores the outputs of jobs."""

    shelf: Shelves
    replicate: Replicate | None = None
    """Has another node store an output too."""
    seals: JobSeals | None = None
    """Seals the outcomes of sealed jobs."""


class Worker:
    """Worker of one node, which does jobs under the node's terms.

    `runners` maps each kind of job to its implementation. `crew` knows the members that do jobs of
    these kinds. `health` receives a sentence about what prevents jobs on this node, or None if
    nothing does.
    """

    def __init__(
        self,
        node: JobNode,
        terms: WorkTerms,
        runners: Mapping[str, Runner],
        crew: Crew,
        outputs: OutputStores,
        health: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self.done = 0  # jobs done since the start
        self._host, self._state, self._own = node.host, node.state, node.peer
        self._guard = node.guard
        self._health = health
        self._outputs = outputs
        self._terms = terms
        self.runners = runners
        """What does each kind of job on this node."""
        self._jobs = node.state.views.jobs
        self.crew = crew
        """The nodes that do jobs, and their shares of them."""
        handling = JobHandling(self._willing, self._seconds, self._handling)
        self._claimant = Claimant(self._own, self._jobs, crew, handling, terms.queue)
        self._work: dict[str, _Work] = {}
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._claims = OwnClaims(node.state, node.peer, outputs.shelf, health)
        self._leaving = False
        self._woken = trio.Event()  # set when a job has ended or come; then replaced
        self._since = 0.0  # time since when the work that is measured was done
        self._measured = 0.0  # predicted seconds of that work

    @property
    def current_job(self) -> str | None:
        """Id of the oldest job in progress, or None."""
        return next((work.job.whole for work in self._work.values()), None)

    @property
    def pieces(self) -> int:
        """Number of pieces of jobs in progress."""
        return len(self._work)

    @property
    def queue(self) -> FairQueue:
        """The order of users and their jobs."""
        return self._claimant.queue

    def running(self) -> list[Job]:
        """Return the pieces of jobs in progress, the oldest first."""
        return [work.job for work in self._work.values()]

    async def run(self) -> None:
        """Do jobs until cancelled."""
        jobs, members = self._jobs.watch(), self._state.views.members.watch()
        await self.begin()
        async with trio.open_nursery() as nursery:
            repeat = partial(self._guard.start_repeated, nursery)
            repeat("changes of jobs", self._watch_jobs, jobs)
            repeat("changes of members", self._watch_members, members)
            repeat("members that do jobs", self._watch_crew)
            repeat("claims on jobs", self._tidy)
            while True:
                found, began = False, self._host.now()
                with self._guard.around("jobs to begin"):
                    free = self._offers() and not self._terms.turn.is_wanted
                    found = free and self.begin_some(nursery)
                took = self._host.now() - began  # a search among a thousand jobs takes long
                await self._pause(defaults.PAUSE if found or self._work else defaults.LOOK)
                rest = max(defaults.PAUSE / 5, defaults.LOOK_PART * took)
                await trio.sleep(max(0.0, began + rest - self._host.now()))

    async def leave(self) -> None:
        """Start no more jobs, and abandon the current one so that another node begins it at
        once."""
        self._leaving = True
        begun, members = list(self._work), self._state.views.members
        if self._own not in self.crew.shares:
            return
        with suppress(FeedFull):
            self._state.set("member", JOBS, None)
        for work in list(self._work.values()):
            work.scope.cancel()
        moving = any(self.runners[work.job.kind].moves for work in self._work.values())
        most = defaults.MOVE_TIME if moving else defaults.LEAVE_TIME
        with trio.move_on_after(most):
            while does_jobs(members, self._own) or any(  # noqa: ASYNC110  the views tell tasks
                map(self._is_open, begun)
            ):
                await trio.sleep(defaults.PAUSE / 5)
        if list(self._state.replication.exchange.peers):
            await trio.sleep(defaults.LEAVE_SPREAD)

    def _is_open(self, job: str) -> bool:
        """Return whether this node has a claim without a result on the job."""
        claim = self._claims.on(job)
        return claim is not None and not (claim.done or claim.left)

    async def begin(self) -> None:
        """Wait until the claims of earlier runs are known, and process them. `run` begins with
        this."""
        await self._state.shown.wait()
        await in_turns(self.crew.known(), self._notice_member)
        await in_turns(self._claimant.known(), self._notice)

    def _offers(self) -> bool:
        """Publish whether this node does jobs now, and return whether it may start one.

        Nodes that publish this are the preferred workers of jobs. The result is True only once the
        entry is on disk, which shows that claims can be stored too.
        """
        says = does_jobs(self._state.views.members, self._own)
        does = not self._leaving and self._terms.ready()
        if says != does:
            with suppress(FeedFull):
                self._state.set("member", JOBS, jobs_fact(sorted(self.runners)) if does else None)
        return says and does

    # Changes by other nodes.

    async def _watch_jobs(self, watch: ViewWatch[str, JobStanding]) -> None:
        """Process each change of a job."""
        async for change in watch:
            if change.subject is None:
                await in_turns(self._claimant.known(), self._notice)
            else:
                self._notice(change.subject)
                self._wake_for(change.subject)

    def _wake_for(self, job: str) -> None:
        """If a new job is this node's to begin, and it has no other, look for jobs at once.

        A search looks at many jobs, and not every node needs one for each of them.
        """
        standing = self._jobs.get(job)
        if self._work or standing is None or standing.job is None or standing.claim is not None:
            return
        if next(self.crew.shares.heirs(job), None) == self._own:
            self._wake()

    def _wake(self) -> None:
        """End the pause between two searches for jobs."""
        self._woken.set()
        self._woken = trio.Event()

    async def _watch_members(self, watch: ViewWatch[PeerId, Member]) -> None:
        """Process each change of a member."""
        async for change in watch:
            if change.subject is None:
                await in_turns(self.crew.known(), self._notice_member)
            else:
                self._notice_member(change.subject)

    def _notice_member(self, peer: PeerId) -> None:
        """Process a change of a member."""
        with self._guard.around(peer):
            self.crew.changed(peer)

    async def _watch_crew(self) -> None:
        """Record live members periodically, even during a job, because silence counts from the last
        record."""
        while True:
            self.crew.look()
            await trio.sleep(defaults.LOOK)

    def _notice(self, job: str) -> None:
        """Process a change of a job.

        If another node has precedence or the job was removed, stops working on it and removes the
        claim.
        """
        with self._guard.around(f"job {job}"):
            if not self._claimant.noticed(job, self._host.now()):
                return
            if (work := self._work.get(job)) is not None:
                work.scope.cancel()
            self._claims.withdraw(job)

    def _handling(self, job: str) -> AbstractContextManager[None]:
        """Return the guard of a block that decides about a job, before it has begun."""
        return self._guard.around(f"job {job}", partial(self._put_off, job))

    def _put_off(self, job: str) -> None:
        """Leave a job alone for a while, and end the link to its author, because of a bug that its
        spec triggers."""
        self._claimant.put_off(job, self._host.now())
        standing = self._jobs.get(job)
        if standing is not None and standing.job is not None:
            self._guard.hang_up(standing.job.author)

    # Jobs in progress.

    def _willing(self, job: Job) -> bool:
        """Return whether this node accepts a job and can do it now."""
        runner = self.runners.get(job.kind)
        if runner is None or not self._claims.has_room(job.author):
            return False
        return self._terms.accepts(job.author) and runner.able(job)

    def _seconds(self, job: Job) -> float:
        """Return how long a job will probably take, without other work."""
        return self.runners[job.kind].seconds(job)

    def begin_some(self, nursery: trio.Nursery) -> bool:
        """Begin the next jobs, as long as this node has work for less than PIECE_TIME. Return
        whether there was a job."""
        begun = False
        if self._left >= defaults.PIECE_TIME / 2:
            return False
        self._claims.weigh()
        while len(self._work) < defaults.PIECES_AT_ONCE and self._left < defaults.PIECE_TIME:
            work = self._next()
            if work is None:
                break
            begun = True
            if not self._work:
                self._since, self._measured = self._host.now(), 0.0
            self._work[work.job.id] = work
            self._guard.start(nursery, work.job.author, self._one, work)
        return begun

    @property
    def _left(self) -> float:
        """Predicted seconds of what is left of all jobs in progress."""
        return sum(work.left for work in self._work.values())

    def _next(self) -> _Work | None:
        """Choose the next job, or return None if there is none now."""
        claim = self._claimant.next(self._host.now())
        standing = None if claim is None else self._jobs.get(claim.job)
        if claim is None or standing is None or standing.job is None:
            return None
        with self._handling(claim.job):
            return self._planned(standing.job)
        return None

    def _planned(self, job: Job) -> _Work:
        """Return the work on a job that the claimant has begun, with the time that it will take."""
        runner = self.runners[job.kind]
        seconds = runner.seconds(job)
        claim = self._claimant.expect(job.id, max(self._left + seconds, runner.longest(job)))
        return _Work(job, claim, seconds, self._claimant.hedges(job.id), shown=self._host.now())

    async def _one(self, work: _Work) -> None:
        """Do a job, from the claim to the result."""
        try:
            with work.scope:
                await self._do(work)
        finally:
            del self._work[work.job.id]
            self._give_up(work)
            self._wake()

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than until a job in progress has ended, or one has come."""
        woken = self._woken
        with trio.move_on_after(seconds):
            await woken.wait()

    async def _do(self, work: _Work) -> None:
        """Claim a job, run it, and write its result into the claim."""
        doubted = self._claimant.doubted(work.job.id)
        if doubted is not None and await self._shows_progress(work, doubted):
            return
        if not work.hedge:
            await self._claim(work)
        if not work.hedge and self._claims.on(work.job.id) is None:
            return
        outcome = await self._outcome(work)
        if outcome is None:
            return
        result = await self._result(work, outcome)
        if result is not None:
            self._finish(work, result)
            if work.hedge and work.output is not None:  # other nodes keep it only for a claimant
                await self._replicate_output(work)

    async def _shows_progress(self, work: _Work, claim: Claim) -> bool:
        """Return whether the blob that a claim names shows progress. The job is then left to the
        claimant."""
        step = 0
        try:
            step = await self.runners[work.job.kind].proven(work.job, claim)
        except NotEnoughDisk:
            step = claim.step  # this node cannot do the job either
        except ShoalError:
            pass  # what cannot be fetched or read proves nothing
        return self._claimant.judge(work.job.id, min(step, claim.step), self._host.now())

    async def _claim(self, work: _Work) -> None:
        """Write the claim on a job, and wait until it is on disk."""
        if not self._claims.write(work.claim):
            return
        while self._claims.on(work.job.id) is None:  # noqa: ASYNC110  the view tells tasks
            await trio.sleep(defaults.PAUSE / 5)
        if next(self.crew.shares.heirs(work.job.id), self._own) != self._own:
            await trio.sleep(defaults.HESITATION)

    async def _outcome(self, work: _Work) -> JobOutcome | None:
        """Run a job, with several tries. Return its outcome, or None to leave it to others or to a
        later try."""
        why = failed("failed", "")
        for number in range(defaults.TRIES):
            if number:
                await trio.sleep(defaults.TRY_PAUSE * 2 ** (number - 1))
            try:
                return await self._tried(work)
            except ShoalError as error:
                why = failed(getattr(error, "code", None) or "failed", error.message)
                absent = why.error == "no-source" and not self.crew.is_live(work.job.author)
                # The node that takes a moved job over may end soon, and the author of a job has its
                # input.
                if why.error == MOVED or why.error in NOT_NOW or absent:
                    work.failed = False
                    return None
        failures = self._failures.pop(work.job.id, 0) + 1
        if failures >= defaults.FAILURES:
            return why
        self._failures[work.job.id] = failures
        if len(self._failures) > defaults.FAILURES_KEPT:
            self._failures.popitem(last=False)
        return None

    async def _tried(self, work: _Work) -> JobOutcome:
        """Run a job once, writing progress into the claim. Raises ShoalError if the try fails."""
        pause = max(defaults.STEP_PAUSE, work.job.lease / defaults.STEPS_A_LEASE)

        def progress(step: int, saved: bytes = b"") -> None:
            now, work.step = self._host.now(), step
            if saved or now - work.shown >= pause:
                work.shown = now
                work.claim = self._claimant.step(work.job.id, step, saved or work.claim.saved)
                if not work.hedge:
                    self._claims.write(work.claim)

        await self._terms.turn.come()
        runner = self.runners[work.job.kind]
        with trio.move_on_after(runner.run_time):
            return await runner.run(work.job, progress)
        return failed("too-long", f"it took over {runner.run_time:g} s")

    async def _result(self, work: _Work, outcome: JobOutcome) -> bytes | None:
        """Return an outcome encoded for the claim. A long text is stored as a blob first, if
        possible on another node too.

        Returns None if the blob cannot be stored here.
        """
        sealed = None
        if (seals := self._outputs.seals) is not None:
            sealed = await self._host.offload(seals.seal_outcome, work.job, outcome)
        if sealed is not None:
            outcome = JobOutcome(sealed=sealed)
        packed = pack_outcome(outcome)
        if len(packed) <= defaults.INLINE_BYTES:
            return packed
        data = sealed or outcome.text.encode(errors="replace")
        if len(data) > defaults.RESULT_BYTES:
            return pack_outcome(failed("too-large", f"the text has {len(data)} bytes"))
        try:
            root = await self._outputs.shelf.put(data)
        except ShoalError as error:
            self._health(f"cannot store the result of a job: {error.message}")
            return None
        self._health(None)
        work.output = root, len(data)
        if not work.hedge:
            await self._replicate_output(work)
        return pack_outcome(replace(outcome, text="", sealed=b"", blob=root, size=len(data)))

    async def _replicate_output(self, work: _Work) -> None:
        """Ask another node to keep the output of a job."""
        replicate = self._outputs.replicate
        if replicate is not None and work.output is not None:
            await replicate(work.job.id, *work.output)

    def _finish(self, work: _Work, result: bytes) -> None:
        """Write the result into the claim. If that fails, leave the job to other nodes."""
        if self._claims.write(self._claimant.finish(work.job.id, result)):
            self.done += 1
            self._measure(work)
            self._failures.pop(work.job.id, None)
        else:
            self._leave_to_others(work)

    def _measure(self, work: _Work) -> None:
        """Compare the time of the jobs done since the last measurement with the prediction."""
        now = self._host.now()
        self._measured += work.seconds
        if now - self._since >= defaults.MEASURE_TIME or len(self._work) == 1:
            self.runners[work.job.kind].measured(work.job, self._measured, now - self._since)
            self._since, self._measured = now, 0.0

    def _give_up(self, work: _Work) -> None:
        """If the job was abandoned, withdraw the claim so that another node does it."""
        if work.job.id in self._claimant.running:
            self._leave_to_others(work)

    def _leave_to_others(self, work: _Work) -> None:
        """Withdraw the claim on a job, and count a failure unless the obstacle was temporary.

        A job that other nodes can continue is withdrawn with the name of what is stored of it.
        """
        moves = self.runners[work.job.kind].moves and not work.hedge
        left = self._claimant.leave(work.job.id) if moves else None
        self._claimant.give_up(work.job.id, self._host.now(), failed=work.failed)
        if not work.hedge and not (left is not None and self._claims.write(left)):
            self._claims.withdraw(work.job.id)

    async def _tidy(self) -> None:
        """Periodically remove outdated claims and their blobs, earlier if the space for claims is
        scarce."""
        await self._claims.tidy_blobs()
        while True:
            await trio.sleep(defaults.TIDY)
            self._claims.weigh()
            scarce = self._claims.is_scarce
            kept = defaults.PRESSED_KEPT if scarce else state_defaults.CLAIM_KEPT
            for job in self._claimant.outdated(self._host.now(), kept=kept):
                await self._claims.remove(job)


async def in_turns(items: Iterable[Item], do: Callable[[Item], object]) -> None:
    """Apply `do` to each item, and let other tasks run in between, because there may be many
    items."""
    for number, item in enumerate(items, 1):
        do(item)
        if number % defaults.AT_ONCE == 0:
            await trio.lowlevel.checkpoint()

"""Control socket operations on jobs and usage, and the views of jobs in their replies.

Specified in docs/spec/control.md.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, islice

import trio

from ...dht.names import Names
from ...state.directory import Directory
from ...state.service import State
from ...state.views.jobs import KNOWN, Claim, Job, JobStanding, JobState
from ...state.views.usage import UsageCount
from ...tasks.engine.interface import Sampling
from ...tasks.jobs import defaults as jobs_defaults
from ...tasks.jobs.desk import Desk
from ...tasks.jobs.errors import BadOutcome, BadSpec
from ...tasks.jobs.prompt import KIND, PromptSpec, read_spec
from ...tasks.jobs.results import StoredResult, read_outcome
from ...tasks.sharing.desk import usage_root
from ...tasks.sharing.offers import offers
from ...tasks.usage.accounting import NO_ROOT
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.shortid import BadId, meant
from .. import defaults
from ..daemon.base import Base
from ..daemon.jobs import Working
from ..errors import ControlError
from . import views
from .messages import jobs as messages
from .messages.encoding import extended
from .messages.generation import AskForText
from .server import Emit, Operation, operation

_Row = tuple[UsageCount, PeerId, PeerId, str]
"""One row of usage: (counts, client, provider, root of the model)."""
FAILED = "failed"  # shown as the state of a job whose result is an error
_STATES = (*(state.value for state in KNOWN), FAILED)


class JobOperations:
    """Control socket operations on the jobs of one node, and on the usage that nodes report."""

    def __init__(
        self, base: Base, state: State, directory: Directory, names: Names, working: Working
    ) -> None:
        self._base = base
        self._own = base.identity.peer
        self._state = state
        self._directory = directory
        self._names = names
        self._working = working

    def table(self) -> Mapping[str, Operation]:
        return dict(
            (
                operation(messages.SubmitJobs, self.submit),
                operation(messages.ListJobs, self.list),
                operation(messages.ShowJob, self.show),
                operation(messages.GetJobResult, self.result),
                operation(messages.GetJobResults, self.results),
                operation(messages.CancelJobs, self.cancel),
                operation(messages.GetUsage, self.usage),
            )
        )

    @property
    def _desk(self) -> Desk:
        return self._working.desk

    async def submit(self, ask: messages.SubmitJobs, _emit: Emit) -> messages.SubmittedJobs:
        """Submit one job for each prompt, all for the same model. Either all jobs are submitted or
        none."""
        self._base.refuse_when_stopping()
        root = (await self._names.resolve(ask.model)).root
        specs = [self._spec(ask, root, prompt) for prompt in ask.prompts]
        jobs = await self._desk.submit(specs, lease=jobs_defaults.LEASE)
        return messages.SubmittedJobs(tuple(jobs), ask.model, root)

    def _spec(self, ask: messages.SubmitJobs, root: str, prompt: str) -> PromptSpec:
        return PromptSpec(
            root=root,
            prompt=prompt,
            name=ask.model,
            raw=ask.raw,
            max_tokens=ask.max_tokens or jobs_defaults.PROMPT_TOKENS,
            sampling=sampling_of(ask, self._base.host),
            stop=ask.stop,
        )

    async def list(self, ask: messages.ListJobs, _emit: Emit) -> messages.JobsPage:
        """List the known jobs and stored results of the swarm, or only those of this node.

        This node's own jobs come first, the newest at the top. The jobs of other nodes follow,
        ordered by state.
        """
        state = ask.state
        if state is not None and state not in _STATES:
            raise ControlError(
                "bad-request", f"`{state}` is not a state of jobs", hint=", ".join(_STATES)
            )
        shown: list[messages.JobView] = []
        totals: Counter[str] = Counter()
        order = await self._order(mine=ask.mine)
        for number, job in enumerate(order, 1):
            found, view = self._state_and_view(job)
            if found is not None:
                totals[found] += 1
            place = totals[state] if state else totals.total()
            if found is not None and state in (None, found) and place > ask.offset:
                shown += [view()] if len(shown) < ask.limit else []
            if number % defaults.JOBS_COUNTED == 0:
                await trio.lowlevel.checkpoint()
        of_state = totals[state] if state else totals.total()
        return messages.JobsPage(
            jobs=tuple(shown),
            more=max(0, of_state - ask.offset - len(shown)),
            totals={name: totals[name] for name in _STATES},
            own=self._own,
            at=self._working.worker.at,
            does_jobs=self._working.does_jobs,
            kept=self._state.interest(("jobs", 0)),
        )

    async def _order(self, *, mine: bool) -> Iterator[str]:
        """Return the ids of the jobs to list, in order. Jobs may appear and disappear during the
        iteration."""
        jobs = self._state.views.jobs
        own = [*reversed(await self._desk.own())]
        if mine:
            return iter(own)
        known = set(own)
        every = [job for state in KNOWN for job in jobs.all_in(state) if job not in known]
        return chain(own, every)

    def _state_and_view(self, job: str) -> tuple[str | None, Callable[[], messages.JobView]]:
        """Return (state of a job, function that makes its view). The state is None if the job no
        longer exists."""
        held, standing = self._desk.results.about(job), self._state.views.jobs.get(job)
        if held is not None:
            return result_state(held), partial(result_view, held, self._own)
        if standing is None or standing.job is None:
            return None, _no_view
        made = self._desk.made(job) if standing.job.author == self._own else 0
        return state_of(standing)[0], partial(standing_view, standing, standing.job, made)

    async def show(self, ask: messages.ShowJob, _emit: Emit) -> messages.ShownJob:
        """Return a job, its specification and the claims on it."""
        jobs, results = self._state.views.jobs, self._desk.results
        job = self._find(ask.job)
        standing, held = jobs.get(job), results.about(job)
        if standing is None or standing.job is None:
            assert held is not None  # `_find` found it
            view = result_view(held, self._own)
            return extended(messages.ShownJob, view, spec=None, claims=())
        if held is not None:
            view = result_view(held, standing.job.author)
        else:
            made = self._desk.made(job) if standing.job.author == self._own else 0
            view = standing_view(standing, standing.job, made)
        claims = islice(jobs.claims_of(job), defaults.CLAIMS_SHOWN)
        return extended(
            messages.ShownJob,
            view,
            spec=spec_view(standing.job),
            claims=tuple(claim_view(claim, standing.job) for claim in claims),
        )

    async def result(self, ask: messages.GetJobResult, _emit: Emit) -> messages.JobResult:
        """Return the result of one of this node's own jobs. With `until_done`, wait until there is
        one."""
        job = self._desk.find(ask.job)
        found = await self._desk.result(job, wait=ask.until_done)
        view = result_view(found, self._own)
        return extended(messages.JobResult, view, text=found.outcome.text)

    async def results(self, ask: messages.GetJobResults, emit: Emit) -> messages.CountedResults:
        """Emit the results of several of this node's own jobs as they arrive.

        If the request names no jobs, all own jobs are meant. With `until_done`, this waits until
        each job has a result.
        """
        desk = self._desk
        await self._state.shown.wait()  # until then, own jobs of earlier runs are unknown
        jobs = tuple(await desk.own()) if ask.jobs is None else ask.jobs
        self._base.refuse_when_stopping()
        await emit(messages.ExpectedJobs(jobs))
        waiting, total, failed = dict.fromkeys(jobs), len(dict.fromkeys(jobs)), 0
        while waiting:
            changed, before = desk.changed, len(waiting)
            for job in tuple(waiting):
                record = await self._record(job, wait=ask.until_done)
                if record is not None:
                    del waiting[job]
                    failed += record.error is not None
                    await emit(messages.ArrivedResult(record))
            if len(waiting) < before:
                await emit(messages.JobProgress(total - len(waiting), failed))
            if waiting:
                with trio.move_on_after(defaults.JOBS_LOOK):
                    await changed.wait()
                self._base.refuse_when_stopping()
        return messages.CountedResults(total, failed)

    async def _record(
        self, job: str, *, wait: bool
    ) -> messages.JobRecord | messages.LackingRecord | None:
        """Return the result of a job and mark it as read.

        If there is no result, return a record that says so, or None if `wait` is set and the job
        may still get one.
        """
        if (found := await self._desk.results.take(job)) is not None:
            return record_of(found, self._own)
        if not self._desk.knows(job):
            return lacking_record(job, None, "unknown-job", "this node has no such job")
        if wait:
            return None
        standing = self._state.views.jobs.get(job)
        return lacking_record(job, standing, "not-done", "there is no result yet")

    async def cancel(
        self, ask: messages.CancelJobs, _emit: Emit
    ) -> messages.CancelledJob | messages.CancelledJobs:
        """Cancel one of this node's own jobs and delete its result. With `all`, cancel every own
        job that has no result yet."""
        desk = self._desk
        if ask.all:
            return messages.CancelledJobs(tuple(await desk.cancel_unfinished()), len(desk.results))
        if ask.job is None:
            raise ControlError("bad-request", "expected `job`, or `all`")
        job = desk.find(ask.job)
        await desk.cancel(job)
        return messages.CancelledJob(job)

    def _find(self, start: str) -> str:
        """Return the id of the job that begins with `start`. Own jobs are searched first, then
        those of other nodes.

        Raises BadId if no job matches, or several.
        """
        jobs = self._state.views.jobs
        try:
            return self._desk.find(start)
        except BadId as error:
            if error.code != "unknown-job":
                raise
        every = (job for state in KNOWN for job in jobs.all_in(state))
        return meant(start, every, "job", hint="`shoal job list` shows them")

    async def usage(self, _ask: messages.GetUsage, _emit: Emit) -> messages.UsagePage:
        """Return how much each client used of each provider, as reported by the providers. Rows
        with the most tokens come first."""
        names = _model_names(self._directory.members())
        rows: list[_Row] = []
        every = 0
        for row in self._counts():
            every += 1
            rows.append(row)
            if len(rows) >= 2 * defaults.USAGE_SHOWN:
                rows = sorted(rows, key=_rank)[: defaults.USAGE_SHOWN]
                await trio.lowlevel.checkpoint()
        rows = sorted(rows, key=_rank)[: defaults.USAGE_SHOWN]
        shown = (
            messages.UsageRow(
                client=None if root == NO_ROOT and client == provider else client,
                provider=provider,
                root=None if root == NO_ROOT else root,
                model=names.get(root),
                requests=count.requests,
                tokens_in=count.tokens_in,
                tokens_out=count.tokens_out,
                busy_s=count.busy_ms / 1000,
            )
            for count, client, provider, root in rows
        )
        kept = self._state.interest(("usage", 0))
        return messages.UsagePage(tuple(shown), every - len(rows), self._own, kept)

    def _counts(self) -> Iterator[_Row]:
        """Yield all rows of usage. The rows may change during the iteration."""
        usage = self._state.views.usage
        for client in tuple(usage.clients()):
            for (provider, root), count in tuple(usage.of(client).items()):
                yield count, client, provider, root


def _model_names(members: views.Members) -> dict[str, str]:
    """Return the names of all models that members know, by root. Shared models have no root, so
    theirs are by the digits under which their use is counted."""
    shared = {offer.model.name for offer in offers(members)}
    named = {usage_root(name): f"{name} (no root)" for name in shared}
    return named | {root: model.name for root, model in views.known_models(members).items()}


def _rank(row: _Row) -> tuple[int, PeerId, PeerId, str]:
    """Return a sort key that orders rows by their number of tokens, the largest first."""
    count, client, provider, root = row
    return -(count.tokens_in + count.tokens_out), client, provider, root


def _no_view() -> messages.JobView:
    raise AssertionError("a job that has gone has no view")


def state_of(standing: JobStanding) -> tuple[str, str | None]:
    """Return (state of a job, error code). The error code is None unless the job failed."""
    error = None
    if standing.state is JobState.DONE and standing.claim is not None:
        try:
            error = read_outcome(standing.claim.result).error or None
        except BadOutcome as bad:
            error = bad.code
    return FAILED if error else standing.state.value, error


def standing_view(standing: JobStanding, job: Job, made: int = 0) -> messages.JobView:
    """Describe a job from the entries in its author's feed.

    `made` is the time of submission in microseconds since 1970, or 0 if this node did not submit
    the job.
    """
    claim, (state, error) = standing.claim, state_of(standing)
    spec = spec_view(job)
    return messages.JobView(
        job=standing.id,
        author=job.author,
        kind=job.kind,
        state=state,
        error=error,
        message=None,
        model=None if spec is None else spec.model or spec.root,
        abstract="" if spec is None else spec.abstract,
        claimant=None if claim is None else claim.claimant,
        attempt=standing.attempt,
        step=0 if claim is None else claim.step,
        came=None,
        read=False,
        made=made / 1e6 or None,
    )


def spec_view(job: Job) -> messages.SpecView | None:
    """Describe the request of a prompt job. Returns None if the job is of another kind or its
    specification is invalid."""
    if job.kind != KIND:
        return None
    try:
        spec = read_spec(job.spec)
    except BadSpec:
        return None
    chat = None
    if spec.messages is not None:
        chat = tuple(messages.ChatMessage(said.role, said.content) for said in spec.messages)
    how = spec.sampling
    return messages.SpecView(
        root=spec.root,
        model=spec.name,
        abstract=spec.abstract,
        prompt=spec.prompt,
        messages=chat,
        raw=spec.raw,
        max_tokens=spec.max_tokens,
        temperature=how.temperature,
        top_k=how.top_k,
        top_p=how.top_p,
        seed=how.seed,
        stop=spec.stop,
    )


def claim_view(claim: Claim, job: Job) -> messages.ClaimView:
    """Describe a claim on a job."""
    return messages.ClaimView(
        claimant=claim.claimant,
        attempt=claim.attempt,
        done=claim.done,
        step=claim.step,
        refused=claim.claimant in job.refused,
    )


def result_state(result: StoredResult) -> str:
    """Return `done` or `failed`."""
    return FAILED if result.outcome.error else JobState.DONE.value


def result_view(result: StoredResult, author: str) -> messages.JobView:
    """Describe a result that is stored on this node, without its text."""
    came = result.outcome
    return messages.JobView(
        job=result.job,
        author=author,
        kind=result.kind,
        state=result_state(result),
        error=came.error or None,
        message=came.message or None,
        model=result.model,
        abstract=result.abstract,
        claimant=result.claimant,
        attempt=result.attempt,
        step=0,
        came=result.came,
        read=result.read > 0,
        made=result.made / 1e6 or None,
        tokens=came.tokens,
        reason=came.reason,
    )


def record_of(result: StoredResult, author: str) -> messages.JobRecord:
    """Describe a result that is stored on this node, with its text and its prompt (or the beginning
    of the prompt, if only that is stored)."""
    return extended(
        messages.JobRecord,
        result_view(result, author),
        prompt=result.prompt or result.abstract,
        text=result.outcome.text,
        node=result.claimant,
    )


def lacking_record(
    job: str, standing: JobStanding | None, error: str, why: str
) -> messages.LackingRecord:
    """Describe a job that has no result. `error` is the code of the reason, and `why` the reason as
    a sentence."""
    spec = None if standing is None or standing.job is None else spec_view(standing.job)
    prompt = None
    if spec is not None:
        prompt = spec.messages[-1].content if spec.messages else spec.prompt
    return messages.LackingRecord(
        job=job, prompt=prompt, text="", node=None, error=error, message=why
    )


def sampling_of(ask: AskForText[object, object], host: Host) -> Sampling:
    """Return the sampling options of a request. If it has no seed, a random one is chosen."""
    seed = int.from_bytes(host.entropy(8), "big") if ask.seed is None else ask.seed
    return Sampling(
        temperature=float(ask.temperature), top_k=ask.top_k, top_p=float(ask.top_p), seed=seed
    )

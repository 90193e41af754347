"""Control socket operations on jobs and usage. Specified in docs/spec/control.md."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, islice

import trio

from ...dht.names import Names
from ...state.directory import Directory
from ...state.service import State
from ...state.views.jobs import KNOWN
from ...state.views.usage import UsageCount
from ...tasks.jobs import defaults as jobs_defaults
from ...tasks.jobs.desk import Desk
from ...tasks.jobs.prompt import PromptSpec
from ...tasks.usage.accounting import NO_ROOT
from ...transport.identity import PeerId
from ...transport.shortid import BadId, meant
from .. import defaults
from ..daemon.base import Base
from ..daemon.jobs import Working
from ..errors import ControlError
from . import views
from .jobviews import (
    FAILED,
    claim_view,
    lacking_record,
    record_of,
    result_state,
    result_view,
    spec_view,
    standing_view,
    state_of,
)
from .messages import jobs as messages
from .messages.encoding import extended
from .sampling import sampling_of
from .server import Emit, Operation, operation

_Row = tuple[UsageCount, PeerId, PeerId, str]
"""One row of usage: (counts, client, provider, root of the model)."""
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
        names = views.known_models(self._directory.members())
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
                model=names[root].name if root in names else None,
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


def _rank(row: _Row) -> tuple[int, PeerId, PeerId, str]:
    """Return a sort key that orders rows by their number of tokens, the largest first."""
    count, client, provider, root = row
    return -(count.tokens_in + count.tokens_out), client, provider, root


def _no_view() -> messages.JobView:
    raise AssertionError("a job that has gone has no view")

"""Control socket operations that show jobs and usage, and the views of jobs in replies.

Specified in docs/spec/control.md.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, islice

import trio

from ....state.directory import Directory
from ....state.service import State
from ....state.views.jobs import KNOWN, Claim, Job, JobStanding, JobState
from ....state.views.usage import UsageCount
from ....tasks.jobs.desk import Desk
from ....tasks.jobs.errors import BadOutcome
from ....tasks.jobs.kinds.table import KINDS
from ....tasks.jobs.results import StoredResult, read_outcome
from ....tasks.jobs.spec import JobSpec
from ....tasks.jobs.wholes import first_text, joined
from ....tasks.sharing.desk import usage_root
from ....tasks.sharing.offers import offers
from ....tasks.usage.accounting import NO_ROOT
from ....transport.identity import PeerId
from ....transport.shortid import BadId, meant
from ... import defaults
from ...daemon.base import Base
from ...daemon.work.jobs import Working
from ...errors import ControlError
from .. import views
from ..messages import jobs as messages
from ..messages.encoding import extended
from ..server import Emit, Operation, operation
from .standing import places

SpecOf = Callable[[Job], JobSpec | None]
"""Returns the spec of a job, or None if it is invalid."""
_Row = tuple[UsageCount, PeerId, PeerId, str]
"""One row of usage: (counts, client, provider, root of the model)."""
FAILED = "failed"  # shown as the state of a job whose result is an error
_STATES = (*(state.value for state in KNOWN), FAILED)


class JobOperations:
    """Control socket operations that show the jobs that one node knows, and the usage that nodes
    report."""

    def __init__(
        self,
        base: Base,
        state: State,
        directory: Directory,
        working: Working,
    ) -> None:
        self._own = base.identity.peer
        self._state = state
        self._directory = directory
        self._working = working

    def table(self) -> Mapping[str, Operation]:
        return dict(
            (
                operation(messages.ListJobs, self.list),
                operation(messages.ShowJob, self.show),
                operation(messages.GetUsage, self.usage),
            )
        )

    @property
    def _desk(self) -> Desk:
        return self._working.own.desk

    async def list(self, ask: messages.ListJobs, _emit: Emit) -> messages.JobsPage:
        """List the known jobs and stored results of the swarm, or only those of this node.

        This node's own jobs come first, the newest at the top. The jobs of other nodes follow,
        ordered by state.

        Raises ControlError `bad-request` if `state` is unknown.
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
        jobs, queue = self._state.views.jobs, self._working.worker.queue
        found_places = await places(self._own, jobs, queue, self._desk.made)
        others = jobs.waiting.keys() - {self._own}
        return messages.JobsPage(
            jobs=tuple(replace(view, place=found_places.get(view.job)) for view in shown),
            more=max(0, of_state - ask.offset - len(shown)),
            totals={name: totals[name] for name in _STATES},
            own=self._own,
            at=self._working.worker.current_job,
            does_jobs=self._working.tools.rules.does_jobs,
            stores=self._state.interest(("jobs", 0)),
            share=queue.share(self._own, others),
            users=len(others),
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
        longer exists, or is a piece of another one."""
        standing = self._state.views.jobs.get(job)
        if self._desk.knows(job):
            view = self._own_view(job)
            return view.state, lambda: view
        if standing is None or standing.job is None or standing.job.of:
            return None, _no_view
        spec_of = self._desk.spec_of
        return state_of(standing)[0], partial(standing_view, standing, standing.job, spec_of)

    def _own_view(self, job: str) -> messages.JobView:
        """Describe one of this node's own jobs, with all its pieces."""
        desk, jobs = self._desk, self._state.views.jobs
        count, held = desk.progress(job), desk.results.pieces_of(job)
        if count.complete:
            return replace(result_view(joined(job, held), self._own), pieces=count.parts)
        listed = [
            standing
            for piece in desk.pieces(job)
            if piece not in desk.results
            and (standing := jobs.get(piece)) is not None
            and standing.job is not None
        ]
        if not listed:  # some pieces were lost with the feed
            return replace(result_view(joined(job, held), self._own), pieces=count.parts)
        ahead = next((each for each in listed if each.claim is not None), listed[0])
        assert ahead.job is not None
        view = standing_view(ahead, ahead.job, desk.spec_of, desk.made(job))
        begun = bool(held) or ahead.claim is not None
        state = view.state
        if count.parts > 1:
            state = JobState.CLAIMED.value if begun else JobState.OPEN.value
        return replace(
            view,
            job=job,
            state=state,
            error=view.error if count.parts == 1 else None,
            rows=count.rows,
            rows_done=count.rows_done,
            rows_failed=count.rows_failed,
            rows_checked=count.rows_checked,
            pieces=count.parts,
            replicated=self._working.own.replication.is_confirmed(job),
        )

    async def show(self, ask: messages.ShowJob, _emit: Emit) -> messages.ShownJob:
        """Return a job, its specification and the claims on it."""
        jobs = self._state.views.jobs
        job = self._find(ask.job)
        own = self._desk.knows(job)
        pieces = self._desk.pieces(job) if own else [job]
        listed = [
            standing.job
            for piece in pieces
            if (standing := jobs.get(piece)) is not None and standing.job is not None
        ]
        view = self._own_view(job) if own else self._state_and_view(job)[1]()
        claims = (claim_view(claim, each) for each in listed for claim in jobs.claims_of(each.id))
        return extended(
            messages.ShownJob,
            view,
            spec=spec_view(listed[0], self._desk.spec_of) if listed else None,
            claims=tuple(islice(claims, defaults.CLAIMS_SHOWN)),
            lack=self._lack(view),
        )

    def _lack(self, view: messages.JobView) -> messages.LackView | None:
        """Return why no other node has an unfinished job of this node, or None."""
        if view.replicated is None:
            return None
        return messages.LackView.of(self._working.own.replication.trouble([view.job]))

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
        every = (
            job
            for state in KNOWN
            for job in jobs.all_in(state)
            if (found := jobs.get(job)) is not None and found.job is not None and not found.job.of
        )
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
        kept, trust = self._state.interest(("usage", 0)), self._working.own.checks.trust
        providers = dict.fromkeys(provider for _, _, provider, _ in rows)
        checked = tuple(
            messages.CheckedView(peer, trust.credit(peer), trust.is_liar(peer))
            for peer in providers
        )
        return messages.UsagePage(tuple(shown), every - len(rows), self._own, kept, checked)

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
    named = {usage_root(name): f"{name} (no root)" for name in sorted(shared)}
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


def standing_view(
    standing: JobStanding, job: Job, spec_of: SpecOf, made: int = 0
) -> messages.JobView:
    """Describe a job from the entries in its author's feed.

    `made` is the time of submission in microseconds since 1970, or 0 if this node did not submit
    the job.
    """
    claim, (state, error) = standing.claim, state_of(standing)
    spec = spec_view(job, spec_of)
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
        rows=job.rows,
        pieces=job.parts,
        priority=job.priority,
        deadline=job.deadline or None,
    )


def spec_view(job: Job, spec_of: SpecOf) -> messages.SpecView | None:
    """Describe the request of a job. Returns None if its kind is unknown or its specification is
    invalid."""
    spec = spec_of(job) if job.kind in KINDS else None
    if spec is None:
        return None
    seal = spec.seal
    how = spec.options.sampling
    return messages.SpecView(
        root=spec.root,
        model=spec.name,
        abstract=spec.abstract,
        prompt=first_text(job, spec),
        raw=spec.options.raw,
        max_tokens=spec.options.max_tokens,
        temperature=how.temperature,
        top_k=how.top_k,
        top_p=how.top_p,
        min_p=how.min_p,
        seed=how.seed,
        stop=spec.options.stop,
        blob=None if spec.blob is None else spec.blob.root,
        sealed="" if seal is None else "all" if seal.hidden else "outputs",
    )


def claim_view(claim: Claim, job: Job) -> messages.ClaimView:
    """Describe a claim on a job."""
    return messages.ClaimView(
        claimant=claim.claimant,
        attempt=claim.attempt,
        done=claim.done,
        step=claim.step,
        refused=claim.claimant in job.refused,
        piece=job.part,
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
        rows=result.rows,
        rows_done=result.rows,
        rows_failed=result.failed_rows,
        rows_checked=result.checked_rows,
        pieces=result.parts,
        tokens=came.tokens,
        reason=came.reason,
    )


def text_of(result: StoredResult) -> str:
    """Return the text of a job whose only row is a prompt, or the output of another job: one line
    of JSON for each row."""
    text = result.outcome.text
    if result.kind != "generate" or result.rows > 1 or result.parts > 1 or not text:
        return text
    try:
        said = json.loads(text)["text"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text
    return said if isinstance(said, str) else text


def record_of(result: StoredResult, author: str) -> messages.JobRecord:
    """Describe a result that is stored on this node, with its text and its prompt (or the beginning
    of the prompt, if only that is stored)."""
    return extended(
        messages.JobRecord,
        result_view(result, author),
        prompt=result.prompt or result.abstract,
        text=text_of(result),
        node=result.claimant,
    )


def lacking_record(
    job: str, spec: messages.SpecView | None, error: str, why: str
) -> messages.LackingRecord:
    """Describe a job that has no result. `error` is the code of the reason, and `why` the reason as
    a sentence."""
    prompt = None if spec is None else spec.prompt
    return messages.LackingRecord(
        job=job, prompt=prompt, text="", node=None, error=error, message=why
    )

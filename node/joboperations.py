"""What the control socket can be asked about jobs and usage; docs/spec/control.md."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import trio

from ..state.views.jobs import KNOWN, Job, Standing, State
from ..state.views.usage import Count
from ..tasks.accounting import NO_ROOT
from ..tasks.jobs import defaults as jobs_defaults
from ..tasks.jobs.errors import BadOutcome, BadSpec
from ..tasks.jobs.outcome import read_outcome
from ..tasks.jobs.prompt import KIND, PromptSpec, read_spec
from ..tasks.jobs.results import Result
from ..transport.identity import PeerId
from ..transport.shortid import BadId, meant
from . import defaults, views
from .control import Emit, Operation
from .errors import ControlError
from .operations import NAME_LIMIT, maybe, number_of, sampling_of, text_of, texts_of

if TYPE_CHECKING:
    from .daemon import Node

_Row = tuple[Count, PeerId, PeerId, str]
"""What a client had of a provider and a model."""
FAILED = "failed"
_STATES = (*(state.value for state in KNOWN), FAILED)


class JobOperations:
    """The operations on jobs of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def table(self) -> Mapping[str, Operation]:
        return {
            "job_submit": self.submit,
            "job_list": self.list,
            "job_show": self.show,
            "job_result": self.result,
            "job_cancel": self.cancel,
            "usage": self.usage,
        }

    async def submit(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """Jobs of one model, one a prompt: all or none of them."""
        node = self._node
        if node.stopping:
            raise ControlError("stopping", "the daemon is stopping", hint="`shoal node`")
        prompts = request.get("prompts")
        if not isinstance(prompts, list) or not 0 < len(prompts) <= defaults.JOBS_AT_ONCE:
            most = defaults.JOBS_AT_ONCE
            raise ControlError("bad-request", f"`prompts` is not a list of 1 to {most} texts")
        name = text_of(request, "model", NAME_LIMIT)
        root = (await node.names.resolve(name)).root
        specs = [self._spec(request, root, name, {"prompt": prompt}) for prompt in prompts]
        jobs = await node.working.desk.submit(specs, lease=jobs_defaults.LEASE)
        return {"jobs": jobs, "model": name, "root": root}

    def _spec(
        self, request: dict[str, Any], root: str, name: str, asked: dict[str, Any]
    ) -> PromptSpec:
        tokens = {"max_tokens": jobs_defaults.PROMPT_TOKENS, **_given(request, "max_tokens")}
        return PromptSpec(
            root=root,
            prompt=text_of(asked, "prompt", defaults.CONTROL_REQUEST_LIMIT),
            name=name,
            raw=request.get("raw") is True,
            max_tokens=number_of(tokens, "max_tokens", 1, jobs_defaults.PROMPT_TOKENS),
            sampling=sampling_of(request, self._node.host),
            stop=texts_of(request, "stop"),
        )

    async def list(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """The jobs of the swarm, or this node's own, results that are kept among them."""
        state = maybe(request, "state", lambda r, k: text_of(r, k, 16))
        if state is not None and state not in _STATES:
            raise ControlError(
                "bad-request", f"jobs are in no state `{state}`", hint=", ".join(_STATES)
            )
        shown: list[dict[str, Any]] = []
        more = 0
        for number, (found, view) in enumerate(self._all(mine=request.get("mine") is True), 1):
            if state in (None, found) and len(shown) < defaults.JOBS_SHOWN:
                shown.append(view())
            else:
                more += state in (None, found)
            if number % defaults.JOBS_COUNTED == 0:
                await trio.lowlevel.checkpoint()
        return {
            "jobs": shown,
            "more": more,
            "own": self._node.identity.peer,
            "at": self._node.working.worker.at,
            "does_jobs": self._node.working.does_jobs,
            "kept": self._node.state.interest(("jobs", 0)),
        }

    def _all(self, *, mine: bool) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        """The state of each, and what makes its view. Jobs may come and go meanwhile."""
        jobs, results = self._node.state.views.jobs, self._node.working.desk.results
        own = self._node.identity.peer
        for result in sorted(results, key=lambda result: result.came, reverse=True):
            yield _result_state(result), partial(_result_view, result, own)
        every = (job for state in KNOWN for job in jobs.all_in(state))
        for standing in map(jobs.get, jobs.of(own) if mine else tuple(every)):
            if standing is not None and standing.job is not None and standing.id not in results:
                yield _state_of(standing)[0], partial(_standing_view, standing, standing.job)

    async def show(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """A job, what it asks for, and all claims on it."""
        jobs, results = self._node.state.views.jobs, self._node.working.desk.results
        job = self._find(text_of(request, "job", 64))
        standing, held = jobs.get(job), results.about(job)
        if standing is None or standing.job is None:
            assert held is not None  # `_find` found it
            return {**_result_view(held, self._node.identity.peer), "spec": None, "claims": []}
        shown = _standing_view(standing, standing.job)
        if held is not None:
            shown |= _result_view(held, standing.job.author)
        claims = [
            {
                "claimant": claim.claimant,
                "attempt": claim.attempt,
                "done": claim.done,
                "step": claim.step,
                "refused": claim.claimant in standing.job.refused,
            }
            for claim in islice(jobs.claims_of(job), defaults.CLAIMS_SHOWN)
        ]
        return {**shown, "spec": _spec_view(standing.job), "claims": claims}

    async def result(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """What came of an own job; `until_done`: when it comes."""
        desk = self._node.working.desk
        job = desk.find(text_of(request, "job", 64))
        found = await desk.result(job, wait=request.get("until_done") is True)
        return _result_view(found, self._node.identity.peer) | {"text": found.outcome.text}

    async def cancel(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """Take an own job out, and let its result go."""
        desk = self._node.working.desk
        job = desk.find(text_of(request, "job", 64))
        await desk.cancel(job)
        return {"job": job}

    def _find(self, start: str) -> str:
        """The job that the beginning of its id means, an own one first."""
        desk, jobs = self._node.working.desk, self._node.state.views.jobs
        try:
            return desk.find(start)
        except BadId as error:
            if error.code != "unknown-job":
                raise
        every = (job for state in KNOWN for job in jobs.all_in(state))
        return meant(start, every, "job", hint="`shoal job list` shows them")

    async def usage(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """What every client had of every provider, as the providers say; those with most first."""
        node = self._node
        names = views.known_models(node.directory.members())
        rows: list[_Row] = []
        every = 0
        for row in self._counts():
            every += 1
            rows.append(row)
            if len(rows) >= 2 * defaults.USAGE_SHOWN:
                rows = sorted(rows, key=_rank)[: defaults.USAGE_SHOWN]
                await trio.lowlevel.checkpoint()
        rows = sorted(rows, key=_rank)[: defaults.USAGE_SHOWN]
        shown = [
            {
                "client": None if root == NO_ROOT and client == provider else client,
                "provider": provider,
                "root": None if root == NO_ROOT else root,
                "model": names[root].name if root in names else None,
                "requests": count.requests,
                "tokens_in": count.tokens_in,
                "tokens_out": count.tokens_out,
                "busy_s": count.busy_ms / 1000,
            }
            for count, client, provider, root in rows
        ]
        return {
            "usage": shown,
            "more": every - len(rows),
            "own": node.identity.peer,
            "kept": node.state.interest(("usage", 0)),
        }

    def _counts(self) -> Iterator[_Row]:
        """All there are; they may change meanwhile."""
        usage = self._node.state.views.usage
        for client in tuple(usage.clients()):
            for (provider, root), count in tuple(usage.of(client).items()):
                yield count, client, provider, root


def _rank(row: _Row) -> tuple[int, PeerId, PeerId, str]:
    count, client, provider, root = row
    return -(count.tokens_in + count.tokens_out), client, provider, root


def _given(request: dict[str, Any], key: str) -> dict[str, Any]:
    return {} if request.get(key) is None else {key: request[key]}


def _state_of(standing: Standing) -> tuple[str, str | None]:
    """How far a job is, and the code of what failed."""
    error = None
    if standing.state is State.DONE and standing.claim is not None:
        try:
            error = read_outcome(standing.claim.result).error or None
        except BadOutcome as bad:
            error = bad.code
    return FAILED if error else standing.state.value, error


def _standing_view(standing: Standing, job: Job) -> dict[str, Any]:
    claim, (state, error) = standing.claim, _state_of(standing)
    spec = _spec_view(job)
    return {
        "job": standing.id,
        "author": job.author,
        "kind": job.kind,
        "state": state,
        "error": error,
        "message": None,
        "model": None if spec is None else spec["model"] or spec["root"],
        "abstract": "" if spec is None else spec["abstract"],
        "claimant": None if claim is None else claim.claimant,
        "attempt": standing.attempt,
        "step": 0 if claim is None else claim.step,
        "came": None,
        "read": False,
    }


def _spec_view(job: Job) -> dict[str, Any] | None:
    """What a prompt asks for; None where it is none."""
    if job.kind != KIND:
        return None
    try:
        spec = read_spec(job.spec)
    except BadSpec:
        return None
    messages = None
    if spec.messages is not None:
        messages = [{"role": said.role, "content": said.content} for said in spec.messages]
    how = spec.sampling
    return {
        "root": spec.root,
        "model": spec.name,
        "abstract": spec.abstract,
        "prompt": spec.prompt,
        "messages": messages,
        "raw": spec.raw,
        "max_tokens": spec.max_tokens,
        "temperature": how.temperature,
        "top_k": how.top_k,
        "top_p": how.top_p,
        "seed": how.seed,
        "stop": list(spec.stop),
    }


def _result_state(result: Result) -> str:
    return FAILED if result.outcome.error else State.DONE.value


def _result_view(result: Result, author: str) -> dict[str, Any]:
    came = result.outcome
    return {
        "job": result.job,
        "author": author,
        "kind": result.kind,
        "state": _result_state(result),
        "error": came.error or None,
        "message": came.message or None,
        "model": result.model,
        "abstract": result.abstract,
        "claimant": result.claimant,
        "attempt": result.attempt,
        "step": 0,
        "came": result.came,
        "read": result.read > 0,
        "tokens": came.tokens,
        "reason": came.reason,
    }

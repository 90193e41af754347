"""Control socket operations on jobs and usage. Specified in docs/spec/control.md."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import trio

from ...state.views.jobs import KNOWN
from ...state.views.usage import Count
from ...tasks.jobs import defaults as jobs_defaults
from ...tasks.jobs.prompt import PromptSpec
from ...tasks.usage.accounting import NO_ROOT
from ...transport.identity import PeerId
from ...transport.shortid import BadId, meant
from .. import defaults
from ..errors import ControlError
from . import views
from .jobviews import (
    FAILED,
    lacking_record,
    record_of,
    result_state,
    result_view,
    spec_view,
    standing_view,
    state_of,
)
from .operations import NAME_LIMIT, maybe, number_of, sampling_of, text_of, texts_of
from .server import Emit, Operation

if TYPE_CHECKING:
    from ..daemon.daemon import Node

_Row = tuple[Count, PeerId, PeerId, str]
"""One line of usage: count, client, provider and model root."""
_STATES = (*(state.value for state in KNOWN), FAILED)


class JobOperations:
    """Operations on jobs of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def table(self) -> Mapping[str, Operation]:
        return {
            "job_submit": self.submit,
            "job_list": self.list,
            "job_show": self.show,
            "job_result": self.result,
            "job_results": self.results,
            "job_cancel": self.cancel,
            "usage": self.usage,
        }

    async def submit(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """Submit jobs for one model, one for each prompt: all of them or none."""
        node = self._node
        self._refuse_when_stopping()
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
        """List the jobs of the swarm, or only this node's own, including stored results. Own jobs
        come first, the newest at the top, then other nodes' jobs by state."""
        state = maybe(request, "state", lambda r, k: text_of(r, k, 16))
        if state is not None and state not in _STATES:
            raise ControlError(
                "bad-request", f"`{state}` is not a state of jobs", hint=", ".join(_STATES)
            )
        asked = {"limit": defaults.JOBS_SHOWN, "offset": 0, **request}
        limit = number_of(asked, "limit", 1, defaults.JOBS_SHOWN)
        offset = number_of(asked, "offset", 0, 2**53)
        shown: list[dict[str, Any]] = []
        totals: Counter[str] = Counter()
        order = await self._order(mine=request.get("mine") is True)
        for number, job in enumerate(order, 1):
            found, view = self._state_and_view(job)
            if found is not None:
                totals[found] += 1
            place = totals[state] if state else totals.total()
            if found is not None and state in (None, found) and place > offset:
                shown += [view()] if len(shown) < limit else []
            if number % defaults.JOBS_COUNTED == 0:
                await trio.lowlevel.checkpoint()
        of_state = totals[state] if state else totals.total()
        return {
            "jobs": shown,
            "more": max(0, of_state - offset - len(shown)),
            "totals": {name: totals[name] for name in _STATES},
            "own": self._node.identity.peer,
            "at": self._node.working.worker.at,
            "does_jobs": self._node.working.does_jobs,
            "kept": self._node.state.interest(("jobs", 0)),
        }

    async def _order(self, *, mine: bool) -> Iterator[str]:
        """Return the ids to list. Jobs may appear and disappear during the iteration."""
        jobs = self._node.state.views.jobs
        own = [*reversed(await self._node.working.desk.own())]
        if mine:
            return iter(own)
        known = set(own)
        every = [job for state in KNOWN for job in jobs.all_in(state) if job not in known]
        return chain(own, every)

    def _state_and_view(self, job: str) -> tuple[str | None, Callable[[], dict[str, Any]]]:
        """Return the state of a job and a function that makes its view; None: the job has gone."""
        desk = self._node.working.desk
        held, standing = desk.results.about(job), self._node.state.views.jobs.get(job)
        if held is not None:
            return result_state(held), partial(result_view, held, self._node.identity.peer)
        if standing is None or standing.job is None:
            return None, dict
        own = standing.job.author == self._node.identity.peer
        made = desk.made(job) if own else 0
        return state_of(standing)[0], partial(standing_view, standing, standing.job, made)

    async def show(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """Return a job, its specification and all claims on it."""
        jobs, results = self._node.state.views.jobs, self._node.working.desk.results
        job = self._find(text_of(request, "job", 64))
        standing, held = jobs.get(job), results.about(job)
        if standing is None or standing.job is None:
            assert held is not None  # `_find` found it
            return {**result_view(held, self._node.identity.peer), "spec": None, "claims": []}
        own = standing.job.author == self._node.identity.peer
        made = self._node.working.desk.made(job) if own else 0
        shown = standing_view(standing, standing.job, made)
        if held is not None:
            shown |= result_view(held, standing.job.author)
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
        return {**shown, "spec": spec_view(standing.job), "claims": claims}

    async def result(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """Return the result of an own job; with `until_done`, wait for it."""
        desk = self._node.working.desk
        job = desk.find(text_of(request, "job", 64))
        found = await desk.result(job, wait=request.get("until_done") is True)
        return result_view(found, self._node.identity.peer) | {"text": found.outcome.text}

    async def results(self, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Emit the results of several own jobs as they arrive, or of all own jobs if the request
        names none. `until_done`: wait for jobs without a result."""
        desk = self._node.working.desk
        await self._node.state.shown.wait()  # until then, own jobs of earlier runs are unknown
        asked = maybe(request, "jobs", _ids)
        jobs = await desk.own() if asked is None else asked
        self._refuse_when_stopping()
        await emit({"event": "jobs", "jobs": jobs})
        waiting, total, failed = dict.fromkeys(jobs), len(dict.fromkeys(jobs)), 0
        while waiting:
            changed, before = desk.changed, len(waiting)
            for job in list(waiting):
                record = await self._record(job, wait=request.get("until_done") is True)
                if record is not None:
                    del waiting[job]
                    failed += record["error"] is not None
                    await emit({"event": "result", "result": record})
            if len(waiting) < before:
                done = total - len(waiting)
                await emit({"event": "progress", "done": done, "failed": failed})
            if waiting:
                with trio.move_on_after(defaults.JOBS_LOOK):
                    await changed.wait()
                self._refuse_when_stopping()
        return {"jobs": total, "failed": failed}

    def _refuse_when_stopping(self) -> None:
        """Raise ControlError if the node is stopping: a waiting client must not delay the end."""
        if self._node.stopping:
            raise ControlError("stopping", "the daemon is stopping", hint="`shoal node`")

    async def _record(self, job: str, *, wait: bool) -> dict[str, Any] | None:
        """Return the result of a job and mark it as read; None: the client waits for it."""
        desk = self._node.working.desk
        if (found := await desk.results.take(job)) is not None:
            return record_of(found, self._node.identity.peer)
        if not desk.knows(job):
            return lacking_record(job, None, "unknown-job", "this node has no such job")
        if wait:
            return None
        standing = self._node.state.views.jobs.get(job)
        return lacking_record(job, standing, "not-done", "there is no result yet")

    async def cancel(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """Cancel an own job and delete its result, or cancel `all` that have no result yet."""
        desk = self._node.working.desk
        if request.get("all") is not True:
            job = desk.find(text_of(request, "job", 64))
            await desk.cancel(job)
            return {"job": job}
        return {"jobs": await desk.cancel_unfinished(), "results": len(desk.results)}

    def _find(self, start: str) -> str:
        """Return the job whose id begins with the given text, an own job first."""
        desk, jobs = self._node.working.desk, self._node.state.views.jobs
        try:
            return desk.find(start)
        except BadId as error:
            if error.code != "unknown-job":
                raise
        every = (job for state in KNOWN for job in jobs.all_in(state))
        return meant(start, every, "job", hint="`shoal job list` shows them")

    async def usage(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """Return what each client used of each provider, as the providers say, most first."""
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
        """Yield all lines of usage; they may change during the iteration."""
        usage = self._node.state.views.usage
        for client in tuple(usage.clients()):
            for (provider, root), count in tuple(usage.of(client).items()):
                yield count, client, provider, root


def _rank(row: _Row) -> tuple[int, PeerId, PeerId, str]:
    count, client, provider, root = row
    return -(count.tokens_in + count.tokens_out), client, provider, root


def _ids(request: dict[str, Any], key: str) -> list[str]:
    """Return a list of full job ids. Raises ControlError."""
    jobs = request[key]
    if not isinstance(jobs, list) or not all(
        isinstance(job, str) and len(job) == 64 for job in jobs
    ):
        raise ControlError("bad-request", f"`{key}` is not a list of job ids")
    return jobs


def _given(request: dict[str, Any], key: str) -> dict[str, Any]:
    return {} if request.get(key) is None else {key: request[key]}

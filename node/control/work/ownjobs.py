"""Control socket operations on own jobs: submits them from prompts or from a file of rows, waits
for their results, and cancels them.

Specified in docs/spec/control.md.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from ....dht.content.blobs import write_pieces
from ....dht.names import NameMeaning
from ....state.service import State
from ....tasks.engine.interface import Sampling
from ....tasks.jobs import defaults as jobs_defaults
from ....tasks.jobs.errors import JobError
from ....tasks.jobs.kinds.kind import Kind
from ....tasks.jobs.kinds.table import KINDS
from ....tasks.jobs.sealing.drafts import UNKNOWN_ROOT, sealed_draft
from ....tasks.jobs.spec import JobSpec, RowOptions
from ....tasks.jobs.speed import chain_costs
from ....tasks.jobs.submitting import Prepared, check_deadline, prepare, row_of, too_large
from ....tasks.jobs.wholes import NewJob, figures_of
from ....tasks.tuning.moving.defaults import KIND as TUNING
from ....transport.host.seam import Files, Host
from ... import defaults
from ...daemon.base import Base
from ...daemon.content import ContentParts
from ...daemon.work.jobs import Working
from ...errors import ControlError
from ..messages import jobs as messages
from ..messages.encoding import extended
from ..messages.generation import AskForText
from ..server import Emit, Operation, operation
from .jobs import lacking_record, record_of, result_view, spec_view, text_of

FindModel = Callable[[str], Awaitable[NameMeaning]]
"""Returns the model with a name or root. Raises ModelError if there is none, or several."""
FindAdapter = Callable[[str, str], Awaitable[str]]
"""Returns the root of the adapter with a name or root, of the model with a root.

Raises SessionError `no-adapter` or `bad-adapter`.
"""
_FILE = "name a file with one JSON object on each line, which the daemon's user may read"


class OwnJobOperations:
    """Control socket operations on the jobs that the user of one node submits."""

    def __init__(self, base: Base, state: State, content: ContentParts, working: Working) -> None:
        self._base = base
        self._own = base.identity.peer
        self._state = state
        self._desk = working.own.desk
        self._submission = Submission(
            base, content.names.resolve, working, content.adapter_files.of_model
        )

    def table(self) -> Mapping[str, Operation]:
        return dict(
            (
                operation(messages.SubmitJobs, self.submit),
                operation(messages.GetJobResult, self.result),
                operation(messages.GetJobResults, self.results),
                operation(messages.WriteJobOutput, self.output),
                operation(messages.CancelJobs, self.cancel),
            )
        )

    async def submit(self, ask: messages.SubmitJobs, _emit: Emit) -> messages.SubmittedJobs:
        """Submit one job for each prompt, or one job with the rows of a file. Either all jobs are
        submitted or none."""
        self._base.refuse_when_stopping()
        return await self._submission.submit(ask)

    async def output(self, ask: messages.WriteJobOutput, emit: Emit) -> messages.WrittenJob:
        """Write the output of one of this node's own jobs to a file, or wait until it is done.

        Raises JobError if the job is unknown or was cancelled, and ControlError if the daemon stops
        or the file cannot be written.
        """
        desk, job = self._desk, self._desk.find(ask.job)
        while ask.until_done:
            changed, count = desk.changed, desk.progress(job)
            await emit(messages.RowsDone(count.rows_done, count.rows, count.rows_failed))
            if count.complete:
                break
            with trio.move_on_after(defaults.JOBS_LOOK):
                await changed.wait()
            self._base.refuse_when_stopping()
            if not desk.knows(job):
                raise JobError(
                    "unknown-job",
                    f"job `{job[:16]}` was cancelled",
                    hint="`shoal job list --mine` shows this node's",
                )
        count = desk.progress(job)
        size, figures = 0, dict[str, Any]()
        if ask.path is not None:
            size, figures = await self._write(job, Path(ask.path))
        return messages.WrittenJob(ask.path or "", size, count.rows, count.rows_failed, figures)

    async def _write(self, job: str, path: Path) -> tuple[int, dict[str, Any]]:
        """Write the output of a job to a file, piece after piece. Return its size in bytes, and its
        figures.

        Raises ModelError `unwritable` if the file cannot be written.
        """
        kind = self._desk.kind(job)
        pieces = [piece async for piece in self._desk.output(job, wait=False)]
        host = self._base.host
        await host.offload(write_pieces, host, path, iter(pieces))
        return sum(map(len, pieces)), await host.offload(figures_of, kind, pieces)

    async def result(self, ask: messages.GetJobResult, _emit: Emit) -> messages.JobResult:
        """Return the result of one of this node's own jobs. With `until_done`, wait until there is
        one."""
        job = self._desk.find(ask.job)
        found = await self._desk.result(job, wait=ask.until_done)
        view = result_view(found, self._own)
        return extended(messages.JobResult, view, text=text_of(found))

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
        if not self._desk.knows(job):
            return lacking_record(job, None, "unknown-job", "this node has no such job")
        if self._desk.progress(job).complete:
            try:
                return record_of(await self._desk.result(job, wait=False), self._own)
            except JobError as error:
                return lacking_record(job, None, error.code, error.message)
        if wait:
            return None
        standing = self._state.views.jobs.get(job)
        own = None if standing is None else standing.job
        spec = None if own is None else spec_view(own, self._desk.spec_of)
        return lacking_record(job, spec, "not-done", "there is no result yet")

    async def cancel(
        self, ask: messages.CancelJobs, _emit: Emit
    ) -> messages.CancelledJob | messages.CancelledJobs:
        """Cancel one of this node's own jobs and delete its result. With `all`, cancel every own
        job that has no result yet.

        Raises ControlError `bad-request` if neither is given, and JobError if the job is unknown.
        """
        desk = self._desk
        if ask.all:
            return messages.CancelledJobs(tuple(await desk.cancel_unfinished()), len(desk.results))
        if ask.job is None:
            raise ControlError("bad-request", "expected `job`, or `all`")
        job = desk.find(ask.job)
        await desk.cancel(job)
        return messages.CancelledJob(job)


class Submission:
    """Turns requests to submit jobs into jobs of this node."""

    def __init__(
        self, base: Base, find_model: FindModel, working: Working, find_adapter: FindAdapter
    ) -> None:
        self._base = base
        self._find_adapter = find_adapter
        self._find_model = find_model
        self._working = working

    async def submit(self, ask: messages.SubmitJobs) -> messages.SubmittedJobs:
        """Submit the jobs of a request, and wait for a short time until another node has them.

        Raises ControlError `bad-request` if the request contradicts itself, and JobError: the codes
        of `prepare`, `deadline-past`, `no-file`, and those of `Submitter.submit`. Raises
        SessionError `no-adapter` or `bad-adapter` for the adapter behind a `+` in the model's name.
        """
        kind = self._checked(ask)
        name, _, adapter = ask.model.partition("+")
        root = (await self._find_model(name)).root
        adapter = await self._find_adapter(adapter, root) if adapter else ""
        secret = self._working.tools.seals.newest() if ask.seal == "all" else None
        sources = [await self._rows(ask.file)] if ask.file is not None else []
        sources += [row_of(ask.kind, prompt) for prompt in ask.prompts or ()]
        jobs, prepared = list[NewJob](), list[Prepared]()
        for data in sources:
            spec = JobSpec(root, name=ask.model, options=self._options(ask), adapter=adapter)
            found = await self._prepared(data, kind, spec)
            jobs.append(await self._job(ask, spec, found, secret))
            prepared.append(found)
        lease = jobs_defaults.LEASE if ask.seal is None else jobs_defaults.SEALED_LEASE
        made = await self._working.own.submitter.submit(jobs, lease=lease)
        replicated = await self._working.own.replication.confirm(made)
        broken = [line for each in prepared for line in each.broken]
        return messages.SubmittedJobs(
            tuple(made),
            ask.model,
            root,
            rows=sum(each.rows for each in prepared),
            pieces=sum(len(each.pieces) for each in prepared),
            broken=tuple(
                messages.BrokenLineView(line.number, line.message)
                for line in broken[: jobs_defaults.BROKEN_SHOWN]
            ),
            broken_rows=len(broken),
            replicated=replicated,
            lack=messages.LackView.of(self._working.own.replication.trouble(made)),
        )

    async def _job(
        self,
        ask: messages.SubmitJobs,
        spec: JobSpec,
        found: Prepared,
        secret: tuple[bytes, bytes] | None,
    ) -> NewJob:
        """Return a job, sealed if the request says so. If its rows are not in the specs, they are
        stored here as a blob."""
        own, working, host = self._base.identity.peer, self._working, self._base.host
        is_inline = found.is_inline if secret is None else found.is_inline_sealed
        data = b"" if is_inline else found.data
        job = NewJob(ask.kind, found.specs(spec, "" if is_inline else UNKNOWN_ROOT),
                     ask.priority, ask.deadline, working.own.submitter.nonce())  # fmt: skip
        if ask.seal is None:
            root = await working.tools.shelf.put(data, own) if data else ""
            return replace(job, pieces=found.specs(spec, root))
        draft = await host.offload(sealed_draft, working.tools.seals, own, job, data, secret)
        root = await working.tools.shelf.put(draft.data, own) if draft.data else ""
        return await host.offload(draft.sealed, root)

    def _checked(self, ask: messages.SubmitJobs) -> Kind[Any]:
        """Return the kind of a request, after checking the parts of the request that need no
        file."""
        if (ask.prompts is None) == (ask.file is None):
            raise ControlError("bad-request", "expected either `prompts` or `file`")
        if ask.kind == TUNING:
            raise ControlError(
                "bad-request",
                "a fine-tuning is requested with `tuning_begin`",
                hint="`shoal job submit --kind finetune` does so",
            )
        if ask.kind not in KINDS:
            raise ControlError(
                "bad-request",
                f"{ask.kind[:64]!a} is not a kind of jobs",
                hint=f"use one of: {', '.join(KINDS)}",
            )
        check_deadline(ask.deadline, self._base.host.wall())
        return KINDS[ask.kind]

    async def _prepared(self, data: bytes, kind: Kind[Any], spec: JobSpec) -> Prepared:
        shop = self._working.tools.shop
        costs = chain_costs(shop.members(), spec.root)
        return await self._base.host.offload(prepare, data, kind, spec, shop.speed, costs)

    async def _rows(self, file: str) -> bytes:
        """Return the rows in a file. Raises JobError `no-file`, `unreadable` or
        `input-too-large`."""
        path, files = Path(file), self._base.host.files
        try:
            size = await self._base.host.offload(files.size, path)
            if size is None:
                raise JobError("no-file", f"there is no file `{path}`", hint=_FILE)
            if size > jobs_defaults.INPUT_BYTES:
                raise too_large(size)
            return await self._base.host.offload(_read, files, path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise JobError("unreadable", f"cannot read `{path}`: {reason}", hint=_FILE) from None

    def _options(self, ask: messages.SubmitJobs) -> RowOptions:
        return RowOptions(
            raw=ask.raw,
            max_tokens=ask.max_tokens or jobs_defaults.ROW_TOKENS,
            sampling=sampling_of(ask, self._base.host),
            stop=ask.stop,
        )


def _read(files: Files, path: Path) -> bytes:
    return files.read(path, limit=jobs_defaults.INPUT_BYTES)


def sampling_of(ask: AskForText[object, object], host: Host) -> Sampling:
    """Return the sampling options of a request. If it has no seed, a random one is chosen."""
    seed = int.from_bytes(host.entropy(8), "big") if ask.seed is None else ask.seed
    return Sampling(
        temperature=float(ask.temperature),
        top_k=ask.top_k,
        top_p=float(ask.top_p),
        seed=seed,
        min_p=float(ask.min_p),
    )

"""Submission of jobs over the control socket: from prompts, or from a file of rows."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....dht.names import NameResolver
from ....tasks.engine.interface import Rules, Sampling
from ....tasks.jobs import defaults as jobs_defaults
from ....tasks.jobs.errors import JobError
from ....tasks.jobs.kinds.kind import Kind
from ....tasks.jobs.kinds.table import KINDS
from ....tasks.jobs.sealing.drafts import UNKNOWN_ROOT, sealed_draft
from ....tasks.jobs.spec import JobSpec, RowOptions
from ....tasks.jobs.speed import chain_costs
from ....tasks.jobs.submitting import Prepared, prepare, row_of, too_large
from ....tasks.jobs.wholes import NewJob
from ....transport.host.seam import Files, Host
from ...daemon.base import Base
from ...daemon.jobs import Working
from ...errors import ControlError
from ..messages import jobs as messages
from ..messages.generation import AskForText, Run

FindAdapter = Callable[[str, str], Awaitable[str]]
"""Returns the root of the adapter with a name or root, of the model with a root.

Raises SessionError `no-adapter` or `bad-adapter`.
"""
_FILE = "name a file with one JSON object on each line, which the daemon's user may read"


class Submission:
    """Turns requests to submit jobs into jobs of this node."""

    def __init__(
        self, base: Base, names: NameResolver, working: Working, find_adapter: FindAdapter
    ) -> None:
        self._base = base
        self._find_adapter = find_adapter
        self._names = names
        self._working = working

    async def submit(self, ask: messages.SubmitJobs) -> messages.SubmittedJobs:
        """Submit the jobs of a request, and wait for a short time until another node has them.

        Raises ControlError `bad-request` if the request contradicts itself, and JobError: the codes
        of `prepare`, `deadline-past`, `no-file`, and those of `Desk.submit`. Raises SessionError
        `no-adapter` or `bad-adapter` for the adapter behind a `+` in the model's name.
        """
        kind = self._checked(ask)
        name, _, adapter = ask.model.partition("+")
        root = (await self._names.resolve(name)).root
        adapter = await self._find_adapter(adapter, root) if adapter else ""
        secret = self._working.seals.newest() if ask.seal == "all" else None
        sources = [await self._rows(ask.file)] if ask.file is not None else []
        sources += [row_of(ask.kind, prompt) for prompt in ask.prompts or ()]
        jobs, prepared, blobs = list[NewJob](), list[Prepared](), list[tuple[str, int]]()
        for data in sources:
            spec = JobSpec(root, name=ask.model, options=self._options(ask), adapter=adapter)
            found = await self._prepared(data, kind, spec)
            job, rows = await self._job(ask, spec, found, secret)
            jobs.append(job)
            prepared.append(found)
            blobs.append(rows)
        lease = jobs_defaults.LEASE if ask.seal is None else jobs_defaults.SEALED_LEASE
        made = await self._working.desk.submit(jobs, lease=lease)
        replicate = self._working.keepers.replicate
        replicated = await replicate(made[-1], *blobs[-1], jobs_defaults.KEEP_COPIES)
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
        )

    async def _job(
        self,
        ask: messages.SubmitJobs,
        spec: JobSpec,
        found: Prepared,
        secret: tuple[bytes, bytes] | None,
    ) -> tuple[NewJob, tuple[str, int]]:
        """Return a job, sealed if the request says so, and the root and bytes of the blob with its
        rows, which is stored here. The root is "" if they are in the specs."""
        own, working, host = self._base.identity.peer, self._working, self._base.host
        is_inline = found.is_inline if secret is None else found.is_inline_sealed
        data = b"" if is_inline else found.data
        job = NewJob(ask.kind, found.specs(spec, "" if is_inline else UNKNOWN_ROOT),
                     ask.priority, ask.deadline, working.desk.nonce())  # fmt: skip
        if ask.seal is None:
            root = await working.shelf.put(data, own) if data else ""
            return replace(job, pieces=found.specs(spec, root)), (root, len(data))
        draft = await host.offload(sealed_draft, working.seals, own, job, data, secret)
        root = await working.shelf.put(draft.data, own) if draft.data else ""
        return await host.offload(draft.sealed, root), (root, len(draft.data))

    def _checked(self, ask: messages.SubmitJobs) -> Kind[Any]:
        """Return the kind of a request, after checking the parts of the request that need no
        file."""
        if (ask.prompts is None) == (ask.file is None):
            raise ControlError("bad-request", "expected either `prompts` or `file`")
        if ask.kind not in KINDS:
            raise ControlError(
                "bad-request",
                f"{ask.kind[:64]!a} is not a kind of jobs",
                hint=f"use one of: {', '.join(KINDS)}",
            )
        if ask.deadline and ask.deadline <= self._base.host.wall():
            raise JobError(
                "deadline-past",
                "the deadline has passed",
                hint="give a later one, such as `--deadline 2h`, or none",
            )
        return KINDS[ask.kind]

    async def _prepared(self, data: bytes, kind: Kind[Any], spec: JobSpec) -> Prepared:
        shop = self._working.shop
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


def rules_of(ask: Run) -> Rules:
    """Return the rules of a request that change logits. Of several biases of a token, the last one
    counts."""
    return Rules(
        tuple(sorted({each.token: float(each.bias) for each in ask.logit_bias}.items())),
        float(ask.repetition_penalty),
        float(ask.frequency_penalty),
        float(ask.presence_penalty),
    )

"""Fine-tunings of this node's user that any node may train: as jobs, whose progress and result come
back here. Spec: docs/spec/moving.md."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import trio
from msgspec import Meta

from ....state.defaults import CLAIM_SAVED_BYTES
from ....state.views.jobs import Claim, Job
from ....transport.decoding import read_json
from ....transport.errors import ShoalError, Undecodable
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ....transport.message import Message
from ...jobs import defaults as job_defaults
from ...jobs.desk import Desk, JobNode
from ...jobs.replication.confirming import OwnReplication
from ...jobs.results import JobOutcome, SavedWork
from ...jobs.sealing.seals import JobSeals
from ...jobs.shelf import Shelves
from ...jobs.submitting import Submitter
from ..trainer.curve import Point
from ..trainer.defaults import RETRY
from ..trainer.errors import TuningError
from ..trainer.optimiser import Learned
from ..trainer.plan import Errand
from ..trainer.training import Progress
from . import defaults
from .checking import FALSE, HeldOutCheck
from .runner import FinetuneRunner
from .spec import SizedBlob, TuningSpec, pack_tuning, read_tuning, sealed_tuning
from .standby import MoveRequests
from .state import CheckpointTerms, Vault

_ONLY_HERE: Final = "only this node has the rows: keep it running until another one has them, too"


class _Line(Message, frozen=True):
    """The output of a fine-tuning."""

    saved: Annotated[str, Meta(min_length=2 * CLAIM_SAVED_BYTES, max_length=2 * CLAIM_SAVED_BYTES)]


@dataclass(frozen=True, slots=True)
class RemoteParts:
    """The parts of a node that its fine-tunings elsewhere use."""

    desk: Desk
    submitter: Submitter
    shelf: Shelves
    replication: OwnReplication
    moves: MoveRequests
    runner: FinetuneRunner
    seals: JobSeals
    check: HeldOutCheck


class RemoteTunings:
    """The fine-tunings of this node's user that other nodes train."""

    def __init__(self, node: JobNode, parts: RemoteParts, vault: Vault) -> None:
        self._host: Host = node.host
        self._state = node.state
        self._own = node.peer
        self._jobs = node.state.views.jobs
        self._desk = parts.desk
        self._submitter = parts.submitter
        self._shelf = parts.shelf
        self._replication = parts.replication
        self._moves = parts.moves
        self._runner = parts.runner
        self._seals = parts.seals
        self._check = parts.check
        self._false = set[str]()  # jobs with a false result, whose states are not used either
        self._vault = vault

    async def submit(self, errand: Errand, start: tuple[Learned, Sequence[Point]] | None) -> str:
        """Submit a fine-tuning as a job, and return the job's id. Only this node has the job then.
        `start` is the state and the curve from which it begins, or None.

        Raises TuningError `data-too-large`, JobError if the job cannot be stored, ModelError if the
        disk refuses the rows, and for a sealed one the errors of `JobSeals.newest`.
        """
        draft = self._submitter.drafted(defaults.KIND, errand.priority, errand.deadline)
        secret = self._seals.newest() if errand.sealed else None
        data = await self._host.offload(self._read, errand.rows)
        if secret is not None:
            seal = partial(self._seals.seal_rows, most=job_defaults.INPUT_BYTES)
            data = await self._host.offload(seal, draft[0], data, secret)
        root = await self._shelf.put(data, self._own)
        begun = None
        if start is not None:
            key = f"start {errand.data}"
            mark = b"" if secret is None else secret[0]
            terms = self.terms(errand, draft[0].id, mark)
            begun = await self._vault.save(key, terms, *start)
        spec = TuningSpec(
            root=errand.settings.root,
            settings=errand.settings,
            rows=SizedBlob(root, len(data)),
            data=errand.data,
            name=errand.model[: job_defaults.ABSTRACT // 2],
            start=None if begun is None else SizedBlob(*begun.work),
        )
        if secret is not None:
            spec = sealed_tuning(spec, draft[0], self._seals, secret)
        packed = pack_tuning(spec)
        read_tuning(packed)
        if begun is not None:
            await self._vault.hold(draft[0].id, begun, self._own)
            await self._vault.forget(f"start {errand.data}")
        # Nothing may fail or be cancelled behind this: the job would have no fine-tuning.
        return await self._submitter.submit_packed(draft, packed, lease=job_defaults.LEASE)

    async def replicate(self, job: str, progress: Progress) -> None:
        """Have other nodes store a job with its rows, for some seconds, and tell whether one
        does."""
        confirmed = await self._replication.confirm([job])
        progress.trouble = "" if confirmed else _ONLY_HERE
        progress.tell()

    def terms(self, errand: Errand, job: str, mark: bytes = b"") -> CheckpointTerms:
        """Return the terms of the checkpoints of a job, which are opened with any key of the group
        unless `mark` names one."""
        seal = None
        if errand.sealed:
            seal = self._seals.state_seal(Job(job, self._own, defaults.KIND), mark)
        return CheckpointTerms(errand.settings, errand.shapes, errand.run, self._own, seal)

    def _read(self, path: Path) -> bytes:
        size = self._host.files.size(path) or 0
        if size > job_defaults.INPUT_BYTES:
            raise TuningError(
                "data-too-large",
                f"the encoded data has {size >> 20} MiB, and at most "
                f"{job_defaults.INPUT_BYTES >> 20} MiB can move between nodes",
                hint="use a part of the data, or `--stay`",
            )
        return self._host.files.read(path, limit=job_defaults.INPUT_BYTES)

    def trainer(self, job: str) -> PeerId | None:
        """Return the peer that trains a fine-tuning now, or None."""
        standing = self._jobs.get(job)
        claim = None if standing is None else standing.claim
        return None if claim is None or claim.done else claim.claimant

    async def move(self, job: str) -> None:
        """Have the trainer stop, so that another node continues.

        Raises TuningError `not-moved` if no node trains it, or the trainer does not answer.
        """
        peer = self.trainer(job)
        if peer is None:
            raise TuningError(
                "not-moved", "no node trains it now", hint="the next willing node continues it"
            )
        if peer != self._own:
            await self._moves.ask_to_move(job, peer)
        elif not self._runner.stop(job):
            raise TuningError(
                "not-moved", "this node has just taken it", hint="try again in some seconds"
            )

    async def follow(
        self, job: str, errand: Errand, progress: Progress, show: Callable[[list[Point]], None]
    ) -> tuple[Learned, list[Point]]:
        """Show the progress of a fine-tuning until it is done, and return its last state.

        Raises TuningError with the code of the trainer if it has failed, `cancelled` if the job was
        removed, and `false-result` if another node has trained it and its held-out loss is not what
        that node has said.
        """
        await self._state.shown.wait()
        looked = b""
        while self._desk.results.about(job) is None:
            changed = self._desk.changed
            standing = self._jobs.get(job)
            if standing is None or standing.job is None:
                raise TuningError(
                    "cancelled",
                    f"the job {job[:16]} of the fine-tuning was cancelled",
                    hint="`shoal finetune resume ID` goes on from the last state that is here",
                )
            here = self._runner.progress_of(job)
            named = next(iter(self._jobs.saved_of(job)), None)
            if here is not None:
                _copy(here, progress)
            elif named is not None and named.saved != looked:
                looked = named.saved
                await self._look(standing.job, named, self.terms(errand, job), progress, show)
            if here is None:
                progress.trouble = self._waits_for(job, standing.claim)
            progress.tell()
            with trio.move_on_after(1.0 if here is not None else defaults.LOOK):
                await changed.wait()
        found = await self._desk.result(job, wait=False)
        if found.outcome.error:
            raise TuningError(found.outcome.error, found.outcome.message or "it failed",
                              hint="`shoal finetune resume ID` tries again from the last state "
                              "that is here")  # fmt: skip
        learned, points = await self._last(found.outcome, self.terms(errand, job), progress)
        if found.claimant != self._own:
            try:
                await self._check.check(errand, learned, progress)
            except TuningError as error:
                if error.code == FALSE:
                    self._false.add(job)
                raise
        return learned, points

    def _waits_for(self, job: str, claim: Claim | None) -> str:
        """Return what a fine-tuning waits for, or "" if a node trains it."""
        if claim is not None:
            return ""
        if not self._replication.is_confirmed(job):
            return _ONLY_HERE
        return "no node trains it yet; one will continue it"

    async def _look(
        self,
        job: Job,
        claim: Claim,
        terms: CheckpointTerms,
        progress: Progress,
        show: Callable[[list[Point]], None],
    ) -> None:
        """Fetch the loss curve of the newest checkpoint, without its tensors."""
        with suppress(ShoalError):  # the next checkpoint can be read again
            work = SavedWork.read(claim.saved, defaults.MANIFEST_BYTES)
            seen = await self._vault.look(job.id, work, terms)
            progress.step = progress.saved = seen.step
            progress.best, progress.best_step = seen.best, seen.best_step
            for point in seen.points:
                progress.loss = point.loss
                progress.held_out = progress.held_out if point.held_out is None else point.held_out
            show(seen.points)

    async def _last(
        self, outcome: JobOutcome, terms: CheckpointTerms, progress: Progress
    ) -> tuple[Learned, list[Point]]:
        """Fetch the last state of a fine-tuning. Waits until a node that has it is there.

        Raises BadState if it does not fit.
        """
        try:
            data = outcome.text.encode()
            line = read_json(_Line, data, limit=job_defaults.RESULT_BYTES)
            work = SavedWork.read(bytes.fromhex(line.saved), defaults.MANIFEST_BYTES)
        except (Undecodable, ValueError):
            raise TuningError("bad-checkpoint", "the trainer named no state") from None
        pause, longest = RETRY
        while True:
            try:
                loaded = await self._vault.load(work, terms)
            except TuningError:
                raise
            except ShoalError as error:
                progress.trouble = error.message
                progress.tell()
            else:
                if loaded.learned.step != terms.settings.steps:
                    raise TuningError("bad-checkpoint", "the trainer ended before the last step")
                return loaded.learned, loaded.points
            await trio.sleep(pause)
            pause = min(2 * pause, longest)

    async def take_back(self, job: str, errand: Errand) -> tuple[Learned, list[Point]] | None:
        """Remove a job, and return the newest available state, or None if there is none or the
        result was false."""
        found = None
        for claim in () if job in self._false else self._jobs.saved_of(job):
            with suppress(ShoalError):
                work = SavedWork.read(claim.saved, defaults.MANIFEST_BYTES)
                loaded = await self._vault.load(work, self.terms(errand, job))
                found = loaded.learned, loaded.points
                break
        await self.withdraw(job)
        return found

    async def withdraw(self, job: str) -> None:
        """Remove a job with its result. Its stored parts are no longer needed here."""
        await self._desk.cancel(job)
        self._false.discard(job)
        await self._vault.forget(job)
        await self._vault.forget(f"look {job}")


def _copy(here: Progress, there: Progress) -> None:
    """Copy the progress of this node's own training."""
    for name in ("step", "loss", "held_out", "best", "best_step", "speed", "left_s", "trouble",
                 "saved"):  # fmt: skip
        setattr(there, name, getattr(here, name))

"""Runs fine-tunings as jobs: this node is the trainer until they are done or move on.

Each checkpoint is stored in parts, given to another node, and then named in this node's claim.
The next node begins there, so the result is the same, bit for bit.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import trio

from ....state.views.jobs import Claim, Job
from ....transport.errors import ShoalError
from ....transport.host.seam import Host
from ...engine.families import Architecture
from ...errors import SessionError
from ...jobs.errors import BadSpec, Unsealable
from ...jobs.kinds.kind import ON_MODEL, Declared, JobStage, Merging, Resource, is_able
from ...jobs.models import JobModels
from ...jobs.results import JobOutcome, SavedWork, failed
from ...jobs.runner import MOVED, NOT_NOW, ReportProgress
from ...jobs.spec import root_of
from ..interface import TuningChain
from ..trainer.curve import Curve, write_points
from ..trainer.defaults import CHECKPOINT_PAUSE
from ..trainer.errors import Damaged, Diverged, Refused, TuningError
from ..trainer.optimiser import Learned
from ..trainer.rows import RowFile
from ..trainer.subject import AdapterSubject
from ..trainer.training import Progress, Task, TuningRun
from . import defaults
from .checkpoints import CheckedTuning, Checkpoints
from .places import TrainerPlaces
from .standby import TrainerStandby
from .state import BadState, Saved


class MovedChainSource(Protocol):
    """Source of chains that compute the layers of a model."""

    def chain(self, root: str, arch: Architecture, *, job: str) -> TuningChain: ...


_FORMS: Final = {
    "text": "a text; or",
    "prompt": "a text, with",
    "completion": "a text to learn; or",
    "messages": "a list of messages, each with `role` and `content`",
}


@dataclass(frozen=True, slots=True)
class _Finetune:
    """What fine-tunings declare as a kind of jobs."""

    name: str = defaults.KIND
    stages: Sequence[JobStage] = (  # the author's node encodes, the trainer steps, others compute
        JobStage("encode"),
        JobStage("passes", ON_MODEL),
        JobStage("step", frozenset[Resource]({"place"})),
    )
    merges: Merging = "whole"

    @property
    def inputs(self) -> Mapping[str, str]:
        return _FORMS


FINETUNE: Final = _Finetune()


@dataclass(slots=True)
class _Running:
    """A fine-tuning that this node trains now."""

    scope: trio.CancelScope
    progress: Progress
    moved: bool = False


class FinetuneRunner:
    """`Runner` of fine-tunings. `folder` has the files of those that it trains."""

    pause = CHECKPOINT_PAUSE
    """Seconds between two checkpoints."""
    kind = defaults.KIND
    declares: Declared = FINETUNE
    moves = True
    run_time = math.inf

    def __init__(
        self,
        host: Host,
        folder: Path,
        chains: MovedChainSource,
        checkpoints: Checkpoints,
        standby: TrainerStandby,
        places: TrainerPlaces,
    ) -> None:
        self._host = host
        self._folder = folder
        self._chains = chains
        self._checkpoints = checkpoints
        self._standby = standby
        self._running: dict[str, _Running] = {}
        self.places = places

    @property
    def _models(self) -> JobModels:
        return self._checkpoints.models

    def able(self, job: Job) -> bool:
        """Return whether this node can be the trainer now."""
        try:
            root = root_of(job.spec)
        except BadSpec:
            return True  # it ends at once
        has_model, has_place = (
            partial(self._models.can_use, root),
            partial(self.places.has_one, job),
        )
        offers: dict[Resource, Callable[[], bool]] = {"model": has_model, "place": has_place}
        return self._checkpoints.has_key(job) and is_able(self.declares, offers)

    def seconds(self, job: Job) -> float:
        """Return 0 seconds: stages compute the steps, so a trainer has time for other jobs."""
        return 0.0

    def longest(self, job: Job) -> float:
        """Return 0 seconds, because the time is unknown. No other node then trains it as well."""
        return 0.0

    def measured(self, job: Job, predicted: float, took: float) -> None:
        """Do nothing: no time was predicted."""

    async def proven(self, job: Job, claim: Claim) -> int:
        """Fetch and keep the checkpoint that a claim names, and return its step."""
        work = SavedWork.read(claim.saved, defaults.MANIFEST_BYTES)
        return (await self._checkpoints.take(job, work)).step

    def progress_of(self, job: str) -> Progress | None:
        """Return the progress of a fine-tuning that this node trains now."""
        running = self._running.get(job)
        return None if running is None else running.progress

    def stop(self, job: str) -> bool:
        """Stop training after a checkpoint, so that another node continues. Return False if this
        node does not train it."""
        running = self._running.get(job)
        if running is None:
            return False
        running.moved = True
        running.scope.cancel()
        return True

    async def run(self, job: Job, progress: ReportProgress) -> JobOutcome:
        """Train to the end, and return an outcome that names the last checkpoint.

        Raises ShoalError if a later try or another node might succeed.
        """
        try:
            root = root_of(job.spec)
            if self._models.is_missing(root):
                return failed("no-route", "no node has served this model for 10 minutes")
            known = await self._checkpoints.known(job)
        except (BadSpec, TuningError) as error:
            return failed(error.code, error.message)
        except Unsealable as error:
            if error.code in NOT_NOW:
                raise
            return failed(error.code, error.message)
        running = _Running(trio.CancelScope(), Progress())
        self._running[job.id] = running
        folder = self._folder / job.id[:16]
        try:
            with running.scope, self.places.taken(job):
                return await self._trained(job, known, folder, progress)
        except (BadState, Damaged, Diverged, Refused) as error:
            return failed(error.code, error.message)
        finally:
            del self._running[job.id]
            with trio.CancelScope(shield=True):
                await self._host.offload(self._clear, folder)
        raise SessionError(MOVED, "another node continues the fine-tuning")

    async def _trained(
        self, job: Job, known: CheckedTuning, folder: Path, progress: ReportProgress
    ) -> JobOutcome:
        """Train from the newest checkpoint to the end."""
        spec = known.spec
        data = await self._checkpoints.open_rows(job, spec)
        await self._host.offload(self._lay_out, folder, data)
        del data
        await self._host.offload(self._check_rows, folder, spec.data, spec.settings.length)
        curve = Curve(self._host, folder / "curve")
        running = self._running[job.id].progress
        chain = self._chains.chain(spec.root, known.arch, job=job.id)
        failure: ShoalError | None = None  # a nursery would put it into a group
        try:
            async with _Store(self, job, known, curve, progress) as store:
                task = Task(spec.settings, folder, spec.data, store=store)
                subject = AdapterSubject(spec.settings, known.terms.shapes, chain)
                training = TuningRun(self._host, task, subject, curve, running, self.pause)
                try:
                    await training.run()
                except ShoalError as error:
                    failure = error
        finally:
            with trio.move_on_after(1.0, shield=True):
                await chain.aclose()
        if failure is not None:
            raise failure
        assert store.saved is not None  # a training that ends has saved its last state
        return _outcome(running, store.saved)

    async def share_place(self, job: Job) -> None:
        """Charge the author of a job while it is trained, and stop when another author needs its
        place more. For the store of one run."""
        while True:
            await trio.sleep(defaults.PLACE_LOOK)
            self.places.charge(job)
            if self.places.must_leave(job):
                self.stop(job.id)

    def _lay_out(self, folder: Path, data: bytes) -> None:
        files = self._host.files
        files.make_folder(folder)
        files.write(folder / "rows", data)

    def _check_rows(self, folder: Path, digest: str, longest: int) -> None:
        """Check the rows of another node. Raises Damaged if they are malformed or too long."""
        path = folder / "rows"
        lengths = RowFile(self._host.files, path, digest).lengths
        if lengths.max() > longest + 1 or lengths.min() < 2:  # the last id is only a target
            raise Damaged(path, f"a row has less than 2 or more than {longest + 1} ids")

    def _clear(self, folder: Path) -> None:
        """Delete the files of a fine-tuning. Blocking. Its checkpoint is not among them."""
        files = self._host.files
        for inner in (folder / "curve", folder):
            for entry in files.list(inner):
                if not entry.is_folder:
                    files.remove(inner / entry.name)

    # Parts that the store of one run uses.

    async def newest(self, job: Job, known: CheckedTuning, curve_folder: Path) -> Learned | None:
        """Return the state of the newest checkpoint, and write its loss curve."""
        loaded = await self._checkpoints.newest(job, known)
        if loaded is None:
            return None
        files = self._host.files
        await self._host.offload(write_points, files, curve_folder, loaded.points)
        return loaded.learned

    async def store(self, job: Job, known: CheckedTuning, learned: Learned, curve: Curve) -> Saved:
        """Store a checkpoint."""
        return await self._checkpoints.save(job.id, known.terms, learned, curve.points)

    async def replicate(self, job: Job, saved: Saved) -> bool:
        """Give a checkpoint to a node that would continue the training. Return False if those that
        are asked refuse it, and True if there is none."""
        return await self._standby.replicate(job, saved.work)

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        return self._host.now()


class _Store:
    """`CheckpointStore` of one run. Checkpoints are given to another node during the training.

    A claim names a checkpoint only after that, so what it names outlives this node.
    """

    def __init__(
        self,
        runner: FinetuneRunner,
        job: Job,
        known: CheckedTuning,
        curve: Curve,
        progress: ReportProgress,
    ) -> None:
        self._runner = runner
        self._job = job
        self._known = known
        self._curve = curve
        self._progress = progress
        self._folder = curve.folder
        self.saved: Saved | None = None
        self._named: Saved | None = None
        self._named_at = runner.now()
        self._new = trio.Event()

    async def __aenter__(self) -> "_Store":
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._replicate)
        self._nursery.start_soon(self._runner.share_place, self._job)
        return self

    async def __aexit__(self, *error: object) -> bool:
        """Let the last checkpoint reach another node, within LEAVE_TIME."""
        self._nursery.cancel_scope.cancel()
        with trio.move_on_after(defaults.LEAVE_TIME, shield=True):
            await self._name_newest()
        if self.saved is not None and self.saved is not self._named:
            self._say(self.saved)
        return bool(await self._manager.__aexit__(*error))  # type: ignore[arg-type]

    async def load(self) -> Learned | None:
        """Implements `CheckpointStore`."""
        return await self._runner.newest(self._job, self._known, self._folder)

    async def save(self, learned: Learned) -> None:
        """Implements `CheckpointStore`."""
        self.saved = await self._runner.store(self._job, self._known, learned, self._curve)
        self._new.set()

    async def _replicate(self) -> None:
        while True:
            await self._new.wait()
            self._new = trio.Event()
            await self._name_newest()

    async def _name_newest(self) -> None:
        """Give the newest checkpoint to another node, and name it in the claim."""
        saved = self.saved
        if saved is None or saved is self._named:
            return
        is_safe = False
        with suppress(ShoalError):
            is_safe = await self._runner.replicate(self._job, saved)
        if is_safe or self._runner.now() - self._named_at >= defaults.NAMED_AFTER:
            self._say(saved)  # if it is not safe, others can fetch it while this node lives

    def _say(self, saved: Saved) -> None:
        self._named, self._named_at = saved, self._runner.now()
        self._progress(saved.step, saved.work.packed())


def _outcome(progress: Progress, saved: Saved) -> JobOutcome:
    """Return the outcome of a fine-tuning that is done: one line, as each job has for a row."""
    line = {
        "line": 1,
        "step": saved.step,
        "loss": progress.loss,
        "held_out": progress.held_out,
        "best": progress.best,
        "best_step": progress.best_step,
        "saved": saved.work.packed().hex(),
    }
    return JobOutcome(text=json.dumps(line) + "\n")

"""Runs the fine-tunings of a node to their ends: trains them here, or has other nodes train them,
and publishes the results."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from ....transport.errors import ShoalError
from ....transport.guard import Guard
from ....transport.host.seam import Host
from ...engine.adapters import module_shapes
from ...engine.families import Architecture
from ...errors import TaskError
from ..averaging.layout import Averaged
from ..averaging.lora import LoraTensors
from ..interface import LearnedName, LearnedTensors
from . import checkpoint, defaults
from .checkpoint import run_digest
from .curve import Curve, Point, read, write_points
from .errors import TuningError
from .folder import write_peft
from .optimiser import Array, tensor_shapes
from .plan import Errand, PlanFile, TuningPlan
from .settings import TuningSettings
from .subject import AdapterSubject
from .surroundings import State, Surroundings
from .together import Joint
from .training import Progress, Task, TuningRun


@dataclass(eq=False)
class Tuning:
    """One fine-tuning of this node. `queued` says whether it waits for others to end."""

    id: str
    file: PlanFile
    plan: TuningPlan
    progress: Progress = field(default_factory=Progress)
    curve: Curve | None = None
    scope: trio.CancelScope | None = None  # of the current run
    ended: trio.Event = field(default_factory=trio.Event)
    queued: bool = False

    @property
    def folder(self) -> Path:
        """Folder of its files."""
        return self.file.folder

    @property
    def result(self) -> Path:
        """Folder of the result: an adapter for `peft`, or a model for `transformers`."""
        return self.folder / ("model" if self.plan.settings.full else "adapter")

    @property
    def is_active(self) -> bool:
        """Whether the fine-tuning is computing, or will without a command."""
        return self.plan.state == "running"


class Running:
    """Runs fine-tunings of one node, and writes their plans."""

    def __init__(self, host: Host, around: Surroundings, guard: Guard) -> None:
        self._host = host
        self._around = around
        self._guard = guard

    async def attempt(self, tuning: Tuning, nursery: trio.Nursery) -> None:
        """Run a fine-tuning to its end, and publish the result. Failures become its state.

        `nursery` runs what is shared by the fine-tunings that are averaged.
        """
        try:
            with self._guard.around(f"the fine-tuning {tuning.id}", instead=_mishap):
                moves = tuning.plan.moves
                tensors = await (
                    self._trained_remotely(tuning) if moves else self._trained(tuning, nursery)
                )
                root = await self._published(tuning, tensors)
        except ShoalError as error:
            code = str(getattr(error, "code", None) or "failed")
            await self.settle(
                tuning, state="failed", error=code, message=error.message[:1000],
                hint=(error.hint or "")[:1000],
            )  # fmt: skip
            await self.take_back(tuning)
        else:
            await self.settle(tuning, state="done", adapter=root)

    async def _trained(self, tuning: Tuning, nursery: trio.Nursery) -> dict[LearnedName, Array]:
        """Train a fine-tuning on this node, and return what it has learned."""
        settings = tuning.plan.settings
        arch = await self._arch(tuning)
        curve = tuning.curve = Curve(self._host, tuning.folder / "curve")
        joint = await self._host.offload(self._joint, settings, arch, nursery)
        task = Task(settings, tuning.folder, tuning.plan.data, joint)
        if settings.full:
            whole, together = self._around.whole_training(), bool(settings.together)
            async with whole.subject(settings.root, settings.length, together=together) as subject:
                return await TuningRun(self._host, task, subject, curve, tuning.progress).run()
        chain = self._around.chains.chain(settings.root, arch)
        try:
            subject = AdapterSubject(settings, module_shapes(arch), chain)
            return await TuningRun(self._host, task, subject, curve, tuning.progress).run()
        finally:
            with trio.move_on_after(defaults.RETRY[0]) as leaving:
                leaving.shield = True
                await chain.aclose()

    def _joint(
        self, settings: TuningSettings, arch: Architecture, nursery: trio.Nursery
    ) -> Joint | None:
        """Return how a fine-tuning is averaged with those of others, or None if it is not. Blocks
        while A is drawn."""
        if not settings.together:
            return None
        node = self._around.averaging
        if node is None:
            raise TuningError("no-averaging", "this node cannot average with others")
        averaged: Averaged
        if settings.full:
            name, root = settings.together, settings.root
            averaged = self._around.whole_training().averaged(name, root, arch, settings.every)
        else:
            averaged = LoraTensors(
                settings.together, settings.terms, arch, inner_steps=settings.every
            )
        return Joint(node, averaged, nursery, self._guard)

    async def _arch(self, tuning: Tuning) -> Architecture:
        """Return the architecture of the model, which may have to be fetched first."""
        pause, longest = defaults.RETRY[0], defaults.CHAIN_RETRY
        while True:
            try:
                return await self._around.arch_of(tuning.plan.settings.root)
            except ShoalError as error:
                tuning.progress.trouble = error.message
                tuning.progress.tell()
            await trio.sleep(pause)
            pause = min(2 * pause, longest)

    # Training by other nodes.

    async def _trained_remotely(self, tuning: Tuning) -> dict[LearnedName, Array]:
        """Have a fine-tuning trained by any node, and return the adapter."""
        remote = self._around.remote
        if remote is None:
            raise TuningError("stays", "this node has no jobs")
        errand = self._errand(tuning, await self._arch(tuning))
        curve = tuning.curve = Curve(self._host, tuning.folder / "curve")
        if not tuning.plan.job:
            start = await self._host.offload(self._start_of, tuning, errand)
            job = await remote.submit(errand, start)
            await self.settle(tuning, job=job)
            await remote.replicate(job, tuning.progress)

        def show(points: list[Point]) -> None:
            curve.points = points

        state = await remote.follow(tuning.plan.job, errand, tuning.progress, show)
        await self._keep(tuning, errand, state)
        await self.take_back(tuning)
        learned = state[0]
        return learned.best or learned.tensors

    def _errand(self, tuning: Tuning, arch: Architecture) -> Errand:
        """Return what another node has to know. Its author's name keeps what is stored here."""
        plan = tuning.plan
        run = run_digest(plan.settings, plan.data)
        return Errand(plan.settings, module_shapes(arch), run, tuning.folder / "rows", plan.data,
                      plan.model, plan.sealed, plan.priority, plan.deadline)  # fmt: skip

    def _start_of(self, tuning: Tuning, errand: Errand) -> State | None:
        """Return the state that is on this disk, or None if there is none. Blocking."""
        files, folder = self._host.files, tuning.folder
        learned = checkpoint.load(
            files,
            folder / "checkpoint",
            errand.settings,
            tensor_shapes(errand.settings, errand.shapes),
            errand.run,
        )
        return None if learned is None else (learned, read(files, folder / "curve"))

    async def _keep(self, tuning: Tuning, errand: Errand, state: State) -> None:
        """Write a state and its curve to the disk, and show it."""
        learned, points = state
        files, folder = self._host.files, tuning.folder
        with suppress(OSError):
            await self._host.offload(
                checkpoint.save, files, folder / "checkpoint", learned, errand.run
            )
            await self._host.offload(write_points, files, folder / "curve", points)
        progress = tuning.progress
        progress.step = progress.saved = learned.step
        progress.loss = learned.loss
        if learned.best:
            progress.best, progress.best_step = learned.best_loss, learned.best_step
        held = [point.held_out for point in points if point.held_out is not None]
        progress.held_out = held[-1] if held else None
        tuning.curve = None
        await self.settle(tuning, **reached(tuning, 0.0))

    async def take_back(self, tuning: Tuning) -> None:
        """End the job of a fine-tuning, and store its newest state here."""
        remote, job = self._around.remote, tuning.plan.job
        if remote is None or not job:
            return
        with trio.CancelScope(shield=True):
            with suppress(ShoalError):
                arch = await self._around.arch_of(tuning.plan.settings.root)
                errand = self._errand(tuning, arch)
                state = await remote.take_back(job, errand)
                if state is not None:
                    await self._keep(tuning, errand, state)
            await self.settle(tuning, job="")

    # Results.

    async def _published(self, tuning: Tuning, tensors: dict[LearnedName, Array]) -> str:
        """Write the folder of the result, and add it to the library. Retries while the disk is
        full."""
        plan, own = tuning.plan, tuning.result
        pause, longest = defaults.RETRY
        while True:
            try:
                for folder in [own, *([Path(plan.out)] if plan.out else [])]:
                    await self._write(plan, folder, tensors)
                if plan.settings.full:
                    return await self._around.whole_training().publish(own, plan.name)
                return await self._around.publish(own, plan.name, plan.settings.root)
            except OSError as error:
                where = error.filename or own
                trouble = f"cannot write `{where}`: {(error.strerror or str(error)).lower()}"
            except ShoalError as error:
                if getattr(error, "code", "") not in ("disk-full", "quota-full", "unwritable"):
                    raise
                trouble = error.message
            tuning.progress.trouble = trouble
            tuning.progress.tell()
            await trio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _write(self, plan: TuningPlan, folder: Path, tensors: LearnedTensors) -> None:
        """Write a result: an adapter as `peft` would, or a model as `transformers` would."""
        settings = plan.settings
        if settings.full:
            await self._around.whole_training().write(folder, settings.root, tensors)
            return
        await self._host.offload(
            write_peft, self._host.files, folder, settings.terms, tensors, plan.model
        )

    async def settle(self, tuning: Tuning, **changes: object) -> None:
        """Change the plan, in memory and on the disk. If the disk is full, the next change writes
        it."""
        tuning.plan = tuning.plan.put(**changes)
        with suppress(OSError):
            await self._host.offload(tuning.file.write, tuning.plan)
        tuning.progress.tell()


def reached(tuning: Tuning, seconds: float) -> dict[str, object]:
    """Return the fields of a plan after a run of this many seconds."""
    progress = tuning.progress
    return {
        "seconds": round(tuning.plan.seconds + seconds, 3),
        "reached": progress.saved,
        "loss": progress.loss,
        "held_out": progress.held_out,
        "best": progress.best,
        "best_step": progress.best_step,
    }


def _mishap() -> ShoalError:
    return TaskError("mishap", "the daemon ran into a bug", hint="`shoal status` shows it")

"""All fine-tunings of one node: accepting, running, stopping and resuming them.

Each has a folder with its plan, rows, checkpoint and curve. A node that starts continues those that
were running when it ended.
"""

import math
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import trio

from ....dht.content.library import check_new_name, slug
from ....transport import naming
from ....transport.errors import ShoalError
from ....transport.guard import Guard
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ...engine.adapters import module_shapes
from ...engine.families import Architecture
from ...errors import TaskError
from ..averaging.averager import AveragingNode
from ..averaging.codecs import Codec
from ..averaging.layout import Averaged
from ..averaging.lora import LoraTensors
from ..interface import LearnedName, LearnedTensors, TuningChain
from . import checkpoint, defaults
from .checkpoint import run_digest
from .curve import Curve, Point, read, write_points
from .encoding import Encoder, Note, write_rows
from .errors import Damaged, TuningError
from .folder import write_peft
from .optimiser import Array, Learned, tensor_shapes
from .plan import Counts, Errand, PlanFile, TuningPlan
from .rows import RowsWriter
from .settings import TuningSettings, Wishes, check_wishes, row_length, settle
from .subject import AdapterSubject, Subject
from .together import Joint
from .training import Progress, Task, TuningRun

_ID_BYTES: Final = 6
_ID: Final = re.compile(rf"[0-9a-f]{{{2 * _ID_BYTES}}}")
_LEAST: Final = 4  # digits of an id that identify a fine-tuning


class ChainSource(Protocol):
    """Source of chains that compute the layers of a model."""

    def chain(self, root: str, arch: Architecture) -> TuningChain: ...


Publish = Callable[[Path, str, str], Awaitable[str]]
"""(`peft` folder, name, root of the model): adds an adapter to the library, returns its root."""
ArchOf = Callable[[str], Awaitable[Architecture]]
"""Returns the architecture of the model with a root."""
Named = Callable[[], Awaitable[set[str]]]
"""Returns the names that adapters have on this node."""


class WholeTraining(Protocol):
    """What trains all weights of a model on this node. `WholeModels` implements it."""

    async def named(self) -> set[str]:
        """Return the names that models have on this node."""
        ...

    async def check(self, root: str, arch: Architecture, length: int, *, together: bool) -> None:
        """Raise TuningError if this node cannot train a model with rows of `length` tokens."""
        ...

    def subject(self, root: str) -> AbstractAsyncContextManager[Subject]:
        """Provide the weights of a model until the block ends."""
        ...

    def averaged(self, name: str, root: str, arch: Architecture, every: int) -> Averaged:
        """Return the weights of a model as they are averaged with others."""
        ...

    async def write(self, folder: Path, root: str, tensors: LearnedTensors) -> None:
        """Write a trained model as a folder. Raises OSError if the disk fails."""
        ...

    async def publish(self, folder: Path, name: str) -> str:
        """Add the model in a folder to the library. Return its root."""
        ...


State = tuple[Learned, Sequence[Point]]
"""State of a fine-tuning, and its loss curve up to there."""


class Elsewhere(Protocol):
    """Fine-tunings of this node that any node may train, as jobs. `Afar` implements it."""

    async def submit(self, errand: Errand, start: State | None) -> str:
        """Submit one that begins at a state, or at step 0. Return the id of its job."""
        ...

    async def follow(
        self, job: str, errand: Errand, progress: Progress, show: Callable[[list[Point]], None]
    ) -> State:
        """Show the progress of one until it is done, and return its last state."""
        ...

    async def take_back(self, job: str, errand: Errand) -> State | None:
        """End one, and return the newest available state, or None."""
        ...

    async def move(self, job: str) -> None:
        """Have its trainer stop, so that another node continues."""
        ...

    def trainer(self, job: str) -> PeerId | None:
        """Return the peer that trains it now, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What fine-tunings use of their node."""

    chains: ChainSource
    arch_of: ArchOf
    publish: Publish
    named: Named
    averaging: AveragingNode | None = None
    """Where adapters are averaged with those of other nodes, or None if they cannot be."""
    afar: Elsewhere | None = None
    """Where other nodes train them, or None if none may."""
    whole: WholeTraining | None = None
    """What trains all weights of a model, or None if nothing does."""


@dataclass(frozen=True, slots=True)
class Request:
    """A fine-tuning that a user wants. `name` and `out` are None if the user gave none.

    `moves` says whether other nodes may train it, and `sealed` whether what moves is sealed for the
    members of this node's group.
    """

    model: str
    source: Path
    wishes: Wishes
    name: str | None = None
    out: Path | None = None
    moves: bool = False
    sealed: bool = False


@dataclass(frozen=True, slots=True)
class Tunable:
    """A model that is to be tuned, and its text process. `context` is in tokens."""

    root: str
    arch: Architecture
    context: int
    encoder: Encoder


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
        """Whether it is computing, or will without a command."""
        return self.plan.state == "running"


class Tunings:
    """The fine-tunings of one node, in the folders of `folder`. `run` must be running."""

    def __init__(
        self, host: Host, folder: Path, around: Surroundings, guard: Guard | None = None
    ) -> None:
        self._host = host
        self._folder = folder
        self._around = around
        self._guard = guard or Guard()
        self._all: dict[str, Tuning] = {}
        self._gate = trio.CapacityLimiter(defaults.RUNNING_AT_ONCE)
        self._nursery: trio.Nursery | None = None
        self._stopping = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Continue the fine-tunings of earlier runs, and run new ones, until cancelled."""
        for tuning in await self._host.offload(self._stored):
            self._all[tuning.id] = tuning
        async with trio.open_nursery() as self._nursery:
            for tuning in self._all.values():
                if tuning.is_active:
                    self._start(tuning)
            task_status.started()
            await trio.sleep_forever()

    def _stored(self) -> list[Tuning]:
        """Return the fine-tunings on the disk, the oldest first. Remove the data of those that were
        never accepted. Blocking."""
        found = list[Tuning]()
        for entry in self._host.files.list(self._folder):
            file = PlanFile(self._host.files, self._folder / entry.name)
            with suppress(Damaged, OSError):
                if not (_ID.fullmatch(entry.name) and self._is_own(file.folder)):
                    continue  # not of this program, and not to be deleted
                if (plan := file.read()) is not None:
                    found.append(Tuning(entry.name, file, plan, _progress_of(plan)))
                elif entry.is_folder:
                    self._remove(file.folder)
        return sorted(found, key=lambda tuning: tuning.plan.made)

    # Commands.

    def all(self) -> list[Tuning]:
        """Return all fine-tunings, the oldest first."""
        return list(self._all.values())

    def find(self, text: str) -> Tuning:
        """Return the fine-tuning with an id, the beginning of one, or the name of its adapter.

        Raises TuningError `unknown-tuning` if none or several match.
        """
        wanted = text.strip()
        named = [each for each in self._all.values() if each.plan.name == wanted]
        begun = [each for each in self._all.values() if each.id.startswith(wanted.lower())]
        found = named[-1:] or (begun if len(wanted) >= _LEAST else [])
        if len(found) != 1:
            matches = f"matches {len(found)} fine-tunings" if found else "is not a fine-tuning here"
            raise TuningError(
                "unknown-tuning",
                f"{ascii(text)[:80]} {matches}",
                hint="`shoal finetune list` shows them",
            )
        return found[0]

    async def begin(self, ask: Request, model: Tunable, note: Note) -> Tuning:
        """Encode the data of a fine-tuning, store it, and start it.

        On return it is durable. Before, it is not accepted: if this is cancelled, nothing is left.
        Raises TuningError and ModelError for what cannot be used.
        """
        name, out = await self._checked(ask, model)
        number = self._host.entropy(_ID_BYTES).hex()
        file = PlanFile(self._host.files, self._folder / number)
        writer = RowsWriter(self._host, file.folder / "rows", row_length(ask.wishes, model.context))
        try:
            await self._host.offload(self._host.files.make_folder, file.folder)
            report = await write_rows(self._host, ask.source, model.encoder, writer, note)
            seed = int.from_bytes(self._host.entropy(4))
            settings = settle(ask.wishes, model.root, model.arch, writer.length, writer.rows, seed)
            data = await writer.finish()
            plan = TuningPlan(
                *(ask.model, str(ask.source), name, out, settings, data),
                *(Counts.of(report), self._host.wall(), "running"),
                moves=ask.moves,
                sealed=ask.sealed,
            )
            await self._host.offload(file.write, plan)
        except BaseException as error:
            with trio.CancelScope(shield=True):
                await self._host.offload(self._remove, file.folder)
            if isinstance(error, OSError):
                raise _disk(file.folder, error) from None
            raise
        tuning = self._all[number] = Tuning(number, file, plan, _progress_of(plan))
        self._start(tuning)
        return tuning

    async def _checked(self, ask: Request, model: Tunable) -> tuple[str, str]:
        """Return the name of the adapter, and the path of the folder that the user wants or "".

        Raises TuningError if the request cannot be met.
        """
        if len(self._all) >= defaults.TUNINGS:
            raise TuningError(
                "too-many-tunings",
                f"this node has {len(self._all)} fine-tunings",
                hint="remove some: `shoal finetune list`, then `shoal finetune rm ID`",
            )
        check_wishes(ask.wishes, model.arch, model.context)
        if ask.moves and (self._around.afar is None or ask.wishes.together is not None):
            raise TuningError(
                "stays",
                "a fine-tuning that is averaged with others stays on its node",
                hint="leave out `--movable` or `--together`",
            )
        if ask.sealed and not ask.moves:
            raise TuningError(
                "stays",
                "only a fine-tuning that may move is sealed; this one's data stay on this node",
                hint="add `--movable`, or leave out `--seal`",
            )
        self._check_together(ask.wishes.together)
        if ask.wishes.full:
            await self._check_whole(ask, model)
        if ask.out is not None and await self._host.offload(self._is_used, ask.out):
            raise TuningError(
                "folder-used",
                f"the folder `{ask.out}` is not empty",
                hint="name a new one with `--out DIR`",
            )
        if ask.out is not None:
            await self._create(ask.out)
        taken = await self._taken(full=ask.wishes.full) | {each.plan.name for each in self.all()}
        name = self._free_name(ask, taken) if ask.name is None else naming.normal(ask.name)
        check_new_name(name)
        if name in taken:
            raise TuningError(
                "name-taken",
                f"a model, an adapter or a fine-tuning of this node is called `{name}`",
                hint="choose another with `--name NAME`",
            )
        return name, str(ask.out or "")

    async def _taken(self, *, full: bool) -> set[str]:
        """Return the names that the result cannot have."""
        whole = self._around.whole
        return await (whole.named() if full and whole is not None else self._around.named())

    async def _check_whole(self, ask: Request, model: Tunable) -> None:
        """Raise TuningError unless this node can train all weights of a model."""
        if ask.moves:
            raise TuningError(
                "stays",
                "a fine-tuning of all weights stays on its node",
                hint="leave out `--movable` or `--full`",
            )
        length, together = row_length(ask.wishes, model.context), ask.wishes.together is not None
        await self._whole().check(model.root, model.arch, length, together=together)

    def _whole(self) -> WholeTraining:
        if self._around.whole is None:
            raise TuningError(
                "no-full", "this node cannot train all weights of a model",
                hint="leave out `--full` to train an adapter",
            )  # fmt: skip
        return self._around.whole

    def _check_together(self, name: str | None) -> None:
        """Raise TuningError unless this node may average under this name."""
        if name is None:
            return
        if why := naming.problem(name):
            raise TuningError(
                "bad-name", f"{ascii(name)[:80]} cannot be the name of a run: {why}",
                hint=naming.HINT,
            )  # fmt: skip
        if self._around.averaging is None:
            raise TuningError(
                "no-averaging",
                "this node cannot average with others",
                hint="leave out `--together`",
            )
        for each in self.all():
            if each.plan.settings.together == name and each.plan.state != "done":
                raise TuningError(
                    "together-used",
                    f"the fine-tuning {each.id} of this node takes part in `{name}` already",
                    hint=f"`shoal finetune rm {each.id}` removes it; another `--together NAME` is "
                    "another run",
                )

    def _is_used(self, path: Path) -> bool:
        files = self._host.files
        try:
            return bool(files.list(path))
        except OSError:
            return True

    async def _create(self, folder: Path) -> None:
        """Create the folder for the result now, since a wrong path would be found hours later.

        Raises TuningError `unwritable` if that fails.
        """
        try:
            await self._host.offload(self._host.files.make_folder, folder)
        except OSError as error:
            raise TuningError(
                "unwritable",
                f"cannot create the folder `{folder}`: {(error.strerror or str(error)).lower()}",
                hint="name another one with `--out DIR`, which the daemon's user may write",
            ) from None

    @staticmethod
    def _free_name(ask: Request, taken: set[str]) -> str:
        """Return a name from those of the model and the file that no other adapter has."""
        model = slug(Path(ask.model.partition("@")[0]))
        base = slug(Path(f"{model}-{ask.source.stem}"))[: naming.MOST - 4]
        numbered = (f"{base}-{number}" for number in range(2, len(taken) + 3))
        return base if base not in taken else next(each for each in numbered if each not in taken)

    async def stop(self, tuning: Tuning) -> None:
        """Stop a fine-tuning after a checkpoint. `resume` continues it.

        Raises TuningError `not-active` if it does not run.
        """
        if not tuning.is_active:
            raise _not_active(tuning)
        await self._settle(tuning, state="stopped")
        await self._end(tuning)
        await self._take_back(tuning)

    async def move(self, tuning: Tuning) -> None:
        """Have the trainer of a fine-tuning stop after a checkpoint, so that another node
        continues.

        Raises TuningError `stays` if only this node may train it, `not-active` if it does not run,
        and `not-moved` if its trainer does not answer.
        """
        if not tuning.is_active:
            raise _not_active(tuning)
        if self._around.afar is None or not tuning.plan.job:
            raise TuningError(
                "stays",
                f"only this node may train the fine-tuning {tuning.id}",
                hint="begin one that may move with `shoal finetune MODEL --data FILE --movable`",
            )
        await self._around.afar.move(tuning.plan.job)

    def trainer(self, tuning: Tuning) -> PeerId | None:
        """Return the peer that trains a fine-tuning which may move, or None."""
        afar, job = self._around.afar, tuning.plan.job
        return None if afar is None or not job else afar.trainer(job)

    async def resume(self, tuning: Tuning) -> None:
        """Continue a fine-tuning that was stopped or has failed.

        Raises TuningError `not-stopped` if it runs or is done.
        """
        if tuning.plan.state not in ("stopped", "failed"):
            raise TuningError(
                "not-stopped",
                f"the fine-tuning {tuning.id} is {tuning.plan.state}",
                hint=f"`shoal finetune show {tuning.id}` shows it",
            )
        await self._settle(tuning, state="running", error="", message="", hint="")
        self._start(tuning)

    async def remove(self, tuning: Tuning) -> None:
        """End a fine-tuning, and delete its files. A published adapter stays."""
        if tuning.is_active:
            await self._settle(tuning, state="stopped")
        await self._end(tuning)
        await self._take_back(tuning)
        self._all.pop(tuning.id, None)
        try:
            await self._host.offload(self._remove, tuning.folder)
        except OSError as error:
            raise _disk(tuning.folder, error) from None

    async def points(self, tuning: Tuning) -> list[Point]:
        """Return the loss curve of a fine-tuning."""
        if tuning.curve is not None:
            return list(tuning.curve.points)
        return await self._host.offload(read, self._host.files, tuning.folder / "curve")

    async def leave(self) -> None:
        """Stop all runs after a checkpoint, because the node ends. They continue when it starts
        again."""
        self._stopping = True
        for tuning in self.all():
            await self._end(tuning)

    # Runs.

    async def _end(self, tuning: Tuning) -> None:
        """End the current run, and wait until its checkpoint is written."""
        if tuning.scope is not None:
            tuning.scope.cancel()
            await tuning.ended.wait()
        tuning.progress.tell()

    def _start(self, tuning: Tuning) -> None:
        if self._nursery is None:
            raise RuntimeError("Tunings.run is not running")
        tuning.ended, tuning.scope = trio.Event(), trio.CancelScope()
        self._nursery.start_soon(self._run, tuning, tuning.scope)

    async def _run(self, tuning: Tuning, scope: trio.CancelScope) -> None:
        began = math.nan
        try:
            with scope:
                tuning.queued = not tuning.plan.moves
                async with nullcontext() if tuning.plan.moves else self._gate:
                    tuning.queued, began = False, self._host.now()
                    await self._attempt(tuning)
        finally:
            tuning.queued, tuning.scope = False, None
            with trio.CancelScope(shield=True):
                if not math.isnan(began):
                    await self._settle(tuning, **_reached(tuning, self._host.now() - began))
            tuning.ended.set()
            tuning.progress.tell()

    async def _attempt(self, tuning: Tuning) -> None:
        """Run a fine-tuning to its end, and publish the result. Failures become its state."""
        try:
            with self._guard.around(f"the fine-tuning {tuning.id}", instead=_mishap):
                moves = tuning.plan.moves
                tensors = await (self._afar(tuning) if moves else self._trained(tuning))
                root = await self._published(tuning, tensors)
        except ShoalError as error:
            code = str(getattr(error, "code", None) or "failed")
            await self._settle(
                tuning, state="failed", error=code, message=error.message[:1000],
                hint=(error.hint or "")[:1000],
            )  # fmt: skip
            await self._take_back(tuning)
        else:
            await self._settle(tuning, state="done", adapter=root)

    async def _trained(self, tuning: Tuning) -> dict[LearnedName, Array]:
        settings = tuning.plan.settings
        arch = await self._arch(tuning)
        curve = tuning.curve = Curve(self._host, tuning.folder / "curve")
        joint = await self._host.offload(self._joint, settings, arch)
        task = Task(settings, tuning.folder, tuning.plan.data, joint)
        if settings.full:
            async with self._whole().subject(settings.root) as subject:
                return await TuningRun(self._host, task, subject, curve, tuning.progress).run()
        chain = self._around.chains.chain(settings.root, arch)
        try:
            subject = AdapterSubject(settings, module_shapes(arch), chain)
            return await TuningRun(self._host, task, subject, curve, tuning.progress).run()
        finally:
            with trio.move_on_after(defaults.RETRY[0]) as leaving:
                leaving.shield = True
                await chain.aclose()

    # Training by other nodes.

    def _errand(self, tuning: Tuning, arch: Architecture) -> Errand:
        """Return what another node has to know. Its author's name keeps what is stored here."""
        plan = tuning.plan
        run = run_digest(plan.settings, plan.data)
        return Errand(plan.settings, module_shapes(arch), run, tuning.folder / "rows", plan.data,
                      plan.model, plan.sealed)  # fmt: skip

    async def _afar(self, tuning: Tuning) -> dict[LearnedName, Array]:
        """Have a fine-tuning trained by any node, and return the adapter."""
        afar = self._around.afar
        if afar is None:
            raise TuningError("stays", "this node has no jobs")
        errand = self._errand(tuning, await self._arch(tuning))
        curve = tuning.curve = Curve(self._host, tuning.folder / "curve")
        if not tuning.plan.job:
            start = await self._host.offload(self._start_of, tuning, errand)
            job = await afar.submit(errand, start)
            await self._settle(tuning, job=job)

        def show(points: list[Point]) -> None:
            curve.points = points

        state = await afar.follow(tuning.plan.job, errand, tuning.progress, show)
        await self._keep(tuning, errand, state)
        await self._take_back(tuning)
        learned = state[0]
        return learned.best or learned.tensors

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
        await self._settle(tuning, **_reached(tuning, 0.0))

    async def _take_back(self, tuning: Tuning) -> None:
        """End the job of a fine-tuning, and store its newest state here."""
        afar, job = self._around.afar, tuning.plan.job
        if afar is None or not job:
            return
        with trio.CancelScope(shield=True):
            with suppress(ShoalError):
                arch = await self._around.arch_of(tuning.plan.settings.root)
                errand = self._errand(tuning, arch)
                state = await afar.take_back(job, errand)
                if state is not None:
                    await self._keep(tuning, errand, state)
            await self._settle(tuning, job="")

    def _joint(self, settings: TuningSettings, arch: Architecture) -> Joint | None:
        """Return how a fine-tuning is averaged with those of others, or None if it is not. Blocks
        while A is drawn."""
        if not settings.together:
            return None
        node, nursery = self._around.averaging, self._nursery
        if node is None or nursery is None:
            raise TuningError("no-averaging", "this node cannot average with others")
        averaged: Averaged
        if settings.full:
            name, root = settings.together, settings.root
            averaged = self._whole().averaged(name, root, arch, settings.every)
        else:
            averaged = LoraTensors(
                settings.together, settings.terms, arch, codec=Codec("int8"),
                inner_steps=settings.every,
            )  # fmt: skip
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
                    return await self._whole().publish(own, plan.name)
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
            await self._whole().write(folder, settings.root, tensors)
            return
        await self._host.offload(
            write_peft, self._host.files, folder, settings.terms, tensors, plan.model
        )

    async def _settle(self, tuning: Tuning, **changes: object) -> None:
        """Change the plan, in memory and on the disk. If the disk is full, the next change writes
        it."""
        tuning.plan = tuning.plan.put(**changes)
        with suppress(OSError):
            await self._host.offload(tuning.file.write, tuning.plan)
        tuning.progress.tell()

    def _is_own(self, folder: Path) -> bool:
        """Return whether a folder is no link to a folder elsewhere. Blocking."""
        return self._host.files.real(folder) == self._host.files.real(folder.parent) / folder.name

    def _remove(self, folder: Path) -> None:
        """Delete the files of a fine-tuning, the plan first. Blocking."""
        files = self._host.files
        files.remove(folder / "plan.json")
        for inner in filter(
            self._is_own, (folder / "curve", folder / "adapter", folder / "model", folder)
        ):
            for entry in files.list(inner):
                if not entry.is_folder:
                    files.remove(inner / entry.name)


def _not_active(tuning: Tuning) -> TuningError:
    return TuningError(
        "not-active",
        f"the fine-tuning {tuning.id} is {tuning.plan.state}",
        hint=f"`shoal finetune show {tuning.id}` shows it",
    )


def _progress_of(plan: TuningPlan) -> Progress:
    """Return the progress that the last run has left."""
    return Progress(
        plan.reached, plan.loss, plan.held_out, plan.best, plan.best_step, saved=plan.reached
    )


def _reached(tuning: Tuning, seconds: float) -> dict[str, object]:
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


def _disk(folder: Path, error: OSError) -> TuningError:
    return TuningError(
        "disk",
        f"cannot write in `{folder}`: {(error.strerror or str(error)).lower()}",
        hint="free some space on that disk, then try again",
    )

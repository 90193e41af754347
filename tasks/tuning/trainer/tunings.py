"""All fine-tunings of one node: begins, stops, resumes and removes them, and stores them on disk.

Each has a folder with its plan, rows, checkpoint and curve. A node that starts continues those that
were running when it ended.
"""

import math
import re
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

import trio

from ....transport.guard import Guard
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from . import defaults
from .accepting import Acceptance, Request, Tunable
from .curve import Point, read
from .encoding import Note, write_rows
from .errors import Damaged, TuningError
from .plan import Counts, PlanFile, TuningPlan
from .rows import RowsWriter
from .running import Running, Tuning, reached
from .settings import row_length, settle
from .surroundings import Surroundings
from .training import Progress

_ID_BYTES: Final = 6
_ID: Final = re.compile(rf"[0-9a-f]{{{2 * _ID_BYTES}}}")
_LEAST: Final = 4  # digits of an id that identify a fine-tuning


class Tunings:
    """The fine-tunings of one node, in the folders of `folder`. `run` must be running."""

    def __init__(
        self, host: Host, folder: Path, around: Surroundings, guard: Guard | None = None
    ) -> None:
        self._host = host
        self._folder = folder
        self._around = around
        self._acceptance = Acceptance(host, around)
        self._running = Running(host, around, guard or Guard())
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
        """Return the fine-tuning with an id, the beginning of one, or the name of its adapter. The
        id may be that of the job with which other nodes train it.

        Raises TuningError `unknown-tuning` if none or several match.
        """
        wanted = text.strip()
        named = [each for each in self._all.values() if each.plan.name == wanted]
        begun = [
            each
            for each in self._all.values()
            if each.id.startswith(wanted.lower()) or each.plan.job.startswith(wanted.lower())
        ]
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
        name, out = await self._acceptance.check(ask, model, self.all())
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
                priority=ask.priority,
                deadline=ask.deadline,
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

    async def stop(self, tuning: Tuning) -> None:
        """Stop a fine-tuning after a checkpoint. `resume` continues it.

        Raises TuningError `not-active` if it does not run.
        """
        if not tuning.is_active:
            raise _not_active(tuning)
        await self._running.settle(tuning, state="stopped")
        await self._end(tuning)
        await self._running.take_back(tuning)

    async def move(self, tuning: Tuning) -> None:
        """Have the trainer of a fine-tuning stop after a checkpoint, so that another node
        continues.

        Raises TuningError `stays` if only this node may train it, `not-active` if it does not run,
        and `not-moved` if its trainer does not answer.
        """
        if not tuning.is_active:
            raise _not_active(tuning)
        if self._around.remote is None or not tuning.plan.job:
            raise TuningError(
                "stays",
                f"only this node may train the fine-tuning {tuning.id}",
                hint="begin one that may move with `shoal finetune MODEL --data FILE --movable`",
            )
        await self._around.remote.move(tuning.plan.job)

    def trainer(self, tuning: Tuning) -> PeerId | None:
        """Return the peer that trains a fine-tuning which may move, or None."""
        remote, job = self._around.remote, tuning.plan.job
        return None if remote is None or not job else remote.trainer(job)

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
        await self._running.settle(tuning, state="running", error="", message="", hint="")
        self._start(tuning)

    async def remove(self, tuning: Tuning) -> None:
        """End a fine-tuning, and delete its files. A published adapter stays.

        Raises TuningError if the files cannot be deleted.
        """
        if tuning.is_active:
            await self._running.settle(tuning, state="stopped")
        await self._end(tuning)
        await self._running.take_back(tuning)
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
        self._nursery.start_soon(self._run, tuning, tuning.scope, self._nursery)

    async def _run(self, tuning: Tuning, scope: trio.CancelScope, nursery: trio.Nursery) -> None:
        began = math.nan
        try:
            with scope:
                tuning.queued = not tuning.plan.moves
                async with nullcontext() if tuning.plan.moves else self._gate:
                    tuning.queued, began = False, self._host.now()
                    await self._running.attempt(tuning, nursery)
        finally:
            tuning.queued, tuning.scope = False, None
            with trio.CancelScope(shield=True):
                if not math.isnan(began):
                    await self._running.settle(tuning, **reached(tuning, self._host.now() - began))
            tuning.ended.set()
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


def _disk(folder: Path, error: OSError) -> TuningError:
    return TuningError(
        "disk",
        f"cannot write in `{folder}`: {(error.strerror or str(error)).lower()}",
        hint="free some space on that disk, then try again",
    )

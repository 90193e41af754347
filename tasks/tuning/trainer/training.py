"""One run of a fine-tuning: steps over a chain, from the last checkpoint to the end.

A run that was killed at any step and resumed ends with the same adapter, bit for bit, as one that
was not, if the chain computes the same bits. The order of the rows is a function of the step, and a
checkpoint has all other state.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVar

import numpy as np
import trio

from ....transport.errors import ShoalError
from ....transport.host.seam import Host
from ...errors import NoRoute
from ..interface import Batch, Gradients, LearnedName
from . import checkpoint, defaults, optimiser
from .curve import Curve, Point
from .errors import BadGradients, Diverged, Refused
from .optimiser import Array, Learned
from .order import RowSchedule
from .rows import RowFile, counted
from .settings import TuningSettings
from .subject import Subject
from .together import Company, HeldOutJudge, Joint, Together

T = TypeVar("T")
_LOOK_ROWS: Final = 16  # held-out rows that are computed at once
_PERMANENT: Final = (
    *("bad-adapter", "bad-batch", "bad-message", "bad-token", "too-long", "unsupported"),
    *("unsupported-model", "bad-result", "not-finite"),
)
"""Codes of refusals that a later attempt with the same tensors and rows gets again, unless a node
is at fault."""


@dataclass(slots=True)
class Progress:
    """Progress of a run. `trouble` is why it waits, or "". `speed` is in tokens per
    second, or 0 if it is unknown."""

    step: int = 0
    loss: float | None = None
    held_out: float | None = None
    best: float | None = None
    best_step: int = 0
    speed: float = 0.0
    left_s: float | None = None
    trouble: str = ""
    saved: int = 0  # step of the last checkpoint
    company: Company | None = None  # the others, if the adapter is averaged with theirs
    changed: trio.Event = field(default_factory=trio.Event)

    def tell(self) -> None:
        """Wake those that wait for `changed`."""
        self.changed.set()
        self.changed = trio.Event()


class CheckpointStore(Protocol):
    """Where a fine-tuning that moves has its checkpoints."""

    async def load(self) -> Learned | None:
        """Return the state of the newest checkpoint, or None if there is none."""
        ...

    async def save(self, learned: Learned) -> None:
        """Store a checkpoint. Raises ShoalError or OSError if the disk refuses it."""
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """Task of a run. `folder` has its checkpoint; `data` is the digest of the rows."""

    settings: TuningSettings
    folder: Path
    data: str
    joint: Joint | None = None
    """How it is averaged with those of others."""
    store: "CheckpointStore | None" = None
    """Where checkpoints go, or None for a file in the folder."""

    @property
    def digest(self) -> str:
        """Digest of all that the result depends on."""
        return checkpoint.run_digest(self.settings, self.data)


class TuningRun:
    """One run of a fine-tuning.

    `pause` is the number of seconds between two checkpoints.
    """

    def __init__(
        self,
        host: Host,
        task: Task,
        subject: Subject,
        curve: Curve,
        progress: Progress,
        pause: float = defaults.CHECKPOINT_PAUSE,
    ) -> None:
        self._host = host
        self._task = task
        self._settings = task.settings
        self._subject = subject
        self._curve = curve
        self._progress = progress
        self._pause = pause
        self._path = task.folder / "checkpoint"
        self._together: Together | None = None
        self._saved_at = self._noted_at = host.now()
        self._save_s = 0.0  # that the last checkpoint took
        self._speeds: deque[tuple[float, int]] = deque(maxlen=defaults.SPEED_STEPS)

    async def run(self) -> dict[LearnedName, Array]:
        """Run to the end, and return the tensors: those with the lowest held-out loss, if there are
        held-out rows, else the last ones.

        Raises TuningError if a file is damaged, or if gradients or the chain's refusals leave no
        way on. When it is cancelled, a checkpoint is written first.
        """
        rows, learned = await self._opened()
        settings = self._settings
        order = RowSchedule(rows.lengths, settings.batch, settings.seed, settings.held_out)
        await self._patiently(lambda: self._curve.open(learned.step))
        self._progress.saved = learned.step
        for point in self._curve.points[-settings.look :]:
            self._progress.loss, held = point.loss, point.held_out
            self._progress.held_out = self._progress.held_out if held is None else held
        self._show(learned)
        try:
            async with self._company(learned, rows, order):
                await self._all_steps(learned, rows, order)
        except BaseException as error:
            if _is_cancelled(error):
                with trio.CancelScope(shield=True):
                    await self._save(learned)
            raise
        return learned.best or learned.tensors

    async def _all_steps(self, learned: Learned, rows: RowFile, order: RowSchedule) -> None:
        """Compute the steps that are left, and save the last state."""
        await self._meet(learned)
        await self._note(learned, rows, order)
        while learned.step < self._settings.steps:
            await self._step(learned, rows, order)
            await self._meet(learned)
            await self._note(learned, rows, order)
            if self._host.now() - self._saved_at >= self._pause_now:
                await self._save(learned)
        while not await self._save(learned):  # noqa: ASYNC110  a disk tells no one that it has space
            await trio.sleep(defaults.RETRY[1])
        if self._together is not None:
            await self._together.leave()

    @asynccontextmanager
    async def _company(
        self, learned: Learned, rows: RowFile, order: RowSchedule
    ) -> AsyncIterator[None]:
        """Take part in a run with others until the block ends, if the task says so."""
        joint = self._task.joint
        if joint is None:
            yield
            return
        self._progress.company = joint.company
        judge = None
        if len(order.held_out):
            every = -(-len(order.held_out) // defaults.JUDGED_ROWS)
            batch = await self._host.offload(rows.batch, order.held_out[::every])
            judge = HeldOutJudge(self._subject, joint.averaged, batch)
        async with joint.together(learned, judge) as self._together:
            yield

    async def _meet(self, learned: Learned) -> None:
        """Exchange with the others if that is due, or take what they have done without this node.

        Afterwards the progress tells it.
        """
        together = self._together
        if together is None:
            return
        await together.catch_up(learned)
        if together.is_due(learned, self._settings.steps):
            self._progress.step = learned.step
            self._progress.tell()
            await together.exchange(learned)
        self._progress.tell()

    async def _opened(self) -> tuple[RowFile, Learned]:
        """Open the rows, and return the state of the last checkpoint or the first one."""
        store = self._task.store
        if store is None:
            rows, learned = await self._host.offload(self._open, None)
        else:
            rows, learned = await self._host.offload(self._open, await store.load())
        return rows, await self._patiently(self._begun) if learned is None else learned

    def _open(self, found: Learned | None) -> tuple[RowFile, Learned | None]:
        """Open the rows, and the checkpoint in the folder unless a state was found. Blocking."""
        task, files = self._task, self._host.files
        rows = RowFile(files, task.folder / "rows", task.data)
        if found is None:
            found = checkpoint.load(
                files, self._path, task.settings, self._subject.shapes, task.digest
            )
        return rows, found

    async def _begun(self) -> Learned:
        """Return the state before the first step."""
        tensors, joint = await self._subject.first(), self._task.joint
        if joint is not None:
            tensors.update(joint.averaged.frozen)
        return await self._host.offload(optimiser.begin_from, self._settings, tensors)

    async def _step(self, learned: Learned, rows: RowFile, order: RowSchedule) -> None:
        """Compute one step, and apply it."""
        began = self._host.now()
        batch = await self._host.offload(rows.batch, order.rows(learned.step))
        found, norm = await self._gradients(learned, batch)
        await self._host.offload(optimiser.apply, learned, found, norm, self._settings)
        if self._together is not None:
            self._together.spent(self._host.now() - began)

    async def _note(self, learned: Learned, rows: RowFile, order: RowSchedule) -> None:
        """Add the last step to the curve, unless an earlier run has, with the held-out loss if it
        is due.

        A checkpoint may be written before this. The next run then does it, with the same result.
        """
        step, points = learned.step, self._curve.points
        if not step or (points and points[-1].step == step):
            return
        held = await self._look(learned, rows, order)
        tokens = int((rows.lengths[order.rows(step - 1)].astype(np.int64) - 1).sum())
        rate, now = self._settings.rate_at(step - 1), self._host.now()
        self._curve.add(
            Point(step, learned.loss, held, rate, learned.norms[-1], tokens, self._host.wall())
        )
        self._speeds.append((now - self._noted_at, tokens))
        self._noted_at = now
        self._progress.loss = learned.loss
        if held is not None:
            self._progress.held_out = held
        self._show(learned)
        await self._curve.flush()

    async def _gradients(self, learned: Learned, batch: Batch) -> tuple[Gradients, float]:
        """Return the gradients of a batch that were accepted, and the norm of their mean.

        Raises Diverged if those of BAD_GRADIENTS attempts were refused.
        """
        number, why = counted(batch), ""
        for attempt in range(defaults.BAD_GRADIENTS):
            if attempt:
                await trio.sleep(defaults.RETRY[0])
            found = await self._patiently(
                lambda: self._subject.gradients(batch, learned.tensors, learned.first.keys())
            )
            try:
                return found, await self._host.offload(optimiser.check, found, learned, number)
            except BadGradients as error:
                why = error.message
                self._say(why)
        raise Diverged(learned.step + 1, why)

    async def _look(self, learned: Learned, rows: RowFile, order: RowSchedule) -> float | None:
        """Measure the held-out loss if it is due, and remember the tensors if they are the best."""
        settings, step = self._settings, learned.step
        if learned.round is not None:
            is_due = learned.round.began == step  # the values of one node alone are not the result
        else:
            is_due = step % settings.look == 0 or step == settings.steps
        if not len(order.held_out) or not is_due:
            return None
        total, number = 0.0, 0
        for at in range(0, len(order.held_out), _LOOK_ROWS):
            batch = await self._host.offload(rows.batch, order.held_out[at : at + _LOOK_ROWS])
            loss, count = await self._losses(batch, learned)
            total, number = total + loss, number + count
        held = total / number
        if held < learned.best_loss:
            learned.best = await self._host.offload(_copied, learned.tensors)
            learned.best_loss, learned.best_step = held, step
        return held

    async def _losses(self, batch: Batch, learned: Learned) -> tuple[float, int]:
        """Return the loss of a batch. Repeats it while a chain returns a wrong one."""
        for attempt in range(defaults.BAD_GRADIENTS):
            if attempt:
                await trio.sleep(defaults.RETRY[0])
            loss, count = await self._patiently(lambda: self._subject.loss(batch, learned.tensors))
            if np.isfinite(loss) and loss >= 0 and count == counted(batch):
                return loss, count
            self._say(f"the held-out loss is {loss} of {count} positions")
        raise Diverged(learned.step, self._progress.trouble)

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work, again and again until no stage is missing and the disk has space.

        Raises Refused if a chain has refused it REFUSALS times for a reason that time does not
        cure, and Diverged if the process of full training has.
        """
        pause, longest = defaults.RETRY
        refusals = 0
        while True:
            try:
                found = await work()
            except NoRoute as error:  # only this node's list of members was asked
                self._say(error.message)
                await trio.sleep(defaults.ROUTE_LOOK)
                continue
            except ShoalError as error:
                self._say(error.message)
                code = str(getattr(error, "code", ""))
                refusals = refusals + 1 if code in _PERMANENT else 0
                if refusals >= defaults.REFUSALS and self._settings.full:  # by this node itself
                    raise Diverged(self._progress.step + 1, error.message) from None
                if refusals >= defaults.REFUSALS:
                    raise Refused(code, error.message) from None
                longest = defaults.CHAIN_RETRY
            except OSError as error:
                self._say(f"the disk fails: {(error.strerror or str(error)).lower()}")
                longest = defaults.RETRY[1]
            else:
                self._say("")
                return found
            await trio.sleep(min(pause, longest))
            pause = min(2 * pause, longest)

    async def _save(self, learned: Learned) -> bool:
        """Write a checkpoint. Return False if the disk refuses; the old one is still there then."""
        began = self._saved_at = self._host.now()
        try:
            if self._task.store is not None:
                await self._task.store.save(learned)
            else:
                await self._curve.settle()  # a resumed run appends to it
                await self._host.offload(
                    checkpoint.save, self._host.files, self._path, learned, self._task.digest
                )
        except (OSError, ShoalError) as error:
            why = error.message if isinstance(error, ShoalError) else error.strerror or str(error)
            self._say(f"no checkpoint since step {self._progress.saved}: {why.lower()}")
            return False
        self._progress.saved = learned.step
        self._saved_at = self._host.now()
        self._save_s = self._saved_at - began
        return True

    @property
    def _pause_now(self) -> float:
        """Seconds until the next checkpoint. One with all weights of a model may have gigabytes."""
        return max(self._pause, self._save_s / defaults.CHECKPOINT_SHARE)

    def _show(self, learned: Learned) -> None:
        """Update the figures of the progress."""
        progress = self._progress
        progress.step = learned.step
        if learned.best:
            progress.best, progress.best_step = learned.best_loss, learned.best_step
        if seconds := sum(each for each, _ in self._speeds):
            progress.speed = sum(tokens for _, tokens in self._speeds) / seconds
            left = self._settings.steps - learned.step
            progress.left_s = seconds / len(self._speeds) * left
        progress.tell()

    def _say(self, trouble: str) -> None:
        if trouble != self._progress.trouble:
            self._progress.trouble = trouble
            self._progress.tell()


def _copied(tensors: Mapping[LearnedName, Array]) -> dict[LearnedName, Array]:
    """Return a copy. Blocking: it may be gigabytes."""
    return {name: each.copy() for name, each in tensors.items()}


def _is_cancelled(error: BaseException) -> bool:
    """Return whether an exception only says that this task was cancelled. A chain with a nursery
    puts it into a group."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)

"""Control socket operations on fine-tunings. Specified in docs/spec/control.md."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import trio

from ....tasks.jobs.defaults import REPLICATE_MORE, REPLICATE_TIME
from ....tasks.jobs.submitting import check_deadline
from ....tasks.tuning.trainer.accepting import Request
from ....tasks.tuning.trainer.curve import thinned
from ....tasks.tuning.trainer.defaults import CURVE_POINTS, FOLLOW_PAUSE
from ....tasks.tuning.trainer.running import Tuning
from ....tasks.tuning.trainer.settings import Wishes
from ....tasks.tuning.trainer.tunings import Tunings
from ...daemon.base import Base
from ...daemon.work.tuning import TuningParts
from ..messages import jobs
from ..messages import tuning as messages
from ..server import Emit, Operation, operation, progress_to


class TuningOperations:
    """Control socket operations on the fine-tunings of one node."""

    def __init__(self, base: Base, parts: TuningParts) -> None:
        self._base = base
        self._parts = parts

    def table(self) -> Mapping[str, Operation]:
        return dict(
            (
                operation(messages.BeginTuning, self.begin),
                operation(messages.ListTunings, self.tunings),
                operation(messages.ShowTuning, self.show),
                operation(messages.FollowTuning, self.follow),
                operation(messages.StopTuning, self.stop),
                operation(messages.MoveTuning, self.move),
                operation(messages.ResumeTuning, self.resume),
                operation(messages.RemoveTuning, self.remove),
            )
        )

    @property
    def _tunings(self) -> Tunings:
        return self._parts.tunings

    async def begin(self, ask: messages.BeginTuning, emit: Emit) -> messages.ShownTuning:
        self._base.refuse_when_stopping()
        out = None if ask.out is None else Path(ask.out)
        moves = ask.moves
        if moves is None:
            moves = ask.together is None and not ask.full and self._parts.is_private
        if ask.seal:
            self._parts.check_seal()
        check_deadline(ask.deadline, self._base.host.wall())
        request = Request(
            *(ask.model, Path(ask.path), _wishes(ask), ask.name, out, moves),
            *(ask.seal, ask.priority, ask.deadline),
        )
        async with progress_to(emit) as note:
            async with self._parts.tunable(ask.model) as model:
                tuning = await self._tunings.begin(request, model, note)
        lack = await self._lack(tuning) if moves else None
        return replace(await self._shown(tuning), lack=lack)

    async def _lack(self, tuning: Tuning) -> jobs.LackView | None:
        """Wait for a while until another node has the job of a fine-tuning. Return why none has."""
        replication = self._parts.replication
        with trio.move_on_after(REPLICATE_TIME + REPLICATE_MORE):
            while tuning.is_active and not tuning.progress.trouble:
                if replication.is_confirmed(tuning.plan.job):
                    break
                await tuning.progress.changed.wait()
        trouble = replication.trouble([tuning.plan.job]) if tuning.is_active else None
        return jobs.LackView.of(trouble)

    async def tunings(self, _ask: messages.ListTunings, _emit: Emit) -> messages.TuningsView:
        await trio.lowlevel.checkpoint()
        vault = self._parts.vault
        views = tuple(map(self._view, self._tunings.all()))
        return messages.TuningsView(views, vault.fetched, vault.whole)

    async def show(self, ask: messages.ShowTuning, _emit: Emit) -> messages.ShownTuning:
        return await self._shown(self._tunings.find(ask.tuning))

    async def follow(self, ask: messages.FollowTuning, emit: Emit) -> messages.ShownTuning:
        """Emit progress, a few times per second at most, until the fine-tuning no longer runs."""
        tuning = self._tunings.find(ask.tuning)
        while tuning.is_active:
            self._base.refuse_when_stopping()
            changed = tuning.progress.changed
            await emit(messages.TuningProgress(self._view(tuning)))
            await trio.sleep(FOLLOW_PAUSE)
            await changed.wait()
        return await self._shown(tuning)

    async def stop(self, ask: messages.StopTuning, _emit: Emit) -> messages.TuningView:
        tuning = self._tunings.find(ask.tuning)
        await self._tunings.stop(tuning)
        return self._view(tuning)

    async def move(self, ask: messages.MoveTuning, _emit: Emit) -> messages.TuningView:
        tuning = self._tunings.find(ask.tuning)
        await self._tunings.move(tuning)
        return self._view(tuning)

    def _view(self, tuning: Tuning) -> messages.TuningView:
        return tuning_view(tuning, self._tunings.trainer(tuning))

    async def resume(self, ask: messages.ResumeTuning, _emit: Emit) -> messages.TuningView:
        self._base.refuse_when_stopping()
        tuning = self._tunings.find(ask.tuning)
        await self._tunings.resume(tuning)
        return self._view(tuning)

    async def remove(self, ask: messages.RemoveTuning, _emit: Emit) -> messages.TuningView:
        tuning = self._tunings.find(ask.tuning)
        await self._tunings.remove(tuning)
        return self._view(tuning)

    async def _shown(self, tuning: Tuning) -> messages.ShownTuning:
        plan, points = tuning.plan, await self._tunings.points(tuning)
        settings, counts = plan.settings, plan.counts
        return messages.ShownTuning(
            tuning=self._view(tuning),
            settings=messages.TuningSettingsView(
                rank=settings.rank,
                alpha=settings.alpha,
                modules=settings.modules,
                rate=settings.rate,
                warmup=settings.warmup,
                decay=settings.decay,
                batch=settings.batch,
                length=settings.length,
                steps=settings.steps,
                seed=settings.seed,
                held_out=settings.held_out,
                look=settings.look,
                every=settings.every if settings.together else None,
                full=settings.full,
            ),
            data=messages.DataView(
                lines=counts.lines,
                rows=counts.rows,
                tokens=counts.tokens,
                counted=counts.counted,
                split=counts.split,
                cut=counts.cut,
                empty=counts.empty,
                whole_chats=counts.whole_chats,
                bad=counts.bad,
                named=tuple(messages.BadLineView(bad.line, bad.why) for bad in counts.bad_lines),
            ),
            curve=tuple(
                messages.PointView(point.step, point.loss, point.held_out)
                for point in thinned(points, CURVE_POINTS)
            ),
        )


def _wishes(ask: messages.BeginTuning) -> Wishes:
    return Wishes(
        rank=ask.rank,
        alpha=ask.alpha,
        modules=ask.modules,
        rate=ask.rate,
        warmup=ask.warmup,
        decay=ask.decay,
        batch=ask.batch,
        length=ask.length,
        epochs=ask.epochs,
        steps=ask.steps,
        seed=ask.seed,
        held_out=ask.held_out,
        together=ask.together,
        every=ask.every,
        full=ask.full,
    )


def tuning_state(tuning: Tuning) -> str:
    """Return the state of a fine-tuning in a word."""
    if not tuning.is_active:
        return tuning.plan.state
    if tuning.queued:
        return "queued"
    return "waiting" if tuning.progress.trouble else "running"


def tuning_view(tuning: Tuning, trainer: str | None = None) -> messages.TuningView:
    """Describe a fine-tuning. `trainer` is the peer that trains it, if it may move."""
    plan, progress, running = tuning.plan, tuning.progress, tuning.is_active
    company = progress.company
    return messages.TuningView(
        id=tuning.id,
        model=plan.model,
        root=plan.settings.root,
        name=plan.name,
        state=tuning_state(tuning),
        step=progress.step,
        steps=plan.settings.steps,
        loss=progress.loss,
        held_out=progress.held_out,
        best=progress.best,
        best_step=progress.best_step,
        speed=progress.speed or None,
        left_s=progress.left_s if running else None,
        spent_s=plan.seconds,
        saved=progress.saved,
        trouble=(progress.trouble or None) if running else None,
        error=plan.error or None,
        message=plan.message or None,
        hint=plan.hint or None,
        adapter=plan.adapter or None,
        made=plan.made,
        source=plan.source,
        folder=str(tuning.folder),
        out=plan.out or None,
        together=plan.settings.together or None,
        company=None if company is None else messages.CompanyView(
            company.peers, company.round, company.refused, company.told or None
        ),
        moves=plan.moves,
        job=plan.job or None,
        trainer=trainer,
        full=plan.settings.full,
    )  # fmt: skip

"""A trainer's part in a run with others: when it exchanges, and from which state it continues.

The trainer keeps its optimiser's moments over the rounds, and takes the values of the round. See
docs/spec/averaging.md for rounds, and for how peers agree on them.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from ....transport.errors import ShoalError
from ....transport.guard import Guard
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ...errors import TaskError
from ..averaging.averager import Averager, AveragingNode, Judge, StartState, decode_base
from ..averaging.codecs import Vector
from ..averaging.errors import BadUpdate
from ..averaging.layout import Averaged
from ..averaging.steps import PeerUpdate, Step
from ..interface import Batch, LearnedName
from . import defaults
from .errors import TuningError
from .optimiser import Array, Learned, Round
from .subject import Subject

_LISTED: Final = 3  # updates that one sentence names
_DIVERGED: Final = (
    "this node had computed other numbers than most of the others from the same updates, and goes "
    "on from theirs; its memory or its version of numpy may be at fault"
)


@dataclass(slots=True)
class Company:
    """View of the others for the user. `told` is a sentence about the last round, or ""."""

    peers: int = 0  # besides this node
    round: int = 0
    refused: int = 0  # updates, in the rounds that this node saw
    told: str = ""


@dataclass(frozen=True, slots=True)
class Joint:
    """How a fine-tuning takes part in a run. `nursery` is that of the daemon's fine-tunings."""

    node: AveragingNode
    averaged: Averaged
    nursery: trio.Nursery
    guard: Guard
    company: Company = field(default_factory=Company)

    @asynccontextmanager
    async def together(self, learned: Learned, judge: Judge | None) -> AsyncIterator["Together"]:
        """Take part until the block ends. `learned` then begins at the last state that this node
        has."""
        run, old = self.averaged.run, learned.round
        start = (
            await self.node.host.offload(self.averaged.flat, learned.tensors)
            if old is None
            else decode_base(run, old.base)
        )
        averager = Averager(self.node, run, start, judge)
        async with self._running(averager):
            found = Together(self.node.host, averager, self.averaged, self.company)
            await found.enter(learned)
            yield found

    @asynccontextmanager
    async def _running(self, averager: Averager) -> AsyncIterator[None]:
        """Run an averager until the block ends. Raises TaskError `mishap` if it meets a bug."""
        ended = trio.Event()
        with trio.CancelScope() as block:
            scope = await self.nursery.start(self._run, averager, ended, block)
            try:
                yield
            finally:
                scope.cancel()
                with trio.CancelScope(shield=True):
                    await ended.wait()
        if block.cancelled_caught:
            raise _mishap()

    async def _run(
        self,
        averager: Averager,
        ended: trio.Event,
        block: trio.CancelScope,
        *,
        task_status: "trio.TaskStatus[trio.CancelScope]",
    ) -> None:
        async def begun() -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(averager.run)
                task_status.started(scope)

        try:
            with trio.CancelScope() as scope:
                with self.guard.around(f"the run {averager.terms.id[:12]}", block.cancel):
                    await begun()
        finally:
            ended.set()


class Together:
    """One trainer in one run."""

    def __init__(
        self, host: Host, averager: Averager, averaged: Averaged, company: Company
    ) -> None:
        self._host = host
        self._averager = averager
        self._averaged = averaged
        self._company = company
        self._base = averager.base
        self._step_s = 0.0  # of the last step

    async def enter(self, learned: Learned) -> None:
        """Begin a round, unless `learned` is in one."""
        if learned.round is None:
            await self._take(learned, self._averager.base)
        self._count()

    async def catch_up(self, learned: Learned) -> None:
        """Continue from the latest state if the others have gone on without this node."""
        if self._averager.is_overtaken(self._base):
            await self._take(learned, self._averager.base)
        self._count()

    def spent(self, seconds: float) -> None:
        """Record how long a step took."""
        self._step_s = seconds

    def is_due(self, learned: Learned, steps: int) -> bool:
        """Return whether an exchange is due: after `inner_steps` steps, after the last one, or when
        another step would come too late for the round."""
        done = _done(learned)
        if done <= 0:
            return False
        if done >= self._averaged.run.inner_steps or learned.step >= steps:
            return True
        left = self._averager.seconds_left()
        return left is not None and left < defaults.HASTE * self._step_s

    async def exchange(self, learned: Learned) -> None:
        """Deliver what was learned in this round, and continue from the state after it.

        Raises TuningError if no peer could use the values.
        """
        assert learned.round is not None
        if self._others():
            self._company.told = "waits for the updates of the others"
        values = await self._host.offload(self._averaged.flat, learned.tensors)
        try:
            base = await self._averager.exchange(self._base, values, max(learned.round.tokens, 1))
        except BadUpdate as error:
            raise TuningError(
                error.code,
                f"the steps up to {learned.step} gave values that no average can use: "
                f"{error.message}",
                hint="begin again with a lower `--rate`",
            ) from None
        await self._take(learned, base)

    async def leave(self) -> None:
        """Stay until the others have the last round, so that they can fetch what they lack of it.
        A few seconds at most."""
        with trio.move_on_after(defaults.PART_SECONDS):
            while not self._is_complete():  # noqa: ASYNC110
                await trio.sleep(defaults.PART_LOOK)

    def _is_complete(self) -> bool:
        ledger = self._averager.rounds.ledger
        step = ledger.get(self._base.step)
        authors = {entry.peer for entry in step.entries} if step is not None else set()
        return authors <= ledger.signers(self._base.step)

    async def _take(self, learned: Learned, base: StartState) -> None:
        """Continue from a state. The optimiser's moments stay."""
        had = _done(learned) > 0
        data = await self._host.offload(self._averager.checkpoint, base)
        tensors = await self._host.offload(self._tensors, base.values)
        learned.tensors.update(tensors)
        learned.round = Round(data, learned.step)
        self._base = base
        self._tell(base, had)

    def _tensors(self, values: Vector) -> dict[LearnedName, Array]:
        return {name: each.copy() for name, each in self._averaged.tensors(values).items()}

    # For the user.

    def _others(self) -> int:
        return len(self._averager.rounds.roster(self._base.step) - {self._averager.rounds.own})

    def _count(self) -> None:
        self._company.peers = self._others()
        self._company.round = self._base.round

    def _tell(self, base: StartState, had: bool) -> None:
        """Say what became of a round. `had` is whether this node had done steps for it."""
        rounds, company = self._averager.rounds, self._company
        step = rounds.ledger.get(base.step)
        refused = [] if step is None else [each for each in step.entries if each.refused]
        company.refused += len(refused)
        company.told = (
            _DIVERGED if rounds.diverged is not None
            else "" if step is None
            else _words(step, rounds.own, rounds.refusals, had=had)
        )  # fmt: skip
        self._count()


class HeldOutJudge:
    """The held-out loss of shared values, on rows that this node chose."""

    def __init__(self, subject: Subject, averaged: Averaged, held_out: Batch) -> None:
        self._subject = subject
        self._averaged = averaged
        self._held_out = held_out

    async def loss(self, values: Vector) -> float:
        """Return the mean loss in nats. Raises TaskError if it cannot be computed now."""
        tensors = {**self._averaged.frozen, **self._averaged.tensors(values)}
        total, counted = await self._subject.loss(self._held_out, tensors)
        return total / max(counted, 1)


def _done(learned: Learned) -> int:
    """Return the steps of the current round so far."""
    return 0 if learned.round is None else learned.step - learned.round.began


def _words(step: Step, own: PeerId, why: Mapping[str, ShoalError], *, had: bool) -> str:
    """Return a sentence about what a step left out, or "". `had` is whether this node had an
    update for it."""
    refused = [entry for entry in step.entries if entry.refused]
    if any(entry.peer == own for entry in refused):
        return (f"round {step.round}: the others refused the update of this node; "
                "its data may be unlike theirs")  # fmt: skip
    if had and all(entry.peer != own for entry in step.entries):
        return f"round {step.round} closed before this node had an update; it goes on from there"
    if refused:
        names = ", ".join(_named(entry, why) for entry in refused[:_LISTED])
        return f"round {step.round}: refused {names}"
    return ""


def _named(entry: PeerUpdate, why: Mapping[str, ShoalError]) -> str:
    reason = f": {why[entry.root].message}" if entry.root in why else ""
    return f"the update of {entry.peer}{reason}"


def _mishap() -> TaskError:
    return TaskError("mishap", "the daemon ran into a bug", hint="`shoal status` shows it")

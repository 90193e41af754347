"""Detection of a worker that no longer responds. No I/O."""

from typing import Final

from ..costs.shardcosts import ShardCosts
from .defaults import (
    DECODE_FACTOR,
    HUNG_KILL,
    PREFILL_STEP_FACTOR,
    PREFILL_STEP_S,
    STEP_S,
    WATCH_ACTIVE,
    WORKER_DEADLINE,
    WORKER_FACTOR,
)
from .interface import Loaded, SessionId, Span
from .kv.blocks import BLOCK

PATIENT: Final = frozenset(
    {"load", "unload", "adapt", "export", "import", "fork", "tune-open", "tune-set"}
)
"""Requests that may take longer than a step."""


class Watchdog:
    """Deadline for the next frame of one worker while sessions wait for it. Times are in seconds.

    A worker reads its socket between two steps, so it answers a ping within one step, however much
    waits. It is silent after the larger of WORKER_DEADLINE and WORKER_FACTOR times the predicted
    time of its longest step.
    """

    def __init__(self, now: float) -> None:
        self._heard = now  # when the last frame arrived, or the watch began
        self._active = -WATCH_ACTIVE  # when a span was last submitted or answered
        self._steps: dict[int, tuple[float, float]] = {}  # by shard: of texts, of prompts
        self._prompts: dict[SessionId, int] = {}  # prompt spans that wait
        self._patient = 0  # requests in progress that may take long
        self.pinged = False

    def loaded(self, shard: int, report: Loaded) -> None:
        """Record the predicted times of a shard's steps."""
        self._steps[shard] = longest_steps(report.costs)

    def unloaded(self, shard: int) -> None:
        """Forget a shard."""
        self._steps.pop(shard, None)

    def expect(self, now: float) -> None:
        """Expect a sign of life."""
        if not self.active(now):
            self.restart(now)
        self._active = now

    def submitted(self, span: Span, now: float) -> None:
        """Expect an answer to a span."""
        self.expect(now)
        if span.count > BLOCK:
            self._prompts[span.session] = self._prompts.get(span.session, 0) + 1

    def answered(self, session: SessionId, now: float) -> None:
        """Count an answer to a span of a session."""
        self._active = now
        left = self._prompts.pop(session, 0) - 1
        if left > 0:
            self._prompts[session] = left

    def ended(self, session: SessionId) -> None:
        """Expect no more answers of a session."""
        self._prompts.pop(session, None)

    def heard(self, now: float) -> None:
        """Count any frame of the worker."""
        self.restart(now)

    def restart(self, now: float) -> None:
        """Start to wait again, for example after this computer has slept."""
        self._heard = now
        self.pinged = False

    def wait(self, name: str, by: int, now: float) -> None:
        """Count a request that begins (`by` = 1) or ends (-1)."""
        if name in PATIENT:
            self._patient += by
            self.restart(now)

    def active(self, now: float) -> bool:
        """Return whether a span was submitted or answered lately. Only then is the worker
        watched."""
        return now < self._active + WATCH_ACTIVE

    @property
    def deadline(self) -> float:
        """Seconds without a frame after which the worker is silent."""
        kind = 1 if self._prompts else 0
        longest = max((steps[kind] for steps in self._steps.values()), default=0.0)
        return max(WORKER_DEADLINE, WORKER_FACTOR * longest)

    def is_due(self, now: float) -> bool:
        """Return whether to send a ping now."""
        return not self.pinged and now >= self._heard + self.deadline / 2

    def is_silent(self, now: float) -> bool:
        """Return whether the worker has missed its deadline."""
        return self.pinged and not self._patient and now >= self._heard + self.deadline

    def is_hung(self, now: float) -> bool:
        """Return whether the worker has been silent for so long that only its end helps."""
        return self.is_silent(now) and now >= self._heard + max(HUNG_KILL, 2 * self.deadline)


def longest_steps(costs: ShardCosts) -> tuple[float, float]:
    """Return the predicted times in seconds of the longest step of running texts, and of the
    longest one with prompts, which has at least a block of positions."""
    unit = costs.step_s + costs.row_s
    block = costs.step_s + BLOCK * costs.row_s
    texts = max(STEP_S, DECODE_FACTOR * unit)
    return texts, max(texts, PREFILL_STEP_S, PREFILL_STEP_FACTOR * unit, block)

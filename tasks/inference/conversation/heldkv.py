"""KV of a prompt that the stages of a chain have, and the spans that they compute of it. No I/O.

Stages fetch the KV of a prompt from its end, while they compute it from its beginning. What all of
them have is left out when the spans reach it.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...defaults import PREFILL_BYTES, PREFILL_TOKENS, SKIP_PART, SKIP_TOKENS
from ...engine.kv.blocks import BLOCK
from ..messages import Held, SessionOpened, SpanMessage

if TYPE_CHECKING:
    from ..generation import GenerationRun


@dataclass(slots=True)
class _StageKv:
    """The positions from `start` to before `stop` that a stage has, and whether more may arrive."""

    start: int = 0
    stop: int = 0
    skips: bool = False  # whether it can leave them out
    more: bool = True


class HeldKv:
    """What each stage of a chain has of the KV of a prompt, as it says.

    A stage checks by itself that it has what it leaves out, so a wrong claim ends the session of
    the stage that made it, and nothing else.
    """

    def __init__(self, stages: int) -> None:
        self._stages = [_StageKv() for _ in range(stages)]
        self.under_way: deque[int] = deque()
        """The ends of the prompt's spans that were sent, and have not passed the chain."""
        self._told = False

    def opened(self, place: int, opened: SessionOpened) -> None:
        """Note what a stage has cached. What it may have told before is later news."""
        stage = self._stages[place]
        stage.skips = opened.skips
        stage.more &= opened.fetches
        if not stage.stop:
            stage.stop = opened.cached

    def note(self, held: Held) -> None:
        """Note what a stage has now."""
        stage = self._stages[held.index]
        stage.start, stage.stop = -(-held.start // BLOCK) * BLOCK, held.stop // BLOCK * BLOCK
        stage.more &= held.more

    def becomes_due(self, latest: int) -> bool:
        """Return whether, for the first time, positions may be left out that were sent already. The
        prompt is computed from the position `latest` on in any case."""
        start, stop = self.common
        sent = self.under_way[-1] if self.under_way else 0
        due = self.able and not self._told and start <= sent < min(stop, latest)
        self._told |= due
        return due

    @property
    def able(self) -> bool:
        """Whether all stages can leave positions out."""
        return all(stage.skips for stage in self._stages)

    @property
    def more(self) -> bool:
        """Whether the stages may get more that all of them have."""
        lacking = any(stage.start >= stage.stop and not stage.more for stage in self._stages)
        return not lacking and any(stage.more for stage in self._stages)

    def passed(self, position: int) -> None:
        """Note that the positions below `position` have passed the chain."""
        while self.under_way and self.under_way[0] <= position:
            self.under_way.popleft()

    @property
    def common(self) -> tuple[int, int]:
        """The positions that all stages have: the first one, and the one after the last."""
        starts = [stage.start for stage in self._stages]
        return max(starts), min(stage.stop for stage in self._stages)


def prompt_spans(run: "GenerationRun", hidden: int) -> Iterator[SpanMessage]:
    """Yield the messages that carry the prompt, in spans of bounded size.

    `hidden` is the number of values in a hidden state. Only the last span requests a token, and in
    a pooled session none. Positions that all stages have when a span would begin with one of them
    are left out.
    """
    step = max(1, min(PREFILL_TOKENS, PREFILL_BYTES // (4 * hidden)))
    first = run.start
    while first < run.prompt:
        count, behind = min(step, run.prompt - first), None
        if run.skips and run.held.able:
            first, behind = _left_out(run, first)
            count = _fitting(run, first, min(step, run.prompt - first))
        if run.prompt - first - count == 1 < count:  # a single position is no part of a prompt
            count -= 1
        last = first + count == run.prompt and not run.terms.pooled
        yield SpanMessage(run.session, run.epoch, 0, first, count, last, 0.0, behind=behind)
        first += count


def _left_out(run: "GenerationRun", first: int) -> tuple[int, int | None]:
    """Return where the next span begins, which would have the position `first`, and from where on
    positions before it are left out (None: none are)."""
    start, stop = run.held.common
    stop = min(stop, run.latest_start)
    if start <= first < stop and first % BLOCK == 0:
        return stop, start
    return first, None


def _fitting(run: "GenerationRun", first: int, count: int) -> int:
    """Return how many positions from `first` on, at most `count`, the next span has.

    It ends where that begins which all stages have. While more may arrive, it is short: a stage
    that computes a span leaves nothing out before its end.
    """
    start, stop = run.held.common
    if first < start < stop:
        count = min(count, start - first)
    if run.held.more and first < run.latest_start:
        count = min(count, max(SKIP_TOKENS, int(SKIP_PART * first)))
    whole = (first + count) // BLOCK * BLOCK - first
    return whole if whole > 0 and first + count < run.prompt else count

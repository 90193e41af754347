"""Predicted seconds of the steps of a shard, of its adapters, and of choosing tokens. No I/O."""

from dataclasses import dataclass
from typing import Final

from ..defaults import CHANGED, STEP_ROWS
from ..interface import Sampling
from ..kv.blocks import BLOCK


@dataclass(frozen=True, slots=True)
class PickCosts:
    """Predicted time that the choice of a token takes beyond that of the likeliest one, in seconds.

    A drawn token takes `one` if `top_k` is 1, and up to `all` if every token of the `vocabulary`
    may be drawn. The report of the most likely tokens takes `top`. The change of up to CHANGED
    logits by rules takes `changed`.
    """

    one: float
    all: float
    top: float
    vocabulary: int
    changed: float = 0.0

    def seconds(self, sampling: Sampling, top: int, changed: int = 0) -> float:
        """Return the seconds for a token with these parameters, of which rules change up to
        `changed` logits."""
        seconds = self.top if top else 0.0
        if changed:
            seconds += self.changed * max(1.0, min(changed, self.vocabulary) / CHANGED)
        if sampling.temperature > 0:
            part = min(1.0, (sampling.top_k or self.vocabulary) / self.vocabulary)
            seconds += self.one + part * (self.all - self.one)
        return seconds


NO_PICK_COSTS: Final = PickCosts(0.0, 0.0, 0.0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class StepCosts:
    """Predicted time of a step of one shard, in seconds: `fixed`, plus `row` for each row, plus
    `attended` for each pair of a row and a position that it attends to. Texts take more: `chosen`
    for each row, as it attends by itself and its token is chosen, and `alone` for each position,
    whose keys and values are read for a few rows only. `chosen` is negative if the first rows of a
    step take less time than further ones. A token that is not simply the likeliest one
    takes more, as `picks` say. A step has at most `most_rows` rows, which bounds the memory for
    intermediate values.

    Beside texts, the part of a prompt ends at a multiple of `part` positions.

    The object stands for its shard. Two shards may have equal costs, so objects are not compared by
    their values.
    """

    fixed: float
    row: float
    attended: float
    most_rows: int = STEP_ROWS
    chosen: float = 0.0
    alone: float = 0.0
    picks: PickCosts = NO_PICK_COSTS
    part: int = BLOCK


@dataclass(frozen=True, slots=True, eq=False)
class AdapterCosts:
    """Predicted time that an adapter adds to a step, in seconds: `fixed` if it is in the step, and
    `row` for each of its rows. The object stands for the adapter."""

    fixed: float
    row: float

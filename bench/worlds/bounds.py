"""The most that several windows of drafts in flight can gain over one, by arithmetic.

With a text and a drafter, the runs of right guesses are given: as many tokens as the drafter
guesses right from what was said before, and then one that it does not. That one has to come back
before anything right can follow, so each run takes a round at least. Nothing waits or is lost here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Final

from shoal.tasks.drafting.defaults import SLICE_TOKENS
from shoal.tasks.drafting.drafter import Drafter, Histories

from .recorded import LAYERS, Machine, Text

WINDOWS: Final = (4, 8, 16, 32)
_FAR: Final = 1_000  # guesses of a run that are followed


@dataclass(frozen=True)
class Steps:
    """Seconds of a token around a chain, of each further row in all stages and in the slowest one,
    and of a step of one row at the slowest."""

    round_s: float
    row_s: float
    slowest_row_s: float
    step_s: float

    @classmethod
    def of(cls, machine: Machine, stages: int, apart_s: float) -> "Steps":
        """Return the steps of a chain of such machines, with round trips of `apart_s`."""
        ends = [round(LAYERS * number / stages) for number in range(stages + 1)]
        costs = [machine.costs(stop - start) for start, stop in pairwise(ends)]
        row_s, fixed = sum(each.row for each in costs), sum(each.fixed for each in costs)
        links = stages * apart_s / 2 if stages > 1 else 0.0
        step_s = max(each.fixed + each.row for each in costs)
        return cls(links + fixed + row_s, row_s, max(each.row for each in costs), step_s)

    def late(self, window: int) -> float:
        """Return by how many seconds the tokens of a window come after the token before it, which
        the head feeds."""
        return self.step_s + (window - 1) * self.row_s

    def single(self, run: int, window: int) -> float:
        """Return the seconds of a run with one window in flight."""
        whole, rest = divmod(run, window + 1)
        late = self.late(window)
        return whole * (self.round_s + late) + self.round_s + (late if rest else 0.0)

    def several(self, run: int) -> float:
        """Return the least seconds of a run: one round, and a row of the slowest stage for each
        token."""
        return self.round_s + run * self.slowest_row_s


def runs(texts: Sequence[Text]) -> list[int]:
    """Return the lengths of the runs of right guesses, from the first token of each text on, with
    the drafter and the texts that came before."""
    history, _ = Histories().of("", "")
    found = []
    for text in texts:
        drafter = Drafter(history)
        drafter.extend((*text.prompt, text.answer[0]))
        at = 1
        while at < len(text.answer):
            left = text.answer[at:]
            guesses = drafter.draft((), min(_FAR, len(left)))
            pairs = zip(guesses, left, strict=False)
            right = sum(1 for _ in takewhile(lambda pair: pair[0].token == pair[1], pairs))
            found.append(right)
            drafter.extend(left[: right + 1])
            at += right + 1
        said = (*text.prompt, *text.answer)
        new = said[history.common(said) :]
        for first in range(0, len(new), SLICE_TOKENS):
            history.extend(new[first : first + SLICE_TOKENS])
    return found


def gain(steps: Steps, found: Sequence[int]) -> float:
    """Return how many times as fast as the best single window several ones can be."""
    single = min(sum(steps.single(run, window) for run in found) for window in WINDOWS)
    return single / sum(steps.several(run) for run in found)


def needed(steps: Steps, goal: float) -> float:
    """Return the part of guesses that must be right in an endless text, for a gain of `goal`: each
    is right with that probability, whatever the others are."""
    return next((part / 1000 for part in range(1000) if _expected(steps, part / 1000) >= goal), 1.0)


def _expected(steps: Steps, part: float) -> float:
    """Return the gain in an endless text."""
    singles = []
    for window in WINDOWS:
        filled = part ** (window + 1)  # probability that all of a window is right, and what follows
        some = 1.0 - (1.0 - part) / (1.0 - filled)  # … that a run's last window has a right guess
        whole = filled / (1.0 - filled)
        late = steps.late(window)
        singles.append(whole * (steps.round_s + late) + steps.round_s + some * late)
    return min(singles) / (steps.round_s + part / (1.0 - part) * steps.slowest_row_s)

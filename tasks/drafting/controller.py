"""Decides how many guesses are worth computing, and in windows of which length. No I/O.

A guess that is right saves a part of a round trip. One that is wrong delays what follows it,
because stages compute it first. Both are measured: the time from a token to the next one grows by
`cost` for each wasted row between them. With n guesses in flight, of which the j-th is
reached with probability s(j), a round of `round + n * cost` seconds yields 1 + s(1) + … + s(n)
tokens. So the next guess is worth computing while s(n) is above the cost of a row divided by the
time that a token takes so far. If rows are dear, as on loaded nodes, or guesses are bad, none is.
"""

from collections.abc import Iterable
from itertools import islice
from math import sqrt

from .defaults import AHEAD, FIRST_COST, FLIGHT, LEAST_COST, MEMORY, WINDOW


class FittedLine:
    """A straight line through measurements, of which older ones count less."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def note(self, x: float, y: float) -> None:
        """Add a point with the weight 1. Earlier points lose weight."""
        self._weight = self._weight * MEMORY + 1
        self._x = self._x * MEMORY + x
        self._y = self._y * MEMORY + y
        self._xx = self._xx * MEMORY + x * x
        self._xy = self._xy * MEMORY + x * y

    @property
    def known(self) -> bool:
        """Whether there is any measurement."""
        return self._weight > 0

    def fit(self, slope: float, weight: float = 16.0) -> tuple[float, float]:
        """Return (value at 0, slope). `slope` is what is assumed, with the weight of measurements
        at a distance of 1 from their mean. Neither is negative."""
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx - self._x * mean_x
        found = max(0.0, (self._xy - self._x * mean_y + slope * weight) / (spread + weight))
        return max(0.0, mean_y - found * mean_x), found


class Controller:
    """Controller of the guesses of one session over `stages` stages."""

    def __init__(self, stages: int, *, fixed: tuple[int, int] | None = None) -> None:
        """`fixed`: positions of a window, and windows in flight, instead of those that are
        computed."""
        self._stages = stages
        self._fixed = fixed
        self._rounds = FittedLine()  # seconds between two tokens, by the wasted rows between them
        self._steps = FittedLine()  # seconds of computing, by rows

    def note_round(self, seconds: float, vain: int) -> None:
        """Add the time from a token to the next one, which `vain` wrong guesses preceded."""
        self._rounds.note(vain, seconds)

    def note_step(self, seconds: float, rows: int) -> None:
        """Add the time that all stages computed for a window or token."""
        self._steps.note(rows, seconds)

    @property
    def ready(self) -> bool:
        """Whether a round trip was measured."""
        return self._rounds.known

    @property
    def round_s(self) -> float:
        """The measured seconds from a token to the next one without drafts, 0 if unknown."""
        return self._costs()[0] if self.ready else 0.0

    def ahead(self, chances: Iterable[float]) -> int:
        """Return how many guesses should be in flight.

        `chances` are the probabilities that each one is right if those before it are.
        """
        if self._fixed is not None:
            most = min(AHEAD, self._fixed[0] * self._fixed[1])
            return sum(1 for _ in islice(chances, most))
        if not self.ready and not self._steps.known:
            return 0  # a token has not come yet: prompts are computed alone
        whole, cost = self._costs() if self.ready else (1.0, FIRST_COST)
        reached, tokens, count = 1.0, 1.0, 0
        for chance in chances:
            reached *= chance
            if count >= AHEAD or reached * (whole + count * cost) <= cost * tokens:
                break
            tokens += reached
            count += 1
        return count

    def _costs(self) -> tuple[float, float]:
        """Return the seconds of a round without guesses, and those of a further row."""
        mean, _ = self._rounds.fit(0.0)
        whole, cost = self._rounds.fit(FIRST_COST * mean)
        return whole, max(cost, LEAST_COST * whole)

    def window(self, ahead: int) -> int:
        """Return the length of the windows in which `ahead` guesses are computed.

        A short window leaves a stage early, but each one takes the fixed time of a step. A single
        stage gets all of them in one message, behind the token that is known.
        """
        if self._fixed is not None:
            return self._fixed[0]
        if self._stages == 1:
            return min(ahead + 1, WINDOW)
        if not self._steps.known:
            return max(1, min(ahead, WINDOW))
        least = -(-ahead // FLIGHT)
        mean, _ = self._steps.fit(0.0)
        fixed, row = self._steps.fit(mean / 16)
        best = sqrt(ahead * fixed / ((self._stages - 1) * row)) if row > 0 else WINDOW
        return max(1, least, min(round(best), ahead, WINDOW))

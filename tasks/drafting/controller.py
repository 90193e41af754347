"""Decides how many guesses are worth computing, and in windows of which length. No I/O.

A guess that is right saves a part of a round trip. One that is wrong delays what follows it,
because stages compute it first: by `cost` seconds for each wasted row. With n guesses in flight, of
which the j-th is reached with probability s(j), a round of `round + n * cost` seconds yields
1 + s(1) + … + s(n) tokens. So the next guess is worth computing while s(n) is above the cost of a
row divided by the time that a token takes so far. If rows are dear, as on loaded nodes, or guesses
are bad, none is. The cost model (docs/spec/costs.md) predicts both, and measured rounds correct it.
"""

from collections.abc import Iterable
from itertools import islice
from math import sqrt
from typing import NamedTuple

from ..costs.chain import NO_PRICES, WindowPrices
from .defaults import AHEAD, FLIGHT, LEAST_COST, MEMORY, MOST_COST, WINDOW


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


class Ahead(NamedTuple):
    """How many guesses should be in flight, and in windows of how many."""

    guesses: int
    window: int


class Controller:
    """Controller of the guesses of one session, over `stages` stages with these prices."""

    def __init__(
        self,
        stages: int,
        prices: WindowPrices = NO_PRICES,
        *,
        fixed: tuple[int, int] | None = None,
    ) -> None:
        """`fixed`: guesses of a window, and windows in flight, instead of those that are
        computed."""
        self._stages = stages
        self._prices = prices
        self._fixed = fixed
        self.begun = False
        """Whether the first token has come. Prompts are computed alone."""
        self._rounds = FittedLine()  # seconds between two tokens, by the wasted rows between them

    def note_round(self, seconds: float, vain: int) -> None:
        """Add the time from a token to the next one, which `vain` wrong guesses preceded."""
        self._rounds.note(vain, seconds)

    @property
    def round_s(self) -> float:
        """The measured seconds from a token to the next one without drafts, 0 if unknown."""
        return self._costs()[0] if self._rounds.known else 0.0

    def ahead(self, chances: Iterable[float]) -> Ahead:
        """Return how many guesses should be in flight.

        `chances` are the probabilities that each one is right if those before it are.
        """
        if self._fixed is not None:
            most = min(AHEAD, self._fixed[0] * self._fixed[1])
            return Ahead(sum(1 for _ in islice(chances, most)), self._fixed[0])
        if not self.begun:
            return Ahead(0, 1)
        whole, cost = self._costs()
        reached, tokens, count = 1.0, 1.0, 0
        for chance in chances:
            reached *= chance
            if count >= AHEAD or reached * (whole + count * cost) <= cost * tokens:
                break
            tokens += reached
            count += 1
        return Ahead(count, self._window(count))

    def _costs(self) -> tuple[float, float]:
        """Return the seconds of a round without guesses, and those of a further row."""
        whole, cost = self._prices.round_s, self._prices.row_s
        cost = min(cost, MOST_COST * whole)
        if self._rounds.known:
            whole, cost = self._rounds.fit(cost)
        return whole, max(cost, LEAST_COST * whole)

    def _window(self, ahead: int) -> int:
        """Return the length of the windows in which `ahead` guesses are computed.

        Each window takes the time of a step at the slowest stage, and each of its rows delays all
        of its tokens. The length balances the two. A single stage gets all guesses in one message.
        """
        longest = max(1, min(ahead, WINDOW))
        if self._stages == 1 or not self._prices.row_s:
            return longest
        best = sqrt(ahead * self._prices.step_s / self._prices.row_s)
        count = min(max(1, round(ahead / max(best, 1.0)), -(-ahead // WINDOW)), FLIGHT)
        return max(1, -(-ahead // count))

"""How many guesses are worth computing."""

from itertools import repeat

import pytest

from shoal.tasks.drafting.controller import Controller, FittedLine
from shoal.tasks.drafting.defaults import AHEAD, FIRST_COST, WINDOW


def measured(whole: float, cost: float, stages: int = 4) -> Controller:
    controller = Controller(stages)
    for vain in (0, 8, 0, 16, 0, 4) * 10:
        controller.note_round(whole + vain * cost, vain)
        controller.note_step(0.01 + 0.001 * (vain + 1), vain + 1)
    return controller


def rate(chance: float, whole: float, cost: float, count: int) -> float:
    """Return the tokens per second with some guesses in flight."""
    tokens = sum(chance**number for number in range(count + 1))
    return tokens / (whole + count * cost)


@pytest.mark.parametrize("chance", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("cost", [0.002, 0.01, 0.05])
def test_the_best_number_is_found(chance: float, cost: float) -> None:
    found = measured(0.2, cost).ahead(repeat(chance))
    best = max(rate(chance, 0.2, cost, count) for count in range(AHEAD + 1))
    assert rate(chance, 0.2, cost, found) > 0.98 * best
    assert 0 <= found < AHEAD


def test_nothing_is_guessed_where_rows_are_dear_or_guesses_bad() -> None:
    assert measured(0.2, 0.25).ahead(repeat(0.9)) == 0
    assert measured(0.2, 0.01).ahead(repeat(0.04)) == 0
    assert measured(0.2, 0.01).ahead([]) == 0
    assert Controller(4).ahead(repeat(0.9)) == 0, "no token has come"


def test_the_first_token_is_enough_to_guess_the_next_ones() -> None:
    controller = Controller(4)
    controller.note_step(0.01, 1)
    assert controller.ahead(repeat(0.9)) == measured(1.0, FIRST_COST).ahead(repeat(0.9)) > 3
    assert controller.ahead(repeat(0.04)) == 0


def test_bounds() -> None:
    assert measured(0.2, 0.0).ahead(repeat(1.0)) <= AHEAD
    for ahead in range(1, AHEAD + 1):
        assert 1 <= measured(0.2, 0.01).window(ahead) <= min(WINDOW, ahead)
    assert Controller(1).window(20) == 21, "one message, behind the known token"


def test_fewer_guesses_when_the_load_grows_and_more_when_it_ends() -> None:
    controller = measured(0.2, 0.002)
    free = controller.ahead(repeat(0.8))
    for vain in (0, 8, 16, 4) * 20:
        controller.note_round(0.2 + vain * 0.05, vain)
    loaded = controller.ahead(repeat(0.8))
    for vain in (0, 4, 2, 1) * 40:
        controller.note_round(0.2 + vain * 0.002, vain)
    assert loaded < free / 2
    assert controller.ahead(repeat(0.8)) > loaded


def test_a_line_is_never_negative() -> None:
    line = FittedLine()
    assert not line.known
    for x, y in ((0, 1.0), (10, 0.5), (20, 0.2)):
        line.note(x, y)
    value, slope = line.fit(0.0)
    assert value > 0
    assert slope == 0

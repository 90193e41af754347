"""How many guesses are worth computing."""

from collections.abc import Callable
from itertools import repeat

import pytest

from shoal.tasks.costs.chain import NO_PRICES, WindowPrices
from shoal.tasks.drafting.controller import Controller, FittedLine
from shoal.tasks.drafting.defaults import AHEAD, FLIGHT, LEAST_COST, MOST_COST, WINDOW


def priced(whole: float, cost: float, *, step_s: float = 0.01, stages: int = 4) -> Controller:
    controller = Controller(stages, WindowPrices(whole, cost, step_s))
    controller.begun = True
    return controller


def measured(whole: float, cost: float) -> Controller:
    """Return a controller that was told nothing, and has measured."""
    controller = Controller(4, NO_PRICES)
    controller.begun = True
    for vain in (0, 8, 0, 16, 0, 4) * 10:
        controller.note_round(whole + vain * cost, vain)
    return controller


def rate(chance: float, whole: float, cost: float, count: int) -> float:
    """Return the tokens per second with some guesses in flight."""
    tokens = sum(chance**number for number in range(count + 1))
    return tokens / (whole + count * cost)


@pytest.mark.parametrize("made", [priced, measured])
@pytest.mark.parametrize("chance", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("cost", [0.002, 0.01, 0.05])
def test_the_best_number_is_found_by_predictions_and_by_measurements(
    chance: float, cost: float, made: Callable[[float, float], Controller]
) -> None:
    found = made(0.2, cost).ahead(repeat(chance)).guesses
    best = max(rate(chance, 0.2, cost, count) for count in range(AHEAD + 1))
    assert rate(chance, 0.2, cost, found) > 0.98 * best
    assert 0 <= found < AHEAD


def test_nothing_is_guessed_where_rows_are_dear_or_guesses_bad() -> None:
    assert measured(0.2, 0.25).ahead(repeat(0.9)).guesses == 0
    assert priced(0.2, 0.01).ahead(repeat(0.04)).guesses == 0
    assert priced(0.2, 0.01).ahead([]).guesses == 0


def test_nothing_is_guessed_before_the_first_token_or_without_any_price() -> None:
    controller = priced(0.2, 0.01)
    controller.begun = False
    assert controller.ahead(repeat(0.9)).guesses == 0
    controller = Controller(4, NO_PRICES)
    controller.begun = True
    assert controller.ahead(repeat(0.9)).guesses == 0
    controller.note_round(0.2, 0)
    assert controller.ahead(repeat(0.9)).guesses > 3


@pytest.mark.parametrize("claimed", [0.0, 0.0001, 0.03, 1e6])
def test_measured_rounds_correct_a_wrong_prediction(claimed: float) -> None:
    """Good guesses are tried whatever a member claims, and then the price is measured."""
    controller = priced(0.2, claimed)
    assert controller.ahead(repeat(0.9)).guesses >= 1
    for wrong in (True, False) * 40:
        vain = controller.ahead(repeat(0.9)).guesses if wrong else 0
        controller.note_round(0.2 + vain * 0.01, vain)
    right = measured(0.2, 0.01).ahead(repeat(0.8)).guesses
    assert controller.ahead(repeat(0.8)).guesses == pytest.approx(right, abs=2)


def test_a_price_is_bounded() -> None:
    dear, dearer = priced(0.2, 0.2 * MOST_COST), priced(0.2, 1e9)
    assert dear.ahead(repeat(0.9)).guesses == dearer.ahead(repeat(0.9)).guesses >= 1
    cheap, free = priced(0.2, 0.2 * LEAST_COST), priced(0.2, 1e-12)
    assert cheap.ahead(repeat(0.8)).guesses == free.ahead(repeat(0.8)).guesses


def test_bounds() -> None:
    for controller in (measured(0.2, 0.0), priced(0.2, 0.0), priced(0.2, 1e-9)):
        for count in range(1, AHEAD + 9):
            guesses, window = controller.ahead(repeat(1.0, count))
            assert guesses == min(count, AHEAD)
            assert 1 <= window <= min(WINDOW, guesses)
            assert window * FLIGHT >= guesses
    single = priced(0.2, 0.001, stages=1)
    assert single.ahead(repeat(1.0, 20)) == (20, 20), "one message"


def test_windows_are_short_where_rows_are_dear_and_long_where_steps_are() -> None:
    chances = [0.9] * 16
    lengths = [
        priced(0.2, row, step_s=step).ahead(chances).window
        for row, step in ((0.004, 0.008), (0.001, 0.008), (0.001, 0.064))
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1] == 16


def test_fewer_guesses_when_the_load_grows_and_more_when_it_ends() -> None:
    controller = measured(0.2, 0.002)
    free = controller.ahead(repeat(0.8)).guesses
    for vain in (0, 8, 16, 4) * 20:
        controller.note_round(0.2 + vain * 0.05, vain)
    loaded = controller.ahead(repeat(0.8)).guesses
    for vain in (0, 4, 2, 1) * 40:
        controller.note_round(0.2 + vain * 0.002, vain)
    assert loaded < free / 2
    assert controller.ahead(repeat(0.8)).guesses > loaded


def test_a_line_is_never_negative() -> None:
    line = FittedLine()
    assert not line.known
    for x, y in ((0, 1.0), (10, 0.5), (20, 0.2)):
        line.note(x, y)
    value, slope = line.fit(0.0)
    assert value > 0
    assert slope == 0

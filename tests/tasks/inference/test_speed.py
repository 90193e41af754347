"""The speed of a served shard: what was measured after loading, corrected by measured steps."""

import pytest

from shoal.tasks.costs.shardcosts import ShardCosts
from shoal.tasks.costs.steps import MANY
from shoal.tasks.inference.speed import ServedSpeed

COSTS = ShardCosts(0.008, 0.002, 1e-7)


def test_the_speed_is_known_before_the_first_token() -> None:
    assert ServedSpeed(COSTS).tokens_per_s == pytest.approx(100)
    assert ServedSpeed(COSTS).costs == pytest.approx(COSTS)
    assert ServedSpeed().tokens_per_s == 0
    assert ServedSpeed(COSTS).error.samples == 0


def test_measured_steps_correct_texts_and_prompts_apart() -> None:
    speed = ServedSpeed(COSTS)
    for _ in range(20):
        speed.note(1, 0.010, 0.020)
        speed.note(MANY, 0.136, 0.068)
    assert speed.tokens_per_s == pytest.approx(50)
    step_s, row_s, pair_s = speed.costs
    assert step_s + row_s == pytest.approx(0.020)
    assert step_s + MANY * row_s == pytest.approx(0.068)
    assert pair_s == pytest.approx(0.5e-7)
    assert speed.error.mean == pytest.approx(0)
    assert speed.error.samples == 38


def test_steps_that_no_clock_can_show_change_nothing() -> None:
    speed = ServedSpeed(COSTS)
    for bad in (float("nan"), float("inf"), 0.0, -1.0):
        speed.note(1, 0.01, bad)
        speed.note(1, bad, 0.01)
    assert speed.costs == pytest.approx(COSTS)


def test_published_costs_are_wrong_once_steps_take_much_longer() -> None:
    speed = ServedSpeed(COSTS)
    assert not speed.differs(COSTS)
    for _ in range(20):
        speed.note(1, 0.010, 0.0115)
    assert not speed.differs(COSTS)
    for _ in range(20):
        speed.note(1, 0.010, 0.020)
    assert speed.differs(COSTS) and not speed.differs(speed.costs)
    assert not ServedSpeed().differs(ServedSpeed().costs)

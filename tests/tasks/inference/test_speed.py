"""The decode speed is a mean over many tokens."""

import pytest

from shoal.tasks.defaults import SPEED_STEPS
from shoal.tasks.inference.speed import DecodeSpeed


def test_no_speed_is_reported_before_enough_measurements() -> None:
    speed = DecodeSpeed()
    for _ in range(SPEED_STEPS - 1):
        speed.note(0.01)
    assert speed.tokens_per_s == 0.0
    speed.note(0.01)
    assert speed.tokens_per_s == pytest.approx(100)


def test_times_that_are_not_positive_are_ignored() -> None:
    speed = DecodeSpeed()
    for seconds in [0.0, -1.0, *[0.1] * SPEED_STEPS]:
        speed.note(seconds)
    assert speed.tokens_per_s == pytest.approx(10)


def test_it_follows_changes_but_not_a_single_step() -> None:
    speed = DecodeSpeed()
    for _ in range(200):
        speed.note(0.01)
    speed.note(0.1)
    assert 80 < speed.tokens_per_s < 100
    for _ in range(400):
        speed.note(0.02)
    assert speed.tokens_per_s == pytest.approx(50, rel=0.02)

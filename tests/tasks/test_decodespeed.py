"""How fast a shard is."""

import pytest

from shoal.tasks.decodespeed import DecodeSpeed
from shoal.tasks.defaults import SPEED_STEPS


def test_nothing_is_told_before_enough_was_measured() -> None:
    speed = DecodeSpeed()
    for _ in range(SPEED_STEPS - 1):
        speed.note(0.01)
    assert speed.tokens_per_s == 0.0
    speed.note(0.01)
    assert speed.tokens_per_s == pytest.approx(100)


def test_what_no_clock_measured_does_not_count() -> None:
    speed = DecodeSpeed()
    for seconds in [0.0, -1.0, *[0.1] * SPEED_STEPS]:
        speed.note(seconds)
    assert speed.tokens_per_s == pytest.approx(10)


def test_it_follows_and_one_step_does_not_move_it_much() -> None:
    speed = DecodeSpeed()
    for _ in range(200):
        speed.note(0.01)
    speed.note(0.1)
    assert 80 < speed.tokens_per_s < 100
    for _ in range(400):
        speed.note(0.02)
    assert speed.tokens_per_s == pytest.approx(50, rel=0.02)

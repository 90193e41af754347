"""Tests of the deadline for a chain's next message."""

import pytest

from shoal.tasks.inference.surviving.pace import Pace


def heard(*gaps: float) -> Pace:
    pace, now = Pace(0.0), 0.0
    for gap in gaps:
        now += gap
        pace.note(now)
    return pace


def test_the_wait_for_the_first_message_predicts_nothing() -> None:
    pace = heard(40.0)
    assert not pace.known and pace.deadline == 1.0


def test_the_deadline_is_eight_times_the_longest_of_the_latest_gaps() -> None:
    assert heard(9.0, 0.5).deadline == 4.0
    assert heard(9.0, 0.01).deadline == 1.0
    assert heard(9.0, 0.5, *[0.001] * 4).deadline == pytest.approx(8 * 0.5 * 0.9**4)


def test_one_pause_does_not_hide_the_next_one() -> None:
    assert heard(1.0, 0.1, 100.0).deadline == pytest.approx(1.6)

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


def texted(predicted: float, *gaps: float) -> Pace:
    pace, now = Pace(0.0), 0.0
    pace.token_s = predicted
    for gap in (1.0, *gaps):
        now += gap
        pace.note(now, token=True)
    return pace


def test_a_chain_crawls_that_sends_a_token_before_each_deadline() -> None:
    assert not texted(0.02, *[0.9] * 5).crawls
    assert texted(0.02, *[0.9] * 6).crawls
    assert texted(0.02, *[0.9, 0.9, 0.02] * 4).crawls, "a few quick tokens hide nothing"


def test_a_chain_may_take_eight_times_what_was_predicted() -> None:
    assert not texted(0.02, *[0.16] * 100).crawls
    assert not texted(0.2, *[1.6] * 100).crawls
    assert not texted(0.0, *[0.9] * 100).crawls, "nothing was predicted"


def test_a_pause_does_not_make_a_chain_crawl() -> None:
    assert not texted(0.02, *[30.0, *[0.02] * 9] * 9).crawls
    pace = Pace(0.0)
    pace.token_s = 0.001
    for now in range(100):
        pace.note(float(now))  # progress in a prompt
    assert not pace.crawls

"""Predictions of a stage: the delay of a prompt, and when there is room."""

import pytest

from shoal.tasks.engine.scheduler import Scheduler
from shoal.tasks.engine.scheduling.costs import StepCosts
from shoal.tasks.engine.scheduling.shares import Share
from shoal.tasks.routing.defaults import ROOM_LONGEST
from shoal.tasks.routing.waiting import (
    AnswerLength,
    Pending,
    StepTimes,
    rows_until_done,
    seconds_until_room,
)


def test_an_empty_stage_computes_only_the_prompt() -> None:
    assert rows_until_done([], "a", 100) == 100


def test_prompts_of_one_gateway_share_its_time() -> None:
    assert rows_until_done([Pending("a", 1000)], "a", 100) == pytest.approx(200)
    assert rows_until_done([Pending("a", 50)], "a", 100) == pytest.approx(150)


def test_a_gateway_with_many_prompts_gets_no_more_than_another() -> None:
    """Without the division by gateways, a flood of ten prompts would make it 1,100."""
    flood = [Pending("flood", 10_000)] * 10
    assert rows_until_done(flood, "a", 100) == pytest.approx(200)
    assert rows_until_done(flood, "flood", 100) == pytest.approx(1100)


def test_a_delay_is_about_what_the_scheduler_makes_of_it() -> None:
    """Four prompts of two gateways, and then a fifth, in the engine's own steps."""
    costs = StepCosts(1e-4, 1e-3, 0.0)
    left = {"a": [30_000, 20_000], "b": [40_000], "c": [15_000]}
    pending = [Pending(gateway, rows) for gateway, prompts in left.items() for rows in prompts]
    scheduler = Scheduler()
    shares: dict[Share, int] = {}
    for gateway, rows in (*pending, ("b", 10_000)):
        share = scheduler.join(gateway, costs)
        scheduler.want(share, rows, 0, decode=False)
        shares[share] = rows
    newest, took = share, 0.0
    while shares[newest]:
        chosen = scheduler.plan()
        took += sum(each.charged for each, _ in chosen)
        for each, rows in chosen:
            shares[each] -= rows
            scheduler.want(each, shares[each], 0, decode=False) if shares[each] else (
                scheduler.leave(each)
            )
    times = StepTimes(costs.row)
    assert 10.0 + times.wait(pending, 0, "b", 10_000) == pytest.approx(took, rel=0.1)


def test_measured_times_replace_predicted_ones() -> None:
    times = StepTimes(row_s=1e-6)
    times.note_prompt(100, 1.0)
    assert times.row_s == pytest.approx(0.01)
    times.note_prompt(100, 2.0)
    assert 0.01 < times.row_s < 0.02
    times.note_prompt(100, -1.0)
    assert times.row_s > 0


def test_texts_leave_prompts_a_part_of_each_step() -> None:
    times = StepTimes(1e-3, 0.05)
    assert times.prompt_share(0) == 1.0
    assert times.prompt_share(3) == pytest.approx(0.5)
    assert times.wait([], 3, "a", 100) == pytest.approx(0.1)
    assert times.pace(1, prompts=1) == pytest.approx(0.1)
    assert times.pace(1, prompts=0) == 0.05
    assert StepTimes(1e-3, 0.002).prompt_share(1) == pytest.approx(0.9)  # steps of at least 20 ms


def test_room_comes_when_enough_sessions_have_ended() -> None:
    ends = [(5.0, 10), (2.0, 10), (9.0, 10)]
    assert seconds_until_room(4, 4, ends) == 0
    assert seconds_until_room(10, 4, ends) == 2.0
    assert seconds_until_room(20, 4, ends) == 5.0
    assert seconds_until_room(340, 4, ends) == pytest.approx(90.0)  # ten times as many
    assert seconds_until_room(1, 0, []) == ROOM_LONGEST
    assert seconds_until_room(10**9, 0, ends) == ROOM_LONGEST


def test_the_length_of_answers_is_measured() -> None:
    length = AnswerLength()
    for _ in range(50):
        length.note(20)
    length.note(0)
    assert length.tokens == pytest.approx(20, rel=0.01)

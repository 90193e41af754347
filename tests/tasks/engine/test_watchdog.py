"""Tests of the deadline for a worker's next frame."""

import pytest

from shoal.tasks.costs.shardcosts import ShardCosts
from shoal.tasks.engine.interface import Loaded, Span
from shoal.tasks.engine.watchdog import Watchdog

TEXT = Span(b"s" * 16, 1, 40, 1)
PROMPT = Span(b"s" * 16, 1, 0, 40)


def a_dog(step: float = 0.001) -> Watchdog:
    dog = Watchdog(0.0)
    dog.loaded(0, Loaded(1, 1, 0.0, frozenset(), "", ShardCosts(step, 0.0, 0.0)))
    return dog


def test_a_worker_without_work_is_not_watched() -> None:
    dog = a_dog()
    assert not dog.active(0.0)
    dog.submitted(TEXT, 100.0)
    assert dog.active(159.0) and not dog.active(160.0)


def test_a_worker_is_silent_one_second_after_a_span_of_a_text() -> None:
    dog = a_dog()
    dog.submitted(TEXT, 100.0)
    assert not dog.is_due(100.4) and dog.is_due(100.5)
    assert not dog.is_silent(101.0)  # it was not asked
    dog.pinged = True
    assert not dog.is_silent(100.9) and dog.is_silent(101.0)
    assert not dog.is_hung(109.9) and dog.is_hung(110.0)


def test_any_frame_is_a_sign_of_life() -> None:
    dog = a_dog()
    dog.submitted(TEXT, 100.0)
    dog.pinged = True
    dog.heard(100.9)
    assert not dog.is_silent(101.0) and not dog.pinged


def test_prompts_and_slow_machines_have_more_time() -> None:
    dog = a_dog()
    dog.submitted(PROMPT, 100.0)
    assert dog.deadline == 4.0
    dog.answered(PROMPT.session, 101.0)
    assert dog.deadline == 1.0
    assert a_dog(0.5).deadline == 16.0


@pytest.mark.parametrize("name", ["load", "adapt", "export", "import"])
def test_long_requests_are_no_silence(name: str) -> None:
    dog = a_dog()
    dog.submitted(TEXT, 100.0)
    dog.wait(name, 1, 100.0)
    dog.pinged = True
    assert not dog.is_silent(150.0)
    dog.wait(name, -1, 150.0)
    dog.pinged = True
    assert not dog.is_silent(150.9) and dog.is_silent(151.0)


def test_a_session_that_is_opened_is_watched_too() -> None:
    dog = a_dog()
    dog.expect(100.0)
    dog.pinged = True
    assert dog.active(100.0) and dog.is_silent(101.0)

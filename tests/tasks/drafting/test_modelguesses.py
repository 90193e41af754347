"""Guesses of a smaller model, and the text that they follow."""

import pytest
import trio

from shoal.tasks.drafting.defaults import SAID_BEHIND, SAID_LEAST, SAID_MOST
from shoal.tasks.drafting.modelguesses import ModelGuesses


class Cancelled:
    """Counts how often the present answer was cancelled."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def guessed(*tokens: int) -> tuple[ModelGuesses, Cancelled]:
    """Return guesses behind the prompt 1, 2, while their answer goes on."""
    said, cancel = ModelGuesses([1, 2]), Cancelled()
    assert said.begin(cancel) == [1, 2]
    assert all(said.add(token) for token in tokens)
    return said, cancel


def test_guesses_follow_those_before_them() -> None:
    said, _ = guessed(3, 4, 5, 6)
    assert said.behind([], 2) == [3, 4]
    assert said.behind([3, 4], 9) == [5, 6]
    assert said.behind([3, 9], 9) == []
    assert said.behind([3, 4, 5, 6], 9) == []


def test_right_guesses_stay_and_a_wrong_one_ends_the_answer() -> None:
    said, cancel = guessed(3, 4, 5, 6)
    said.take(3)
    assert said.behind([], 9) == [4, 5, 6] and cancel.times == 0
    said.take(9)
    assert said.behind([], 9) == [] and cancel.times == 1
    assert not said.add(7), "a token of the answer that was ended"
    assert said.begin(cancel) == [1, 2, 3, 9]
    assert said.add(8) and said.behind([], 9) == [8]


def test_an_answer_goes_on_behind_its_guesses() -> None:
    said, cancel = guessed(3, 4)
    said.end(stopped=False)
    said.take(3)
    assert said.begin(cancel) == [1, 2, 3, 4]
    assert said.add(5) and said.behind([], 9) == [4, 5]


def test_a_slow_model_follows_the_text() -> None:
    """Tokens that the session has said in the meantime are compared, not guessed."""
    said, cancel = guessed()
    said.take(3)
    said.take(4)
    assert said.add(3) and said.behind([], 9) == []
    assert said.add(4) and said.add(5) and said.behind([], 9) == [5]
    said, _ = guessed()
    said.take(3)
    assert not said.add(9)
    assert cancel.times == 0


def test_a_model_that_is_far_behind_reads_the_text_instead() -> None:
    said, cancel = guessed()
    for token in range(SAID_BEHIND):
        said.take(token)
    assert cancel.times == 0
    said.take(99)
    assert cancel.times == 1


@pytest.mark.trio
async def test_the_better_the_guesses_the_more_are_made(autojump_clock: object) -> None:
    said, cancel = guessed(*range(3, 3 + SAID_MOST))
    unknown = ModelGuesses([1, 2])
    few = await unknown.wanted()
    for token in range(3, 3 + SAID_MOST):
        said.take(token)
    many = await said.wanted()
    assert SAID_LEAST < few < many <= SAID_MOST
    said.begin(cancel)
    for token in range(many):
        said.add(token)
    with trio.move_on_after(1) as scope:
        await said.wanted()
    assert scope.cancelled_caught, "there are enough"


@pytest.mark.trio
async def test_nothing_is_said_behind_the_end_of_a_text(autojump_clock: object) -> None:
    """Until the session turns out to go on otherwise."""
    said, _ = guessed(3)
    said.end(stopped=True)
    with trio.move_on_after(1) as scope:
        await said.wanted()
    assert scope.cancelled_caught
    said.take(9)
    assert await said.wanted() > 0


def test_a_model_that_is_mostly_wrong_is_no_use() -> None:
    said, cancel = ModelGuesses([]), Cancelled()
    assert said.useful
    for _ in range(20):
        said.begin(cancel)
        said.add(1)
        said.take(2)
    assert not said.useful

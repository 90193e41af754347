"""Fed tokens and windows at the first stage."""

from random import Random

import pytest

from shoal.tasks.drafting.defaults import AHEAD, KNOWN
from shoal.tasks.drafting.inputs import Inputs, Work


def test_a_window_that_was_right_leaves_nothing_to_compute() -> None:
    inputs = Inputs(10)
    assert inputs.window(0, 10, (1, 2, 3)) == Work(10, (1, 2, 3))
    assert inputs.feed(10, 1) is None
    assert inputs.feed(12, 3) is None
    assert inputs.feed(13, 4) == Work(13, (4,))
    assert inputs.branch == 0


def test_a_wrong_draft_begins_a_branch_and_voids_what_is_behind_it() -> None:
    inputs = Inputs(10)
    inputs.window(0, 10, (1, 2, 3))
    inputs.window(0, 13, (4, 5))
    assert inputs.feed(11, 9) == Work(11, (9,))
    assert (inputs.branch, inputs.end) == (11, 12)
    assert inputs.window(0, 15, (6,)) is None
    assert inputs.window(0, 12, (6,)) is None, "it was drafted behind the wrong token"
    assert inputs.window(11, 11, (9, 7)) == Work(12, (7,))


def test_the_gateway_may_know_of_a_wrong_draft_first() -> None:
    inputs = Inputs(10)
    inputs.window(0, 10, (1, 2, 3))
    assert inputs.window(11, 11, (9, 7)) == Work(11, (9, 7))
    assert inputs.feed(11, 9) is None
    assert inputs.window(0, 13, (4,)) is None


def test_a_token_that_is_fed_before_its_window_arrives_voids_the_window() -> None:
    inputs = Inputs(10)
    assert inputs.feed(10, 1) == Work(10, (1,))
    assert inputs.feed(11, 9) == Work(11, (9,))
    assert inputs.window(0, 10, (1, 2, 3)) is None
    assert inputs.window(0, 12, (4,)) is None, "the branch has ended"
    assert inputs.window(11, 11, (9, 5)) == Work(12, (5,))


def test_overlaps_gaps_and_distances() -> None:
    inputs = Inputs(10)
    assert inputs.window(0, 11, (1,)) is None, "a gap"
    assert inputs.window(0, 10, (1, 2)) == Work(10, (1, 2))
    assert inputs.window(0, 10, (1, 2)) is None
    assert inputs.window(0, 11, (2, 3)) == Work(12, (3,))
    many = tuple(range(1000))
    work = inputs.window(0, 13, many)
    assert work is not None and inputs.end == 10 + AHEAD
    assert inputs.window(0, inputs.end, (1,)) is None
    assert inputs.window(10**6, 10**6, (1,)) is None, "a branch that does not exist"


@pytest.mark.parametrize("position", [0, 9, 10, 14, 10**6])
def test_a_head_cannot_feed_where_it_cannot_have_chosen(position: int) -> None:
    inputs = Inputs(10)
    inputs.feed(10, 1)
    inputs.window(0, 11, (2, 3))
    before = inputs.end, inputs.branch
    with pytest.raises(ValueError, match="is not among 11 to 13"):
        inputs.feed(position, 5)
    assert (inputs.end, inputs.branch) == before


def test_little_is_remembered_of_a_long_text() -> None:
    inputs = Inputs(10)
    for position in range(10, 5000):
        inputs.feed(position, position)
    assert len(inputs.tokens) <= KNOWN + 1


def test_whatever_arrives_in_whatever_order_the_text_is_computed_once_in_order() -> None:
    """A gateway, a head and links with random delays, against the text."""
    for seed in range(200):
        random = Random(seed)
        text = [random.randrange(3) for _ in range(60)]
        inputs, computed = Inputs(0), list[int]()
        fed, branch, sent, known = 0, 0, 0, 0
        to_stage: list[tuple[int, int, list[int]]] = []
        guesses: list[int] = []
        while fed < len(text):
            if random.random() < 0.5 and known < len(text):  # the gateway drafts
                start = max(sent, known - 1, 0)
                guesses = guesses[: max(0, sent - known)]
                more = [random.randrange(3) for _ in range(random.randrange(1, 5))]
                line = [*text[:known], *guesses, *more][: len(text)]
                to_stage.append((branch, start, line[start:]))
                guesses, sent = line[known:], len(line)
            if random.random() < 0.5 and to_stage:
                apply(computed, inputs.window(*to_stage.pop(0)))
            if random.random() < 0.4 and len(computed) >= fed:  # the head
                right = next(
                    (at for at in range(fed, len(computed)) if computed[at] != text[at]),
                    len(computed),
                )
                at = min(right, len(text) - 1)
                apply(computed, inputs.feed(at, text[at]))
                assert computed[: at + 1] == text[: at + 1]
                fed = at + 1
            if known < fed and random.random() < 0.6:  # the gateway hears
                if guesses and guesses.pop(0) != text[known]:
                    guesses, branch, sent = [], known, known
                known += 1
        assert computed[: len(text)] == text


def apply(computed: list[int], work: Work | None) -> None:
    if work is not None:
        assert work.start <= len(computed)
        computed[work.start :] = work.tokens

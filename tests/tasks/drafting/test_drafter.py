"""Guesses from what was said before."""

import time
from random import Random
from sys import getsizeof

from shoal.tasks.drafting.defaults import HISTORY_TOKENS
from shoal.tasks.drafting.drafter import Accuracy, Drafter, Histories, kind_of
from shoal.tasks.drafting.suffixes import History, SuffixIndex


def tokens(drafter: Drafter, most: int = 8, behind: list[int] | None = None) -> list[int]:
    return [guess.token for guess in drafter.draft(behind or [], most)]


def test_what_followed_before_is_guessed() -> None:
    drafter = Drafter()
    drafter.extend([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3])
    assert tokens(drafter, 4) == [4, 5, 6, 7]
    assert tokens(drafter, 4, [4, 5]) == [6, 7, 8, 9]
    assert tokens(drafter, 4, [99]) == []


def test_what_repeats_is_followed_beyond_the_end() -> None:
    drafter = Drafter()
    drafter.extend([1, 2, 3, 1, 2, 3])
    assert tokens(drafter, 7) == [1, 2, 3, 1, 2, 3, 1]


def test_the_longest_match_wins_and_most_places_decide() -> None:
    drafter = Drafter()
    drafter.extend([5, 6, 1, 2, 7, 8, 1, 2, 9, 5, 6, 1, 2])
    assert tokens(drafter, 1) == [7]
    drafter = Drafter()
    drafter.extend([1, 2, 7, 1, 2, 9, 1, 2, 7, 3, 1, 2])
    assert tokens(drafter, 2) == [7, 3]  # the latest of two
    (guess,) = drafter.draft([], 1)
    assert guess.kind == kind_of(2, agreed=False)


def test_matches_equal_those_of_a_search() -> None:
    random = Random(1)
    text = [random.randrange(4) for _ in range(400)]
    index = SuffixIndex()
    for first in range(0, 400, 7):
        index.extend(text[first : first + 7])
    for _ in range(100):
        context = [random.randrange(4) for _ in range(6)]
        length, places = index.places(context)
        longest = max(
            size for size in range(7) if any(
                text[at : at + size] == context[6 - size :] for at in range(400 - size)
            )
        )  # fmt: skip
        assert length <= longest
        assert all(text[place - length : place] == context[6 - length :] for place in places)
        assert (length > 0) == (longest > 0)


def test_a_short_text_takes_little_memory_and_a_long_one_is_found_through_growth() -> None:
    index = SuffixIndex()
    index.extend(range(100))
    assert sum(map(getsizeof, index.latest)) < 16_384
    random = Random(2)
    text = [random.randrange(1000) for _ in range(9000)]
    index = SuffixIndex()
    for first in range(0, 9000, 1000):
        index.extend(text[first : first + 1000])
        for at in range(100, first + 900, 700):
            length, places = index.places(text[at : at + 8])
            assert length == 8 and at + 8 in places


def test_a_users_history_helps_and_no_other_users() -> None:
    histories = Histories()
    history, _ = histories.of("alice", "model")
    history.extend([1, 2, 3, 4, 5, 6])
    for user, model, expected in (
        ("alice", "model", [4, 5, 6]),
        ("bob", "model", []),
        ("alice", "other", []),
    ):
        drafter = Drafter(histories.of(user, model)[0])
        drafter.extend([9, 2, 3])
        assert tokens(drafter) == expected


def test_memory_is_bounded() -> None:
    histories = Histories(most=3)
    for number in range(10):
        histories.of(f"user {number}", "model")
    assert len(histories.found) == 3
    history = History(1000)
    for _ in range(100):
        history.extend(list(range(450)))
        assert len(history) <= 1000
    history.extend(list(range(10**4)))
    assert len(history) <= 1000


def test_a_session_that_begins_like_the_one_before_is_remembered_once() -> None:
    history = History(1000)
    assert history.common([1, 2, 3]) == 0
    assert history.common([1, 2, 3, 4]) == 3
    assert history.common([1, 2, 5]) == 2
    assert history.common([]) == 0


def test_probabilities_follow_what_was_right() -> None:
    accuracy = Accuracy()
    before = accuracy.probability(9)
    for _ in range(50):
        accuracy.note(9, right=True)
        accuracy.note(7, right=False)
    assert accuracy.probability(9) > 0.9 > before > 0.3
    assert accuracy.probability(7) < 0.1
    assert accuracy.probability(kind_of(1, agreed=True)) < accuracy.probability(
        kind_of(32, agreed=True)
    )


def test_guessing_takes_time_that_does_not_grow_with_the_text() -> None:
    """CPU time of 16 guesses behind a short and behind a long text."""
    times = []
    for size in (2000, HISTORY_TOKENS // 2):
        random, drafter = Random(1), Drafter()
        drafter.extend([random.randrange(50) for _ in range(size)])
        began = time.process_time()
        for _ in range(200):
            drafter.draft([random.randrange(50), random.randrange(50)], 16)
        times.append(time.process_time() - began)
    assert times[1] < 4 * times[0] + 0.05

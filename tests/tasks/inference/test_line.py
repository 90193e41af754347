"""Requests that wait for room, and those that are refused with the seconds."""

import pytest

from shoal.tasks.defaults import BACK_FRESH, MEMORY_PATIENCE
from shoal.tasks.errors import Overloaded
from shoal.tasks.inference.line import Line, RoomRequest, overloaded

ROOT = "ab" * 32


def test_requests_stand_in_the_order_of_arrival_by_model() -> None:
    line, places = (
        Line(),
        [RoomRequest(ROOT), RoomRequest(ROOT), RoomRequest("cd" * 32), RoomRequest(ROOT)],
    )
    for place in places[:3]:
        line.join(place)
    line.join(places[0])  # it keeps its place
    assert [line.ahead(place) for place in places] == [0, 1, 0, 2]
    line.leave(places[0])
    assert [line.ahead(place) for place in places[1:]] == [0, 0, 1]
    line.leave(places[0])


def test_whoever_would_wait_too_long_is_told_for_how_long() -> None:
    line, places = Line(), [RoomRequest(ROOT) for _ in range(10)]
    for place in places:
        line.join(place)
    line.told(ROOT, 10.0, 0, now=0.0)  # ten seconds for each
    for place in places[: int(MEMORY_PATIENCE // 10)]:
        line.check(place, 0.0)
    with pytest.raises(Overloaded) as caught:
        line.check(places[9], 0.0)
    assert (caught.value.code, caught.value.retry_s) == ("overloaded", 100)
    assert caught.value.hint == "try again in 100 seconds"
    line.check(places[9], BACK_FRESH)  # it was said too long ago


def test_refused_requests_come_back_one_after_another() -> None:
    line, told = Line(), list[int]()
    line.told(ROOT, 40.0, 0, now=0.0)
    for _ in range(3):
        with pytest.raises(Overloaded) as caught:
            line.check(RoomRequest(ROOT), 1.0)
        told.append(caught.value.retry_s)
    assert told == [40, 80, 120]
    line.told(ROOT, 40.0, 0, now=100.0)  # two of them were to be back by now
    with pytest.raises(Overloaded) as caught:
        line.check(RoomRequest(ROOT), 100.0)
    assert caught.value.retry_s == 80


def test_a_reply_for_a_place_further_behind_counts_for_each_before_it() -> None:
    line, places = Line(), [RoomRequest(ROOT) for _ in range(4)]
    for place in places:
        line.join(place)
    line.told(ROOT, 40.0, 3, now=0.0)
    assert [line.back(place, 1.0) for place in places] == [10.0, 20.0, 30.0, 40.0]


@pytest.mark.parametrize(("seconds", "told"), [(0.0, 1), (1.2, 2), (1e9, 3600)])
def test_the_seconds_are_whole_and_bounded(seconds: float, told: int) -> None:
    assert overloaded(seconds, "why").retry_s == told

"""Tests of what a stage lacks, asks for and gives after its chain was changed."""

import pytest

from shoal.tasks.errors import SessionError
from shoal.tasks.inference.surviving.continuing import Continuation
from shoal.tasks.inference.surviving.rebuilding import Rebuilding


def test_a_stage_asks_for_one_range_after_another() -> None:
    lack = Rebuilding(100, 20)
    assert lack.lacks and lack.ask(50) == (20, 70)
    assert lack.ask(50) is None  # nothing has arrived
    assert lack.takes(20, 30, token=False) and lack.ask(50) is None
    assert lack.takes(50, 20, token=False) and lack.ask(50) == (70, 100)
    assert lack.takes(70, 30, token=False)
    assert not lack.lacks and lack.ask(50) is None


@pytest.mark.parametrize(
    ("start", "count", "token"), [(21, 5, False), (19, 5, False), (20, 81, False), (20, 5, True)]
)
def test_spans_that_were_not_asked_for_are_ignored(start: int, count: int, token: bool) -> None:
    lack = Rebuilding(150, 20)
    lack.ask(80)
    assert not lack.takes(start, count, token=token)
    assert lack.takes(20, 80, token=False)


def test_a_stage_that_lacks_nothing_takes_everything() -> None:
    assert Rebuilding(100, 100).takes(40, 7, token=True)


def test_the_next_stage_gets_each_range_once() -> None:
    lack = Rebuilding(100, 100)
    lack.want(10, 60, 4096)
    assert lack.wanted == (10, 60)
    lack.gave(60)
    lack.want(60, 100, 4096)
    assert lack.wanted == (60, 100)
    lack.want(0, 100, 4096)  # a fresh start
    for start, stop in ((0, 100), (60, 100), (100, 101)):
        with pytest.raises(SessionError):
            lack.want(start, stop, 4096)


def test_the_next_stage_may_begin_anew_once() -> None:
    lack = Rebuilding(100, 100)
    lack.want(50, 100, 4096)
    lack.want(0, 40, 4096)
    assert lack.wanted == (0, 40)
    with pytest.raises(SessionError):
        lack.want(0, 40, 4096)


@pytest.mark.parametrize(("start", "stop"), [(0, 101), (0, 90), (99, 2**24)])
def test_impossible_ranges_are_refused(start: int, stop: int) -> None:
    with pytest.raises(SessionError):
        Rebuilding(100, 100).want(start, stop, 64)


def test_where_outputs_pass_through_no_more_is_asked_for_than_the_next_stage_wants() -> None:
    lack = Rebuilding(100, 100)
    lack.want(10, 40, 4096)
    assert lack.rewind(10) and lack.through
    assert lack.ask(50) == (10, 40)
    assert lack.takes(10, 30, token=False)
    assert lack.ask(50) is None
    lack.want(40, 100, 4096)
    assert lack.ask(50) == (40, 90)


def test_a_gateway_knows_when_all_is_rebuilt() -> None:
    rest = Continuation(100)
    rest.note(1, 40)
    rest.note(2, 100)
    assert rest.lacking == {1}
    assert rest.built(1, 70) and not rest.built(1, 70) and not rest.built(1, 101)
    assert rest.built(1, 100) and not rest.lacking

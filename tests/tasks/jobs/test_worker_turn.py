"""Jobs compute only without interactive requests."""

import pytest
import trio

from shoal.tasks.jobs.crew import IdleTime
from shoal.tasks.jobs.defaults import YIELD_AFTER

pytestmark = pytest.mark.trio


async def test_the_turn_comes_when_no_interactive_request_is_left(autojump_clock: object) -> None:
    waiting = [2]
    turn = IdleTime(lambda: waiting[0])
    assert turn.is_wanted

    async def answer() -> None:
        await trio.sleep(5)
        waiting[0] = 0

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        await turn.come()
        assert not turn.is_over() and not turn.is_wanted
    assert 5 <= trio.current_time() - began < 6


async def test_a_short_request_does_not_end_the_turn(autojump_clock: object) -> None:
    waiting = [0]
    turn = IdleTime(lambda: waiting[0])
    for _ in range(3):
        waiting[0] = 1
        assert not turn.is_over() and turn.is_wanted
        await trio.sleep(YIELD_AFTER / 2)
        assert not turn.is_over()
        waiting[0] = 0
        assert not turn.is_over()
    waiting[0] = 1
    assert not turn.is_over()
    await trio.sleep(YIELD_AFTER)
    assert turn.is_over()

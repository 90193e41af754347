"""Rounds of retries: a slow try does not delay the next, and concurrent tries are bounded."""

from collections.abc import Callable
from math import inf

import pytest
import trio
import trio.testing

from shoal.transport.dial.rounds import RetryRounds
from shoal.transport.host.real import RealHost

pytestmark = pytest.mark.trio


class Tries:
    """Tries with the given durations (the last one repeats), and a record of their outcomes."""

    def __init__(self, *seconds: float, succeeds: int = 1 << 30) -> None:
        self.began: list[float] = []
        self.cancelled: list[float] = []
        self._seconds = seconds
        self._succeeds = succeeds
        self._start = trio.current_time()

    async def __call__(self) -> str | None:
        number = len(self.began)
        self.began.append(self._now())
        try:
            await trio.sleep(self._seconds[min(number, len(self._seconds) - 1)])
        except trio.Cancelled:
            self.cancelled.append(self._now())
            raise
        return "found" if number >= self._succeeds else None

    def _now(self) -> float:
        return round(trio.current_time() - self._start, 3)


def rounds(
    every: Callable[[], float] = lambda: 3.0, times: Callable[[], float] = lambda: 1.0
) -> RetryRounds[str]:
    return RetryRounds(RealHost(), pause=0.5, every=every, times=times)


async def test_a_hanging_try_delays_the_next_only_for_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tries = Tries(inf, inf, 1.0, succeeds=2)
    assert await rounds().run(tries) == "found"
    assert tries.began == [0.0, 3.0, 6.0]
    assert tries.cancelled == [7.0, 7.0]


async def test_a_fourth_try_cancels_the_oldest(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tries = Tries(inf)
    with trio.move_on_after(13):
        await rounds().run(tries)
    assert tries.began == [0.0, 3.0, 6.0, 9.0, 12.0]
    assert tries.cancelled[:2] == [9.0, 12.0]


async def test_immediate_failures_are_retried_less_and_less_often(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tries = Tries(0.0)
    with trio.move_on_after(60):
        await rounds().run(tries)
    pauses = [later - sooner for sooner, later in zip(tries.began, tries.began[1:], strict=False)]
    assert pauses[0] == pytest.approx(0.5, abs=0.01)
    assert pauses[-1] == pytest.approx(3.0, abs=0.01)
    assert sorted(pauses) == pytest.approx(pauses, abs=0.01)


async def test_a_wake_up_starts_at_most_one_try_a_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tries = Tries(inf)
    search = rounds()

    async def tell(*times: float) -> None:
        for at in times:
            await trio.sleep_until(began + at)
            search.wake()

    began = trio.current_time()
    with trio.move_on_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(search.run, tries)
            nursery.start_soon(tell, 0.2, 0.3, 0.4, 2.5)
    assert tries.began == [0.0, 1.0, 2.5]


async def test_the_pace_may_change(autojump_clock: trio.testing.MockClock) -> None:
    paces = iter((3.0, 10.0, 10.0, 10.0))
    tries = Tries(inf)
    with trio.move_on_after(20):
        await rounds(lambda: next(paces)).run(tries)
    assert tries.began == [0.0, 3.0, 13.0]


async def test_all_times_may_be_longer(autojump_clock: trio.testing.MockClock) -> None:
    tries = Tries(inf)
    search = rounds(times=lambda: 4.0)
    with trio.move_on_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(search.run, tries)
            await trio.sleep(0.5)
            search.wake()
    assert tries.began == [0.0, 4.0, 16.0, 28.0]

"""Jobs compute only without interactive requests."""

import trio
import trio.testing

from shoal.tasks.jobs.crew import IdleTime


def test_the_turn_comes_when_no_interactive_request_is_left() -> None:
    waiting = [2]

    async def main() -> float:
        turn = IdleTime(lambda: waiting[0])
        assert turn.is_over()
        async with trio.open_nursery() as nursery:

            async def answer() -> None:
                await trio.sleep(5)
                waiting[0] = 0

            nursery.start_soon(answer)
            await turn.come()
            assert not turn.is_over()
        return trio.current_time()

    clock = trio.testing.MockClock(autojump_threshold=0)
    began = clock.current_time()
    assert 5 <= trio.run(main, clock=clock) - began < 6

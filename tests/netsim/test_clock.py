"""Events in order, and trio's time based on them."""

import math
import signal
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio._core import _run

from shoal.netsim import defaults
from shoal.netsim.clock import Events
from shoal.netsim.errors import NothingLeft
from shoal.netsim.world import World


def test_events_run_in_order_of_time_then_of_asking() -> None:
    events = Events()
    seen: list[Any] = []
    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (3.0, "d")):
        events.at(when, seen.append, name)
    assert len(events) == 4
    events.run_until(2.5)
    assert (seen, events.now, events.count) == (["a", "b", "c"], 2.5, 3)
    events.run_until(math.inf)
    assert (seen[-1], events.now, len(events)) == ("d", 3.0, 0)


def test_an_event_in_the_past_is_due_now_and_time_never_goes_back() -> None:
    events = Events()
    seen: list[Any] = []
    events.run_until(5.0)
    events.at(1.0, seen.append, "late")
    events.run_until(6.0)
    assert (seen, events.now) == (["late"], 6.0)


def test_reach_advances_at_once_only_if_nothing_is_due_before() -> None:
    events = Events()
    ready: list[Any] = []
    seen: list[tuple[bool, float]] = []

    def reach(when: float) -> None:
        seen.append((events.reach(when), events.now))

    events.at(1.0, reach, 1.5)
    events.at(2.0, reach, 3.0)  # another event is due at that time
    events.at(3.0, lambda _: None)
    events.at(4.0, reach, 9.0)  # later than the end of the run
    events.run_until(5.0, ready)
    assert (seen, events.now) == ([(True, 1.5), (False, 2.0), (False, 4.0)], 5.0)
    assert events.count == 5  # one reached counts as one run
    seen.clear()
    events.at(6.0, ready.append, "task")  # a task that has to run first
    events.at(6.0, reach, 6.5)
    events.run_until(math.inf, ready)
    assert (seen, events.now) == ([(False, 6.0)], 6.0)
    assert not events.reach(7.0)  # outside every run


def test_the_operating_system_is_asked_only_where_something_may_have_come() -> None:
    asked: list[float] = []
    world = World()

    async def main() -> None:
        runner = _run.GLOBAL_RUN_CONTEXT.runner
        manager: Any = type(runner.io_manager)
        simulated = manager.get_events

        def spy(self: Any, timeout: float) -> Any:
            found = simulated(self, timeout)
            if found != ():
                asked.append(timeout)
            return found

        manager.get_events = spy
        try:
            for _ in range(50):
                await trio.sleep(1)
            assert not asked
            heard = trio.Event()
            trio.lowlevel.current_trio_token().run_sync_soon(heard.set)
            await heard.wait()
            assert asked
        finally:
            manager.get_events = simulated

    world.run(main)


def test_an_event_scheduled_for_the_current_instant_runs_in_it() -> None:
    events = Events()
    seen: list[Any] = []

    def first(_: Any) -> None:
        events.at(events.now, seen.append, events.now)

    events.at(1.0, first)
    events.run_until(1.0)
    assert seen == [1.0]


def test_the_instant_that_makes_a_task_ready_is_the_last_one_run() -> None:
    events = Events()
    ready: list[Any] = []
    seen: list[Any] = []
    events.at(1.0, ready.append, "task")
    events.at(1.0, seen.append, "same instant")
    events.at(2.0, seen.append, "later")
    events.run_until(math.inf, ready)
    assert (seen, events.now) == (["same instant"], 1.0)


def test_sleeping_takes_no_real_time() -> None:
    async def main() -> float:
        await trio.sleep(80_000)
        return trio.current_time()

    assert World().run(main) == 80_000


def test_tasks_see_events_at_their_time() -> None:
    world = World()
    seen: list[tuple[str, float]] = []

    async def main() -> None:
        woken = trio.Event()
        world.events.at(2.5, lambda _: woken.set())
        await trio.sleep(1)
        seen.append(("slept", trio.current_time()))
        await woken.wait()
        seen.append(("woken", trio.current_time()))

    world.run(main)
    assert seen == [("slept", 1.0), ("woken", 2.5)]


def test_an_endless_wait_is_an_error() -> None:
    with pytest.raises(NothingLeft):
        World().run(trio.sleep_forever)


def ticking(world: World, action: Callable[[int], None]) -> None:
    """Start a timer of an hour, without a task, that runs forever; `action` gets its number."""

    def tick(number: int) -> None:
        assert number < 100 * defaults.EVENTS_PER_TURN, "it never came back"
        world.events.at(world.events.now + 3600, tick, number + 1)
        action(number)

    tick(0)


def test_timers_without_tasks_do_not_prolong_an_endless_wait() -> None:
    world = World()
    ticking(world, lambda _: None)
    with pytest.raises(NothingLeft):
        world.run(trio.sleep_forever)
    assert world.events.count <= defaults.EVENTS_PER_TURN


def test_timers_without_tasks_may_end_a_long_wait() -> None:
    """The wait does not end while a task waits for a known moment."""
    world = World()
    ticking(world, lambda _: None)

    async def main() -> float:
        await trio.sleep(5 * defaults.QUIET_S)
        return trio.current_time()

    assert world.run(main) == 5 * defaults.QUIET_S


def test_the_keyboard_interrupts_timers_without_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "QUIET_S", math.inf)
    world = World()
    ticking(world, lambda number: signal.raise_signal(signal.SIGINT) if number == 7 else None)
    with pytest.raises(KeyboardInterrupt):
        world.run(trio.sleep_forever)
    assert world.events.count <= 2 * defaults.EVENTS_PER_TURN


def test_all_tasks_blocked_is_an_instant_of_its_own() -> None:
    """Trio's testing helper: neither time nor events advance before it returns."""
    world = World()

    async def main() -> None:
        world.events.at(1.0, lambda _: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 5)
            await trio.testing.wait_all_tasks_blocked()
            assert trio.current_time() == 0.0
            nursery.cancel_scope.cancel()

    world.run(main)


def test_an_exception_of_main_is_raised_unchanged() -> None:
    async def main() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        World().run(main)

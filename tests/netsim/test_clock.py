"""Events in order, and trio's time made of them."""

import math
from typing import Any

import pytest
import trio

from shoal.netsim.clock import Events
from shoal.netsim.errors import NothingLeft
from shoal.netsim.world import World


def test_events_run_in_order_of_time_then_of_asking() -> None:
    events = Events()
    seen: list[Any] = []
    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (3.0, "d")):
        events.at(when, seen.append, name)
    assert (len(events), events.next_time()) == (4, 1.0)
    events.run_until(2.5)
    assert (seen, events.now, events.count) == (["a", "b", "c"], 2.5, 3)
    events.run_until(math.inf)
    assert (seen[-1], events.now, events.next_time()) == ("d", 3.0, math.inf)


def test_an_event_in_the_past_is_due_now_and_time_never_goes_back() -> None:
    events = Events()
    seen: list[Any] = []
    events.run_until(5.0)
    events.at(1.0, seen.append, "late")
    events.run_until(6.0)
    assert (seen, events.now) == (["late"], 6.0)


def test_what_an_event_asks_for_at_its_own_instant_runs_in_it() -> None:
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


def test_waiting_for_nothing_is_an_error() -> None:
    with pytest.raises(NothingLeft):
        World().run(trio.sleep_forever)


def test_all_tasks_blocked_is_an_instant_of_its_own() -> None:
    """Trio's testing helper: neither time nor events go on before it returns."""
    world = World()

    async def main() -> None:
        world.events.at(1.0, lambda _: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 5)
            await trio.testing.wait_all_tasks_blocked()
            assert trio.current_time() == 0.0
            nursery.cancel_scope.cancel()

    world.run(main)


def test_what_main_raises_comes_out_as_it_is() -> None:
    async def main() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        World().run(main)

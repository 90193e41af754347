"""The watchdog ends a task that never reaches a checkpoint, and no other."""

import signal
import threading

import pytest
import trio

from shoal.netsim.determinism.watchdog import _Watch, watchdog
from shoal.netsim.errors import Stuck
from shoal.netsim.world import World


def test_a_hot_loop_is_named() -> None:
    world = World()
    host = world.host("alice")
    world.patience = 0.05

    async def hot() -> None:
        while True:
            pass

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            host.start_soon(nursery, hot)

    with pytest.raises(ExceptionGroup) as caught:
        world.run(main)
    (stuck,) = caught.value.exceptions
    assert isinstance(stuck, Stuck)
    assert "alice:" in str(stuck) and "hot" in str(stuck) and "0.05 s" in str(stuck)


def test_a_busy_task_with_checkpoints_is_not_interrupted() -> None:
    """It runs far longer than it may occupy the processor, but in many steps."""
    world = World()
    world.patience = 0.04

    async def main() -> None:
        for _ in range(150):
            sum(range(50_000))  # about a millisecond
            await trio.lowlevel.checkpoint()

    world.run(main)


def test_time_outside_of_tasks_does_not_count() -> None:
    watch = _Watch(1.0)
    for _ in range(99):
        watch.look(signal.SIGALRM, None)


def test_it_is_off_where_it_is_unsupported() -> None:
    def in_a_thread() -> None:
        with watchdog(1.0):
            timers.append(signal.getitimer(signal.ITIMER_REAL))

    timers: list[tuple[float, float]] = []
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    with watchdog(0):
        timers.append(signal.getitimer(signal.ITIMER_REAL))
    before = signal.signal(signal.SIGALRM, lambda *_: None)  # used by other code
    try:
        with watchdog(1.0):
            timers.append(signal.getitimer(signal.ITIMER_REAL))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert timers == [(0.0, 0.0)] * 3

"""Virtual time: a queue of events, and the trio clock that runs the events while trio would sleep.

Trio calls `deadline_to_sleep_time` of its clock only if no task can run. The clock runs the
network's events inside that call, so that a packet needs no task, no thread and no real waiting. As
soon as an event makes a task runnable, control returns to trio at the end of that instant. Tasks
therefore see every instant in order.
"""

import math
from collections.abc import Callable, Sized
from heapq import heappop, heappush
from typing import Any, TypeVar, overload

import trio
from trio._core import _run

from . import defaults

T = TypeVar("T")
Manager = TypeVar("Manager")
Happened = TypeVar("Happened")
Event = tuple[float, int, Callable[[Any], None], object]  # time, serial number, action, argument


class Events:
    """Queue of future events, ordered by time. Events of the same instant run in the order in which
    they were scheduled.

    Times are seconds of the simulation. `now` never decreases.
    """

    __slots__ = ("_heap", "_ready", "_serial", "_until", "count", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0  # events run so far
        self._heap: list[Event] = []
        self._serial = 0
        self._until = -math.inf  # end (s) of the `run_until` in progress
        self._ready: Sized = ()  # trio's queue of runnable tasks, for `reach`

    @overload
    def at(self, when: float, action: Callable[[None], None]) -> None: ...

    @overload
    def at(self, when: float, action: Callable[[T], None], argument: T) -> None: ...

    def at(self, when: float, action: Callable[[Any], None], argument: object = None) -> None:
        """Schedule `action(argument)` at the time `when`, which must not be in the past."""
        self._serial += 1
        heappush(self._heap, (when, self._serial, action, argument))

    def reach(self, when: float) -> bool:
        """Set `now` to `when` if no event is due up to that time and no task can run. Return
        whether the clock advanced.

        Use this as the last step of an event's action, in place of scheduling another event. The
        advance is counted as one event.
        """
        heap = self._heap
        if when > self._until or self._ready or (heap and heap[0][0] <= when):
            return False
        self.now = when
        self.count += 1
        return True

    def __len__(self) -> int:
        return len(self._heap)

    def run_until(self, until: float, ready: Sized = (), most: float = math.inf) -> None:
        """Run all events up to and including the time `until`.

        Stop earlier, at the end of an instant, if `ready` is no longer empty or if `most` events
        have run.
        """
        heap = self._heap
        stop = self.count + most
        self._until, self._ready = until, ready
        while heap:
            when = heap[0][0]
            if when > self.now:
                if when > until or ready or self.count >= stop:
                    break
                self.now = when
            _, _, action, argument = heappop(heap)
            self.count += 1
            action(argument)
        self._until = -math.inf
        if self.count >= stop:
            return
        if not ready and self.now < until < math.inf:
            self.now = until


class SimClock(trio.abc.Clock):
    """Trio clock whose time is `events.now`. It calls `on_idle` if the simulation can make no
    progress any more.

    The simulation can make no progress if every task waits without a deadline and no event is
    scheduled. Timers of light hosts belong to no task and could run forever. The clock therefore
    also calls `on_idle` after a simulated week in which only such timers have run.
    """

    def __init__(
        self,
        events: Events,
        on_idle: Callable[[], None],
        after_instant: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.events = events
        self._on_idle = on_idle
        self._after_instant = after_instant  # called with the number of events run so far
        self._last_turn = 0.0  # time at which a task last ran, or last had a deadline

    def start_clock(self) -> None:
        """Do nothing: virtual time needs no start."""

    def current_time(self) -> float:
        return self.events.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Run events until a task can run, or until `deadline`. Return 0, so that trio does not
        wait in real time.
        """
        self._after_instant(self.events.count)
        runner = _run.GLOBAL_RUN_CONTEXT.runner
        if runner.waiting_for_idle:  # `wait_all_tasks_blocked` is due: trio needs an idle moment
            return 1.0
        if runner.entry_queue.queue:  # trio learns of it through a descriptor; at the end of a run,
            return 0  # timers without tasks would otherwise run forever
        ready = runner.runq
        events = self.events
        # Trio notices signals, such as Ctrl-C, only when control returns to it.
        events.run_until(deadline, ready, defaults.EVENTS_PER_TURN)
        if ready or deadline < math.inf:
            self._last_turn = events.now
        elif not len(events) or events.now > self._last_turn + defaults.QUIET_S:
            self._on_idle()
        return 0


def without_descriptors(
    real: Callable[[Manager, float], Happened],
) -> Callable[[Manager, float], Happened | tuple[()]]:
    """Return a wrapper of trio's `get_events` that polls the operating system only when necessary.

    No task of a simulation waits for a file descriptor. Only a signal or a call from another thread
    needs a poll, and both put an entry into trio's queue.
    """

    def get_events(manager: Manager, timeout: float) -> Happened | tuple[()]:
        if timeout > 0 or _run.GLOBAL_RUN_CONTEXT.runner.entry_queue.queue:
            return real(manager, timeout)
        return ()

    return get_events

"""Virtual time: one heap of events, and the trio clock that runs them when trio would sleep.

Trio asks a clock `deadline_to_sleep_time` only when no task can run. Network events are run
right there: no task per packet, no thread, no real waiting. The event that makes a task
runnable hands control back to trio, so tasks see every instant in order.
"""

import math
from collections.abc import Callable, Sized
from heapq import heappop, heappush
from typing import Any

import trio
from trio._core import _run

from . import defaults

Event = tuple[float, int, Callable[[Any], None], Any]


class Events:
    """What will happen, ordered by time and, within an instant, by when it was asked for.

    Times are seconds of the simulation. `now` never goes back.
    """

    __slots__ = ("_heap", "_ready", "_serial", "_until", "count", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0  # events run so far
        self._heap: list[Event] = []
        self._serial = 0
        self._until = -math.inf  # of the `run_until` that is going on
        self._ready: Sized = ()

    def at(self, when: float, action: Callable[[Any], None], argument: Any = None) -> None:
        """Run `action(argument)` at `when`, not before the present."""
        self._serial += 1
        heappush(self._heap, (when, self._serial, action, argument))

    def reach(self, when: float) -> bool:
        """Go on to `when` at once where nothing can come in between, neither an event nor a task.

        To be called last in an event, in place of asking for one more; counts as that one.
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
        """Run events up to and including `until`.

        Stop after the instant that fills `ready`, or in which `most` events have been run.
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
    """Trio's time is `events.now`. `on_idle` is called when nothing can ever happen again.

    That is so when every task waits without a deadline and no event is due. Timers that no task
    waits for (a light host's) may go on for ever: after a week of nothing else it is called too.
    """

    def __init__(
        self,
        events: Events,
        on_idle: Callable[[], None],
        after_instant: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.events = events
        self._on_idle = on_idle
        self._after_instant = after_instant  # told how many events have run
        self._last_turn = 0.0  # when a task last ran, or was to run at a known time

    def start_clock(self) -> None:
        """Virtual time needs no start."""

    def current_time(self) -> float:
        return self.events.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Run the network until a task can go on, or until `deadline`."""
        self._after_instant(self.events.count)
        runner = _run.GLOBAL_RUN_CONTEXT.runner
        if runner.waiting_for_idle:  # `wait_all_tasks_blocked` is due: trio needs an idle moment
            return 1.0
        if runner.entry_queue.queue:  # trio hears of it by a descriptor; as at the end of a run,
            return 0  # when timers without tasks would otherwise go on for ever
        ready = runner.runq
        events = self.events
        # Trio hears of signals, Ctrl-C among them, only when control comes back to it.
        events.run_until(deadline, ready, defaults.EVENTS_PER_TURN)
        if ready or deadline < math.inf:
            self._last_turn = events.now
        elif not len(events) or events.now > self._last_turn + defaults.QUIET_S:
            self._on_idle()
        return 0


def without_descriptors(real: Callable[[Any, float], Any]) -> Callable[[Any, float], Any]:
    """Trio's `get_events`, which asks the operating system only where something may have come.

    No task of a simulation waits for a descriptor. Signals and calls from outside come with an
    entry in trio's queue.
    """

    def get_events(manager: Any, timeout: float) -> Any:
        if timeout > 0 or _run.GLOBAL_RUN_CONTEXT.runner.entry_queue.queue:
            return real(manager, timeout)
        return ()

    return get_events

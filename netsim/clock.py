"""Virtual time: one heap of events, and the trio clock that runs them when trio would sleep.

Trio asks a clock `deadline_to_sleep_time` only when no task can run. Network events are run
right there: no task per packet, no thread, no real waiting. The event that makes a task
runnable hands control back to trio, so tasks see every instant in order.
"""

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import trio
from trio._core import _run

Event = tuple[float, int, Callable[[Any], None], Any]


class Events:
    """What will happen, ordered by time and, within an instant, by when it was asked for.

    Times are seconds of the simulation. `now` never goes back.
    """

    __slots__ = ("_heap", "_serial", "count", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0  # events run so far
        self._heap: list[Event] = []
        self._serial = 0

    def at(self, when: float, action: Callable[[Any], None], argument: Any = None) -> None:
        """Run `action(argument)` at `when`, not before the present."""
        self._serial += 1
        heappush(self._heap, (when, self._serial, action, argument))

    def __len__(self) -> int:
        return len(self._heap)

    def next_time(self) -> float:
        """When the next event is due; infinity where none is."""
        return self._heap[0][0] if self._heap else math.inf

    def run_until(self, until: float, ready: list[Any] | Any = ()) -> None:
        """Run events up to and including `until`; stop after the instant that fills `ready`."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            instant = heap[0][0]
            if instant > self.now:
                self.now = instant
            while heap and heap[0][0] <= instant:
                _, _, action, argument = heappop(heap)
                self.count += 1
                action(argument)
            if ready:
                return
        if not ready and self.now < until < math.inf:
            self.now = until


class SimClock(trio.abc.Clock):
    """Trio's time is `events.now`. `on_idle` is called when nothing can ever happen again."""

    def __init__(
        self,
        events: Events,
        on_idle: Callable[[], None],
        after_instant: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.events = events
        self._on_idle = on_idle
        self._after_instant = after_instant  # told how many events have run

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
        self.events.run_until(deadline, ready)
        if not ready and deadline == math.inf:
            self._on_idle()
        return 0

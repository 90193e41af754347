"""Watchdog for a task that computes forever without a checkpoint, which would stop virtual time.

The watchdog is the only part of a run that measures real time. It does not affect a run
that ends by itself.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from trio._core._run import GLOBAL_RUN_CONTEXT, Task

from ..errors import Stuck

_LOOKS: Final = 4
"""Number of checks in `patience` seconds."""


class _Watch:
    """Periodic check of whether the same task is still running without a checkpoint."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._step: tuple[Task, int] | None = None
        self._looks = 0

    def look(self, _: int, __: FrameType | None) -> None:
        """Handle one tick of the timer. Raises Stuck in the running task if it has reached no
        checkpoint for `_LOOKS` ticks.
        """
        task = getattr(GLOBAL_RUN_CONTEXT, "task", None)
        step = (task, task._schedule_points) if task is not None else None
        if task is None or step != self._step:
            self._step, self._looks = step, 0
            return
        self._looks += 1
        if self._looks >= _LOOKS:
            self._looks = 0
            raise Stuck(
                f"{task.name} has run without a checkpoint for {self._patience:g} s of real time\n"
                "hint: a loop without a checkpoint stops virtual time for all hosts"
            )


@contextmanager
def watchdog(patience: float) -> Iterator[None]:
    """Raise Stuck in any task that runs for `patience` seconds of real time without a checkpoint. A
    `patience` of 0 turns the watchdog off.

    It needs interval timers and the main thread, and a SIGALRM that no other code handles. Without
    these it does nothing.
    """
    if not patience or not _available():
        yield
        return
    try:
        before = signal.signal(signal.SIGALRM, _Watch(patience).look)
    except ValueError:  # not the main thread
        yield
        return
    every = patience / _LOOKS
    signal.setitimer(signal.ITIMER_REAL, every, every)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _available() -> bool:
    """Return whether the system has interval timers and no other code handles SIGALRM."""
    return hasattr(signal, "setitimer") and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL

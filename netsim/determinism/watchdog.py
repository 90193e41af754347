"""Watchdog against a task that computes forever without a checkpoint, which would stop virtual
time.

This is the only real clock here. It never changes a run that ends by itself.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from trio._core._run import GLOBAL_RUN_CONTEXT, Task

from ..errors import Stuck

_LOOKS: Final = 4
"""Number of checks within the time allowed."""


class _Watch:
    """Checks whether the same task is still in the same step."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._step: tuple[Task, int] | None = None
        self._looks = 0

    def look(self, _: int, __: FrameType | None) -> None:
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
    """Raise Stuck inside a task that occupies the processor for `patience` seconds of real time.

    Works in the main thread of systems that have interval timers, if no other code uses the alarm;
    elsewhere it does nothing. 0 turns it off.
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
    return hasattr(signal, "setitimer") and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL

"""Detects steps of a task that block the event loop, and names the task.

A blocked loop delays every peer. Heavy work therefore belongs in `Host.offload` or in a worker
process. On a busy machine the operating system can delay a step as well, so a stall is only a hint
at a problem.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import trio

from ...transport.host.seam import Host


@dataclass(frozen=True, slots=True)
class Stall:
    """A step that took too long: the name of its task, and its duration."""

    task: str
    seconds: float


class StallGuard(trio.abc.Instrument):
    """Counts the steps that take longer than `limit` seconds, and remembers the longest one."""

    def __init__(self, host: Host, limit: float) -> None:
        self.count = 0
        self.worst: Stall | None = None
        self._host = host
        self._limit = limit
        self._began = host.now()

    def watching(self) -> AbstractContextManager[None]:
        """Return a context manager in which the steps of this trio run are measured."""
        return self._host.watch_loop(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = self._host.now()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        seconds = self._host.now() - self._began
        if seconds > self._limit:
            self.count += 1
            if self.worst is None or seconds > self.worst.seconds:
                self.worst = Stall(task.name, seconds)

"""Suspended computers: hosts whose tasks do not run.

Trio has one queue of runnable tasks. While a host sleeps, those of its tasks that become runnable
are moved from this queue to a list. When the host wakes, they are put back in the same order. All
hosts share trio's timers, so that the timers of a sleeping host expire in time, and their tasks run
as soon as the host wakes. On a real laptop, too, all overdue timers fire when it resumes.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import outcome
from trio._core import _run

from .errors import SimError
from .host import CURRENT, Host

Task = _run.Task
Queue = TypeVar("Queue")
Outcome = outcome.Value[object] | outcome.Error


class Dormitory:
    """The sleeping hosts of a world. Trio's scheduler is patched only while at least one host
    sleeps.
    """

    def __init__(self) -> None:
        self._kept: dict[Host, list[Task]] = {}  # by sleeping host: its runnable tasks
        self._original: Callable[..., None] | None = None

    def __contains__(self, host: Host) -> bool:
        return host in self._kept

    def hold(self, host: Host) -> None:
        """Stop running the tasks of a host. A task that is running continues until it next waits.

        Raises SimError if the world is not running.
        """
        if host in self._kept:
            return
        if not hasattr(_run.GLOBAL_RUN_CONTEXT, "runner"):
            raise SimError(f"{host.name}: a host can sleep only while the world runs")
        self._kept[host] = []
        if self._original is None:
            self._patch()
        runnable = self._runner().runq
        tasks = list(runnable)
        runnable.clear()
        for task in tasks:
            self._sleeper(task, runnable).append(task)

    def release(self, host: Host) -> None:
        """Make the tasks of a sleeping host run again."""
        tasks = self._kept.pop(host, [])
        if not self._kept:
            self._unpatch()
        self._runner().runq.extend(tasks)

    def release_all(self) -> None:
        """Wake all hosts at the end of a run, because a task that does not run cannot be
        cancelled.
        """
        for host in list(self._kept):
            self.release(host)

    def _runner(self) -> _run.Runner:
        return _run.GLOBAL_RUN_CONTEXT.runner

    def _sleeper(self, task: Task, awake: Queue) -> Queue | list[Task]:
        """Return the list of waiting tasks of a task's host if that host sleeps, otherwise
        `awake`.
        """
        host = task.context.get(CURRENT)
        return self._kept.get(host, awake) if host is not None else awake

    def _patch(self) -> None:
        """Replace the function of trio's scheduler that makes a task runnable."""
        self._original = original = _run.Runner.reschedule

        def reschedule(
            runner: _run.Runner, task: Task, *next_send: outcome.Value[object] | outcome.Error
        ) -> None:
            original(runner, task, *next_send)
            kept = self._sleeper(task, None)
            if kept is not None:
                kept.append(runner.runq.pop())

        scheduler: Any = _run.Runner
        scheduler.reschedule = reschedule

    def _unpatch(self) -> None:
        if self._original is not None:
            scheduler: Any = _run.Runner
            scheduler.reschedule = self._original
            self._original = None

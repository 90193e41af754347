"""Suspended computers: the tasks of a host that sleeps do not run.

Trio has one queue of runnable tasks. While a host sleeps, what becomes runnable of it is taken
off that queue and kept; on waking it is put back, in order. Trio's timers belong to everybody:
those of a sleeping host fire in time, and their tasks go on at once when it wakes, as after the
resume of a real laptop everything due fires.
"""

from collections.abc import Callable
from typing import Any

from trio._core import _run

from .errors import SimError
from .host import CURRENT, Host

Task = _run.Task


class Dormitory:
    """The hosts of a world that sleep. Trio's scheduler is touched only while there is one."""

    def __init__(self) -> None:
        self._kept: dict[Host, list[Task]] = {}
        self._original: Callable[..., None] | None = None

    def __contains__(self, host: Host) -> bool:
        return host in self._kept

    def hold(self, host: Host) -> None:
        """From now on its tasks do not run; one in the middle of its turn ends that first.

        Raises SimError outside of a run.
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
        """Its tasks go on."""
        tasks = self._kept.pop(host, [])
        if not self._kept:
            self._unpatch()
        self._runner().runq.extend(tasks)

    def release_all(self) -> None:
        """At the end of a run: a task that is kept could not be cancelled."""
        for host in list(self._kept):
            self.release(host)

    def _runner(self) -> Any:
        return _run.GLOBAL_RUN_CONTEXT.runner

    def _sleeper(self, task: Task, awake: Any) -> Any:
        """Where a runnable task goes: to what is kept of its host, else to `awake`."""
        host = task.context.get(CURRENT)
        return self._kept.get(host, awake) if host is not None else awake

    def _patch(self) -> None:
        self._original = original = _run.Runner.reschedule

        def reschedule(runner: Any, task: Task, *next_send: Any) -> None:
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

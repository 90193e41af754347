"""The order of trio's tasks and deadlines at one instant: by age, not by addresses in memory.

Trio keeps tasks and scopes in sets, and sorts equal deadlines by `id`. The order of runnable tasks
can be configured. The order in which tasks learn of a cancellation cannot, and it matters: an
aborted task may wake another one, which then is not aborted where it waited.
"""

from collections.abc import Callable, Iterator
from heapq import heappush
from itertools import count
from operator import itemgetter
from random import Random
from typing import Any, NoReturn, ParamSpec, TypeVar

from trio._core import _run

P = ParamSpec("P")
T = TypeVar("T")
Raise = Callable[[], NoReturn]
Replacement = tuple[object, str, object]
"""An owner, the name of its attribute, the new value."""


class InOrder:
    """Stands in for the random generator of trio's scheduler: tasks run in order of age."""

    def shuffle(self, batch: list[_run.Task]) -> None:
        batch.reverse()

    def random(self) -> float:
        return 1.0


class ByAge:
    """Cancels the tasks of a scope in order of age.

    Trio iterates over sets of tasks in the order of their addresses in memory, and a task that is
    aborted may wake another one.
    """

    def __init__(self) -> None:
        self._held: list[tuple[int, _run.Task, Raise]] | None = None

    def abort(self, task: _run.Task, raise_cancel: Raise) -> None:
        """Replace `Task._attempt_abort`; postpone the abort if the task is one of several."""
        if self._held is None:
            _ABORT(task, raise_cancel)
        else:
            self._held.append((task._counter, task, raise_cancel))

    def in_order(self, real: Callable[P, T]) -> Callable[P, T]:
        """Wrap `real`, a function of trio that cancels."""

        def ordered(*args: P.args, **kwargs: P.kwargs) -> T:
            if self._held is not None:
                return real(*args, **kwargs)
            held = self._held = []
            try:
                return real(*args, **kwargs)
            finally:
                self._held = None
                for _, task, raise_cancel in sorted(held, key=itemgetter(0)):
                    if task._abort_func is not None:  # not woken by an earlier one
                        _ABORT(task, raise_cancel)

        return ordered


_ABORT = _run.Task._attempt_abort


def due_in_order() -> Callable[[_run.Deadlines, float, _run.CancelScope], None]:
    """Return a replacement of `Deadlines.add`: of equal deadlines the oldest is first; trio
    compares `id`.
    """
    serial = count()

    def add(deadlines: _run.Deadlines, deadline: float, scope: _run.CancelScope) -> None:
        heappush(deadlines._heap, (deadline, next(serial), scope))
        deadlines._active += 1

    return add


def scheduling(shuffle: Random | None) -> Iterator[Replacement]:
    """Yield the replacements in trio; `shuffle` draws which task runs first."""
    scope: Any = _run.CancelScope
    by_age = ByAge()
    yield _run, "_ALLOW_DETERMINISTIC_SCHEDULING", True
    yield _run, "_r", shuffle if shuffle is not None else InOrder()
    yield _run.Deadlines, "add", due_in_order()
    yield _run.Task, "_attempt_abort", lambda task, error: by_age.abort(task, error)
    yield scope, "_cancel", by_age.in_order(scope._cancel)
    yield scope, "shield", property(scope.shield.fget, by_age.in_order(scope.shield.fset))
    yield _run._TaskStatus, "started", by_age.in_order(_run._TaskStatus.started)

"""Deterministic order of trio's tasks and deadlines within one instant: by age, not by memory
address.

Trio keeps tasks and cancel scopes in sets, and orders equal deadlines by `id`, so both orders
depend on memory addresses. Trio has a setting for the order in which runnable tasks run, but none
for the order in which tasks are cancelled. The order of cancellation matters: if cancelled task A
wakes task B first, trio no longer cancels the wait of B.
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
"""(object, name of its attribute, new value of the attribute)."""


class InOrder:
    """Substitute for the random generator of trio's scheduler. It makes runnable tasks run in order
    of age.
    """

    def shuffle(self, batch: list[_run.Task]) -> None:
        batch.reverse()

    def random(self) -> float:
        return 1.0


class ByAge:
    """Wrappers around those functions of trio that cancel tasks. With them, the tasks of a scope
    are aborted in order of age.

    Trio itself would abort them in the order of their memory addresses.
    """

    def __init__(self) -> None:
        self._held: list[tuple[int, _run.Task, Raise]] | None = None

    def abort(self, task: _run.Task, raise_cancel: Raise) -> None:
        """Abort a task, in place of `Task._attempt_abort`. While a wrapped function runs, postpone
        the abort until that function ends.
        """
        if self._held is None:
            _ABORT(task, raise_cancel)
        else:
            self._held.append((task._counter, task, raise_cancel))

    def in_order(self, real: Callable[P, T]) -> Callable[P, T]:
        """Return a wrapper of `real`, a function of trio that cancels. The wrapper collects the
        aborts that `real` requests, and then performs them in order of age.
        """

        def ordered(*args: P.args, **kwargs: P.kwargs) -> T:
            if self._held is not None:
                return real(*args, **kwargs)
            held = self._held = []
            try:
                return real(*args, **kwargs)
            finally:
                self._held = None
                for _, task, raise_cancel in sorted(held, key=itemgetter(0)):
                    if task._abort_func is not None:  # no earlier abort has woken it
                        _ABORT(task, raise_cancel)

        return ordered


_ABORT = _run.Task._attempt_abort


def due_in_order() -> Callable[[_run.Deadlines, float, _run.CancelScope], None]:
    """Return a replacement of `Deadlines.add` that orders equal deadlines by age. Trio itself
    orders them by `id`.
    """
    serial = count()

    def add(deadlines: _run.Deadlines, deadline: float, scope: _run.CancelScope) -> None:
        heappush(deadlines._heap, (deadline, next(serial), scope))
        deadlines._active += 1

    return add


def scheduling(shuffle: Random | None) -> Iterator[Replacement]:
    """Yield the replacements in trio that make its schedule deterministic. If `shuffle` is given,
    it draws the order of runnable tasks; otherwise they run in order of age.
    """
    scope: Any = _run.CancelScope
    by_age = ByAge()
    yield _run, "_ALLOW_DETERMINISTIC_SCHEDULING", True
    yield _run, "_r", shuffle if shuffle is not None else InOrder()
    yield _run.Deadlines, "add", due_in_order()
    yield _run.Task, "_attempt_abort", lambda task, error: by_age.abort(task, error)
    yield scope, "_cancel", by_age.in_order(scope._cancel)
    yield scope, "shield", property(scope.shield.fget, by_age.in_order(scope.shield.fset))
    yield _run._TaskStatus, "started", by_age.in_order(_run._TaskStatus.started)

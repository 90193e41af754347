"""The order in which trio does what is due at one instant: by age, not by addresses in memory.

Trio keeps tasks and scopes in sets, and sorts equal deadlines by `id`. Which task runs first it
lets be told. Who hears first of a cancellation it does not, and that shows: what one does when it
is aborted may wake another, which then is not aborted where it waited.
"""

from collections.abc import Callable, Iterator
from heapq import heappush
from itertools import count
from operator import itemgetter
from random import Random
from typing import Any

from trio._core import _run

Function = Callable[..., Any]
Replacement = tuple[Any, str, Any]
"""An owner, an attribute's name, what it is to be."""


class InOrder:
    """Trio's scheduler asks this instead of a random generator: tasks run in order of age."""

    def shuffle(self, batch: list[Any]) -> None:
        batch.reverse()

    def random(self) -> float:
        return 1.0


class ByAge:
    """Who is cancelled together hears of it in order of age: trio walks sets of tasks, in the
    order of their addresses in memory, and what one does at this moment may wake another."""

    def __init__(self) -> None:
        self._held: list[tuple[int, Any, Any]] | None = None

    def abort(self, task: Any, raise_cancel: Any) -> None:
        """`Task._attempt_abort`, later where it is one of several."""
        if self._held is None:
            _ABORT(task, raise_cancel)
        else:
            self._held.append((task._counter, task, raise_cancel))

    def in_order(self, real: Function) -> Function:
        """`real`, a function of trio that cancels."""

        def ordered(*args: Any, **kwargs: Any) -> Any:
            if self._held is not None:
                return real(*args, **kwargs)
            held = self._held = []
            try:
                return real(*args, **kwargs)
            finally:
                self._held = None
                for _, task, raise_cancel in sorted(held, key=itemgetter(0)):
                    if task._abort_func is not None:  # not woken by one before it
                        _ABORT(task, raise_cancel)

        return ordered


_ABORT: Any = _run.Task._attempt_abort


def due_in_order() -> Callable[[Any, float, Any], None]:
    """`Deadlines.add`: of equal deadlines the first one made is the first; trio asks `id`."""
    serial = count()

    def add(deadlines: Any, deadline: float, scope: Any) -> None:
        heappush(deadlines._heap, (deadline, next(serial), scope))
        deadlines._active += 1

    return add


def scheduling(shuffle: Random | None) -> Iterator[Replacement]:
    """What to put in the place of what in trio; `shuffle` draws which task runs first."""
    scope: Any = _run.CancelScope
    by_age = ByAge()
    yield _run, "_ALLOW_DETERMINISTIC_SCHEDULING", True
    yield _run, "_r", shuffle if shuffle is not None else InOrder()
    yield _run.Deadlines, "add", due_in_order()
    yield _run.Task, "_attempt_abort", lambda task, error: by_age.abort(task, error)
    yield scope, "_cancel", by_age.in_order(scope._cancel)
    yield scope, "shield", property(scope.shield.fget, by_age.in_order(scope.shield.fset))
    yield _run._TaskStatus, "started", by_age.in_order(_run._TaskStatus.started)

"""What every simulated socket has in common: life, options, waiting."""

import errno
import socket as stdlib
from collections.abc import Callable
from typing import Any, Self

import outcome
import trio
from trio import socket as tsocket
from trio._core._run import GLOBAL_RUN_CONTEXT

from .. import defaults
from ..host import Host, error


class Waiters:
    """Tasks that wait for one thing, woken in order."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: dict[trio.lowlevel.Task, None] = {}

    def __bool__(self) -> bool:
        return bool(self._tasks)

    async def wait(self) -> Any:
        """Sleep until woken; returns what the waker hands over."""
        task = GLOBAL_RUN_CONTEXT.task
        self._tasks[task] = None

        def abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
            del self._tasks[task]
            return trio.lowlevel.Abort.SUCCEEDED

        return await trio.lowlevel.wait_task_rescheduled(abort)

    def wake(self, value: Any = None) -> bool:
        """Wake the one that has waited longest; False where none does."""
        if not self._tasks:
            return False
        task = next(iter(self._tasks))
        del self._tasks[task]
        trio.lowlevel.reschedule(task, outcome.Value(value))
        return True

    def wake_all(self) -> None:
        while self.wake():
            pass


class SimSocket(tsocket.SocketType):
    """A socket without a descriptor (`fileno()` is negative)."""

    def __init__(self, host: Host, family: int, kind: int, proto: int) -> None:
        self.host = host
        self._family = stdlib.AddressFamily(family)
        self._kind = stdlib.SocketKind(kind)
        self._proto = proto
        self._options: dict[tuple[int, int], Any] = {}
        self._closed = False
        self._turns = 0

    @property
    def family(self) -> stdlib.AddressFamily:
        return self._family

    @property
    def type(self) -> stdlib.SocketKind:
        return self._kind

    @property
    def proto(self) -> int:
        return self._proto

    @property
    def did_shutdown_SHUT_WR(self) -> bool:
        return False

    def fileno(self) -> int:
        return -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close; who waits gets ClosedResourceError."""
        self._closed = True

    def setsockopt(self, level: int, option: int, value: Any = None, length: Any = None) -> None:
        self._check()
        self._options[level, option] = value

    def getsockopt(self, level: int, option: int, buflen: int = 0) -> Any:
        self._check()
        return self._options.get((level, option), 0)

    def _check(self) -> None:
        if self._closed:
            raise error(errno.EBADF)

    async def _turn(self) -> None:
        """A checkpoint that gives way to other tasks only now and then.

        A program that never waits must not keep everybody else, and time itself, from going on.
        """
        self._turns += 1
        if self._turns % defaults.TURN:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()

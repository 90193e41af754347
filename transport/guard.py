"""Guard that makes a bug end the connection of one peer instead of the daemon (ADR 0023).

All code that handles one peer (a link, a datagram, a dial, a callback about a link) runs within
`Guard.around`, or as a task started by `Guard.start`. An unexpected exception there is a bug of
this program that the peer has triggered. The guard ends the connection of that peer and reports the
bug (a *mishap*). A loop that reads what many peers say begins again (`Guard.repeat`, ADR 0080). The
guard does not catch cancellation, the end of the process, or errors of this machine
(`is_own`).
"""

import errno
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

import trio

from .errors import MISHAP, DialFailed, ShoalError

_ROOT: Final = Path(__file__).parent.parent
_OF_THE_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
REPEAT_PAUSES: Final = (1.0, 300.0)  # seconds from a bug of a loop to its next run: least, most
_NAME_CHARS: Final = 64  # characters of a peer's name in a report


@dataclass(frozen=True, slots=True)
class Mishap:
    """Report of an unexpected exception. `subject` is the peer's id or address, or what was being
    handled, `error` the exception's type, and `place` the line of this program that raised it.

    The exception's message is left out, because it may quote a peer or a user.
    """

    subject: str
    error: str
    place: str


class Guard:
    """Guard of one endpoint.

    `report` is called with each mishap. While it is None, nothing is caught, so that bugs surface
    in tests and simulations. `hang_up` ends the link to the given peer id, if there is one.
    """

    def __init__(
        self,
        report: Callable[[Mishap], None] | None = None,
        hang_up: Callable[[str], None] = lambda subject: None,
    ) -> None:
        self.report = report
        self.hang_up = hang_up

    def let_through(self) -> None:
        """Catch nothing from now on, so that bugs surface in a simulation."""
        self.report = None

    def around(
        self,
        subject: object,
        end: Callable[[], object] | None = None,
        *,
        instead: Callable[[], Exception] | None = None,
    ) -> AbstractContextManager[None]:
        """Return a context manager for a block that handles one peer. `subject` is the peer's
        id, or its address and port.

        If the block raises an unexpected exception, the guard calls `end` and ends the link to the
        peer. It then suppresses the exception or, if `instead` is given, raises the error that
        `instead` returns. Errors of this machine always pass through. If `instead` is given,
        ShoalErrors and errors of the type that `instead` returns also pass through, because callers
        handle them.
        """
        return _Around(self, subject, end, instead)

    def start(
        self,
        nursery: trio.Nursery,
        subject: object,
        function: Callable[..., Awaitable[object]],
        *args: object,
        end: Callable[[], object] | None = None,
    ) -> None:
        """Start a guarded task that handles one peer, in the same way as
        `nursery.start_soon(function, *args)`."""
        nursery.start_soon(partial(self._run, subject, end, function), *args, name=function)

    async def _run(
        self,
        subject: object,
        end: Callable[[], object] | None,
        function: Callable[..., Awaitable[object]],
        *args: object,
    ) -> None:
        with _Around(self, subject, end, None):
            await function(*args)

    def start_repeated(
        self,
        nursery: trio.Nursery,
        what: str,
        function: Callable[..., Awaitable[object]],
        *args: object,
    ) -> None:
        """Start `repeat` as a task."""
        nursery.start_soon(partial(self.repeat, what, function), *args, name=function)

    async def repeat(
        self, what: str, function: Callable[..., Awaitable[object]], *args: object
    ) -> None:
        """Run a loop of this node that reads what many peers say, and begin it again after a bug
        (ADR 0080).

        `what` names the data in the report. The pause before the next run doubles with each bug, up
        to REPEAT_PAUSES[1] seconds. It is short again once a run has lasted longer than that.
        """
        pause, longest = REPEAT_PAUSES
        while True:
            began = trio.current_time()
            with _Around(self, what, None, None):
                await function(*args)
                return
            if trio.current_time() - began > longest:
                pause = REPEAT_PAUSES[0]
            await trio.sleep(pause)
            pause = min(2 * pause, longest)

    def tell(
        self,
        subject: object,
        callbacks: Iterable[Callable[..., object]],
        *args: object,
        end: Callable[[], object] | None = None,
    ) -> None:
        """Call all callbacks with `args`, each in its own guard, so that all are called even if one
        fails."""
        for callback in callbacks:
            with _Around(self, subject, end, None):
                callback(*args)


class _Around(AbstractContextManager[None]):
    """Context manager that `Guard.around` returns."""

    __slots__ = ("_end", "_guard", "_instead", "_subject")

    def __init__(
        self,
        guard: Guard,
        subject: object,
        end: Callable[[], object] | None,
        instead: Callable[[], Exception] | None,
    ) -> None:
        self._guard = guard
        self._subject = subject
        self._end = end
        self._instead = instead

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Catch and report a bug. No other code in the daemon catches all exceptions."""
        guard = self._guard
        if error is None or guard.report is None:
            return False
        mistake, rest = _split(error, self._passes)
        if mistake is None:
            return False
        subject = name_of(self._subject)
        guard.report(Mishap(subject, type(mistake).__name__, _place(mistake)))
        _Around._finish(guard, subject, self._end, lambda: guard.hang_up(subject))
        if rest is not None:
            raise rest
        if self._instead is not None:
            raise self._instead() from None
        return True

    def _passes(self, error: BaseException) -> bool:
        if self._instead is None:
            return is_own(error)
        return isinstance(error, ShoalError | type(self._instead())) or is_own(error)

    @staticmethod
    def _finish(guard: Guard, subject: str, *ends: Callable[[], object] | None) -> None:
        """Call each function that ends a connection, in its own guard, because it may hit the same
        bug."""
        for end in ends:
            if end is not None:
                with _Around(guard, subject, None, None):
                    end()


def mishap_of(name: object) -> Callable[[], DialFailed]:
    """Return a factory of the error that a dial to `name` raises after a bug, for use as `instead`
    in `Guard.around`."""
    return lambda: DialFailed(MISHAP, f"`{name}` has triggered a bug of this node")


def is_own(error: BaseException) -> bool:
    """Return whether an error comes from this machine (its disk, its store, or trio itself), so
    that no peer is to blame. Such errors end the daemon."""
    if isinstance(error, ShoalError):
        return error.own
    if isinstance(error, OSError):
        return error.errno in _OF_THE_DISK
    return isinstance(error, trio.TrioInternalError)


def _split(
    error: BaseException, passes: Callable[[BaseException], bool]
) -> tuple[Exception | None, BaseException | None]:
    """Split an exception, possibly a group, into (first bug, rest without any bugs). Either element
    is None if there is none."""

    def is_mistake(each: BaseException) -> bool:
        if isinstance(each, BaseExceptionGroup):
            return False  # `split` checks the members of a group one by one
        return isinstance(each, Exception) and not passes(each)

    if not isinstance(error, BaseExceptionGroup):
        return (
            (error, None) if isinstance(error, Exception) and is_mistake(error) else (None, error)
        )
    mistakes, rest = error.split(is_mistake)
    first: BaseException | None = mistakes
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first if isinstance(first, Exception) else None, rest


def name_of(subject: object) -> str:
    """Return the name of a peer for a report: a peer id unchanged, or `address port number`.
    Control characters are escaped and the length is bounded."""
    if isinstance(subject, tuple):
        subject = f"{subject[0]} port {subject[1]}"
    return ascii(str(subject))[1:-1][:_NAME_CHARS]


def _place(error: BaseException) -> str:
    """Return the innermost line of this program in the traceback, such as
    `transport/link/link.py:412`, or `?` if there is none."""
    trace, found = error.__traceback__, "?"
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.is_relative_to(_ROOT) and path.name != "guard.py":
            found = f"{path.relative_to(_ROOT).as_posix()}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found

"""Guard that lets a bug end the connection of one peer instead of the daemon (ADR 0023).

All code that handles one peer (a link, a datagram, a dial, a callback about a link) runs within
`Guard.around`, or as a task started by `Guard.start`. An unexpected exception there is a bug of
ours that the peer has triggered: its connection is ended, and the node reports it. Cancellation,
the end of the process and errors of this machine (`is_own`) pass through.
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
_NAME_CHARS: Final = 64  # characters of a peer's name in a report


@dataclass(frozen=True, slots=True)
class Mishap:
    """Report of an unexpected exception: the peer (an id or an address), the exception's type, and
    the line of our code that raised it.

    It omits the exception's message, which may quote a peer or a person.
    """

    who: str
    error: str
    place: str


class Guard:
    """Guard of one endpoint.

    `report` gets each mishap. Without it nothing is caught, so that tests and simulations see
    bugs. `hang_up` ends the link to a peer id, if there is one.
    """

    def __init__(self) -> None:
        self.report: Callable[[Mishap], None] | None = None
        self.hang_up: Callable[[str], None] = lambda who: None

    def around(
        self,
        who: object,
        end: Callable[[], object] | None = None,
        *,
        instead: Callable[[], Exception] | None = None,
    ) -> AbstractContextManager[None]:
        """Guard a block that handles one peer, given by its id or its address and port.

        If the block fails with an unexpected exception, `end` is called and the link to the peer
        ends. Then the error that `instead` makes is raised, if `instead` is given. Errors of that
        type and ShoalErrors are expected: they pass through, because callers handle them.
        """
        return _Around(self, who, end, instead)

    def start(
        self,
        nursery: trio.Nursery,
        who: object,
        function: Callable[..., Awaitable[object]],
        *args: object,
        end: Callable[[], object] | None = None,
    ) -> None:
        """Start a task that handles one peer, like `nursery.start_soon(function, *args)`."""
        nursery.start_soon(partial(self._run, who, end, function), *args, name=function)

    async def _run(
        self,
        who: object,
        end: Callable[[], object] | None,
        function: Callable[..., Awaitable[object]],
        *args: object,
    ) -> None:
        with _Around(self, who, end, None):
            await function(*args)

    def tell(
        self,
        who: object,
        callbacks: Iterable[Callable[..., object]],
        *args: object,
        end: Callable[[], object] | None = None,
    ) -> None:
        """Call all callbacks, even if one of them fails."""
        for callback in callbacks:
            with _Around(self, who, end, None):
                callback(*args)


class _Around(AbstractContextManager[None]):
    """The context manager that `Guard.around` returns."""

    __slots__ = ("_end", "_guard", "_instead", "_who")

    def __init__(
        self,
        guard: Guard,
        who: object,
        end: Callable[[], object] | None,
        instead: Callable[[], Exception] | None,
    ) -> None:
        self._guard = guard
        self._who = who
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
        """Catch a bug. No other place in the daemon catches all exceptions."""
        guard = self._guard
        if error is None or guard.report is None:
            return False
        mistake, rest = _split(error, self._passes)
        if mistake is None:
            return False
        who = name_of(self._who)
        guard.report(Mishap(who, type(mistake).__name__, _place(mistake)))
        _Around._finish(guard, who, self._end, lambda: guard.hang_up(who))
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
    def _finish(guard: Guard, who: str, *ends: Callable[[], object] | None) -> None:
        """Guard each call that ends a connection, because it may hit the same bug."""
        for end in ends:
            if end is not None:
                with _Around(guard, who, None, None):
                    end()


def mishap_of(name: object) -> Callable[[], DialFailed]:
    """Return a factory of the error that a dial raises (`instead` of `Guard.around`)."""
    return lambda: DialFailed(MISHAP, f"`{name}` has triggered a bug of this node")


def is_own(error: BaseException) -> bool:
    """Whether an error is this machine's, so that no peer is to blame: its disk, its store, or
    trio itself. Such errors end the daemon."""
    if isinstance(error, ShoalError):
        return error.own
    if isinstance(error, OSError):
        return error.errno in _OF_THE_DISK
    return isinstance(error, trio.TrioInternalError)


def _split(
    error: BaseException, passes: Callable[[BaseException], bool]
) -> tuple[Exception | None, BaseException | None]:
    """Return the first bug, and what is left of the exception without any bugs."""

    def is_mistake(each: BaseException) -> bool:
        if isinstance(each, BaseExceptionGroup):
            return False  # its members are checked one by one
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


def name_of(who: object) -> str:
    """Return a peer id unchanged, and an address and port as `address port number`, without
    control characters."""
    if isinstance(who, tuple):
        who = f"{who[0]} port {who[1]}"
    return ascii(str(who))[1:-1][:_NAME_CHARS]


def _place(error: BaseException) -> str:
    """Return the deepest line of our code, like `transport/link/link.py:412`."""
    trace, found = error.__traceback__, "?"
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.is_relative_to(_ROOT) and path.name != "guard.py":
            found = f"{path.relative_to(_ROOT).as_posix()}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found

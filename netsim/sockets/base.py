"""Common base of simulated sockets (life cycle, options, waiting), and of stream sockets."""

import errno
import socket as stdlib
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import (
    TYPE_CHECKING,
    ClassVar,
    Generic,
    NoReturn,
    Self,
    TypeAlias,
    TypeVar,
    overload,
)

import outcome
import trio
from trio import _socket as tinternal
from trio import socket as tsocket
from trio._core._run import GLOBAL_RUN_CONTEXT

from .. import defaults
from ..errors import NotSimulated
from ..host import Host, error

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

T = TypeVar("T")
Option = tuple[int, int]  # level, option number
OptionValue: TypeAlias = "int | ReadableBuffer | None"
SocketName = tuple[str, int] | tuple[str, int, int, int]
"""Address and port as the socket module returns them. For IPv6 there are also the flow info and the
scope id.
"""
Ancillary = list[tuple[int, int, bytes]]

COMMON: dict[Option, int] = {
    (stdlib.SOL_SOCKET, stdlib.SO_REUSEADDR): 0,
    (stdlib.SOL_SOCKET, stdlib.SO_REUSEPORT): 0,
    (stdlib.SOL_SOCKET, stdlib.SO_KEEPALIVE): 0,
    (stdlib.SOL_SOCKET, stdlib.SO_BROADCAST): 0,
    (stdlib.SOL_SOCKET, stdlib.SO_OOBINLINE): 0,
    (stdlib.SOL_SOCKET, stdlib.SO_PRIORITY): 0,
    (stdlib.SOL_SOCKET, stdlib.SO_RCVBUF): defaults.RECEIVE_BUFFER_BYTES,
    (stdlib.SOL_SOCKET, stdlib.SO_SNDBUF): defaults.RECEIVE_BUFFER_BYTES,
}
"""Options of level SOL_SOCKET that every socket has, with their initial values."""
_SMALLEST_BUFFER = {stdlib.SO_RCVBUF: 2304, stdlib.SO_SNDBUF: 4608}  # bytes, socket(7)
_FLAGS = frozenset(
    {
        stdlib.SO_REUSEADDR,
        stdlib.SO_REUSEPORT,
        stdlib.SO_KEEPALIVE,
        stdlib.SO_BROADCAST,
        stdlib.SO_OOBINLINE,
    }
)


class Waiters(Generic[T]):
    """Slot for one task that waits for a value. As in trio itself, a second waiting task is an
    error.
    """

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task: trio.lowlevel.Task | None = None

    def __bool__(self) -> bool:
        return self.task is not None

    def wait(self) -> Awaitable[T]:
        """Return an awaitable that waits until `give` or `wake` is called. Its result is the value
        passed to `give`.

        Raises BusyResourceError if another task already waits.
        """
        if self.task is not None:
            return self._refuse()
        self.task = GLOBAL_RUN_CONTEXT.task
        return trio.lowlevel.wait_task_rescheduled(self._abort)  # noqa: ASYNC105 (by the caller)

    async def _refuse(self) -> NoReturn:
        await trio.lowlevel.checkpoint()
        raise trio.BusyResourceError("another task is already reading / writing this socket")

    def _abort(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def wake(self: "Waiters[None]") -> bool:
        """Wake the waiting task. Return False if no task waits."""
        return self.give(None)

    def give(self, value: T) -> bool:
        """Wake the waiting task, which returns `value`. Return False if no task waits."""
        task = self.task
        if task is None:
            return False
        self.task = None
        trio.lowlevel.reschedule(task, outcome.Value(value))
        return True

    def fail(self, problem: BaseException) -> None:
        """Wake the waiting task, which raises `problem`. Do nothing if no task waits."""
        task, self.task = self.task, None
        if task is not None:
            trio.lowlevel.reschedule(task, outcome.Error(problem))


class SimSocket(tsocket.SocketType):
    """Socket without a file descriptor (`fileno()` is negative)."""

    OPTIONS: ClassVar[dict[Option, int]] = COMMON

    def __init__(self, host: Host, family: int, kind: int, proto: int) -> None:
        self.host = host
        self._family = stdlib.AddressFamily(family)
        self._kind = stdlib.SocketKind(kind)
        self._proto = proto
        self._options: dict[Option, int] = {}  # options that were set
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
        return -1 if self._closed else -2  # -1 tells trio's streams that it is closed

    def detach(self) -> int:
        raise NotSimulated(f"{self.host.name}: a simulated socket has no descriptor to detach")

    def dup(self) -> tsocket.SocketType:
        raise NotSimulated(f"{self.host.name}: a simulated socket cannot be duplicated")

    def get_inheritable(self) -> bool:
        return False

    def set_inheritable(self, inheritable: bool) -> None:
        if inheritable:
            raise NotSimulated(f"{self.host.name}: no process could inherit a simulated socket")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<{type(self).__name__} of {self.host.name}, {state}>"

    def close(self) -> None:
        """Close the socket. A task that waits on it gets ClosedResourceError."""
        self._closed = True

    # Options.

    def setsockopt(
        self, level: int, option: int, value: OptionValue, length: int | None = None
    ) -> None:
        """Set an option. Raises OSError (ENOPROTOOPT) if this socket does not have the option."""
        self._check()
        if (level, option) not in self.OPTIONS:
            raise error(errno.ENOPROTOOPT)
        number = number_of(value)
        if level == stdlib.SOL_SOCKET:
            number = _as_linux_keeps(option, number)
        self._options[level, option] = number

    @overload
    def getsockopt(self, level: int, option: int) -> int: ...

    @overload
    def getsockopt(self, level: int, option: int, buflen: int) -> bytes: ...

    def getsockopt(self, level: int, option: int, buflen: int | None = None) -> int | bytes:
        """Return the value of an option: an int or, if `buflen` is given, bytes. Raises OSError
        (ENOPROTOOPT) if this socket does not have the option.
        """
        self._check()
        value = self._structure(level, option)
        if value is not None:
            return value[:buflen] if buflen else int.from_bytes(value[:4], sys.byteorder)
        number = self._get(level, option)
        return number.to_bytes(4, sys.byteorder)[:buflen] if buflen else number

    def _structure(self, level: int, option: int) -> bytes | None:
        """Return the value of an option that is a C structure, or None for any other option."""
        return None

    def _get(self, level: int, option: int) -> int:
        """Return the value of an option as a number. Raises OSError (ENOPROTOOPT) if this socket
        does not have the option.
        """
        if level == stdlib.SOL_SOCKET:
            fixed = self._fixed(option)
            if fixed is not None:
                return fixed
        key = level, option
        if key not in self.OPTIONS:
            raise error(errno.ENOPROTOOPT)
        return self._options.get(key, self.OPTIONS[key])

    def _fixed(self, option: int) -> int | None:
        """Return the value of a read-only option of level SOL_SOCKET, or None for any other
        option.
        """
        match option:
            case stdlib.SO_TYPE:
                return int(self._kind)
            case stdlib.SO_DOMAIN:
                return int(self._family)
            case stdlib.SO_PROTOCOL:
                return self._proto
            case stdlib.SO_ACCEPTCONN:
                return int(self._listens())
            case stdlib.SO_ERROR:
                return self._take_error()
        return None

    def _listens(self) -> bool:
        """Return whether the socket accepts connections."""
        return False

    def _take_error(self) -> int:
        """Return the errno of the pending error, and clear the error. Return 0 if there is none."""
        return 0

    # Names and checkpoints.

    async def _resolve(self, address: object, *, local: bool) -> SocketName:
        """Return an address with its names resolved, by the rules of trio's own sockets. Raises
        OSError if a name cannot be resolved, and ValueError if the address has the wrong form.
        """
        only6 = self._family == stdlib.AF_INET6 and self._get(
            stdlib.IPPROTO_IPV6, stdlib.IPV6_V6ONLY
        )
        found: SocketName = await tinternal._resolve_address_nocp(
            self._kind, self._family, self._proto, ipv6_v6only=only6, address=address, local=local
        )
        return found

    def _check(self) -> None:
        """Raise OSError (EBADF) if the socket is closed."""
        if self._closed:
            raise error(errno.EBADF)

    async def _turn(self) -> None:
        """Let other tasks run if a checkpoint is due.

        A program whose calls all succeed at once must not stop the other tasks and time itself.
        """
        if self._is_turn():
            await trio.lowlevel.checkpoint()

    def _is_turn(self) -> bool:
        """Count a call, and return whether a checkpoint is due. A checkpoint is due at every
        `defaults.TURN`-th call, and if the calling task is cancelled.
        """
        self._turns += 1
        return (
            self._turns % defaults.TURN == 0
            or GLOBAL_RUN_CONTEXT.task._cancel_status.effectively_cancelled
        )


class StreamSocket(SimSocket):
    """Base class that implements trio's stream methods with four methods of a subclass.

    `take_ready` and `write_ready` read or write what is possible without waiting, and raise
    BlockingIOError if nothing is. `wait_readable` and `wait_writable` wait until it is worth
    calling them again. They raise
    ClosedResourceError if the socket is closed in the meantime.
    """

    def take_ready(self, size: int, *, peek: bool = False) -> bytes:
        """Return up to `size` bytes that have arrived, or b"" once the peer has closed its sending
        side. If `peek` is True, the bytes stay in the buffer.
        """
        raise NotImplementedError

    def write_ready(self, data: "ReadableBuffer") -> int:
        """Write without waiting. Return the number of bytes written, which is at least one unless
        `data` is empty.
        """
        raise NotImplementedError

    async def wait_readable(self) -> None:
        raise NotImplementedError

    def read_ready(self, size: int) -> bytes:
        """Return up to `size` bytes that have arrived (see `take_ready`)."""
        return self.take_ready(size)

    async def recv(self, buflen: int, flags: int = 0) -> bytes:
        if buflen < 0:
            raise ValueError("negative buffersize in recv")
        peek = bool(flags & stdlib.MSG_PEEK)
        return await self._until(lambda: self.take_ready(buflen, peek=peek), self.wait_readable)

    async def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer).cast("B")
        data = await self.recv(nbytes or len(view), flags)
        view[: len(data)] = data
        return len(data)

    async def recvfrom(self, bufsize: int, flags: int = 0) -> tuple[bytes, None]:
        return await self.recv(bufsize, flags), None

    async def recvfrom_into(
        self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0
    ) -> tuple[int, None]:
        return await self.recv_into(buffer, nbytes, flags), None

    async def recvmsg(
        self, bufsize: int, ancbufsize: int = 0, flags: int = 0
    ) -> tuple[bytes, Ancillary, int, None]:
        return await self.recv(bufsize, flags), [], 0, None

    async def recvmsg_into(
        self, buffers: "Iterable[WriteableBuffer]", ancbufsize: int = 0, flags: int = 0
    ) -> tuple[int, Ancillary, int, None]:
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        data = await self.recv(sum(map(len, views)), flags)
        scatter(data, views)
        return len(data), [], 0, None

    async def send(self, data: "ReadableBuffer", flags: int = 0) -> int:
        return await self._until(lambda: self.write_ready(data), self.wait_writable)

    async def sendto(self, data: "ReadableBuffer", *args: object) -> int:
        return await self.send(data)  # the address is ignored on a connected stream

    async def sendmsg(
        self,
        buffers: "Iterable[ReadableBuffer]",
        ancdata: Iterable[object] = (),
        flags: int = 0,
        address: object = None,
    ) -> int:
        if any(True for _ in ancdata):
            raise NotSimulated(f"{self.host.name}: ancillary data over a stream is not simulated")
        return await self.send(b"".join(map(bytes, buffers)), flags)

    async def _until(self, attempt: Callable[[], T], wait: Callable[[], Awaitable[None]]) -> T:
        """Call `attempt` until it no longer raises BlockingIOError, with `wait` in between. Return
        its result.
        """
        self._check()
        await self._turn()
        while True:
            self._check()
            try:
                return attempt()
            except BlockingIOError:
                await wait()


def number_of(value: OptionValue) -> int:
    """Return the value of an option as an int. Raises OSError (EINVAL) if it has fewer than four
    bytes, and TypeError if it is None.
    """
    if isinstance(value, int):
        return int(value)
    if value is None:
        raise TypeError("an option's value is an int or bytes")
    data = bytes(value)
    if len(data) < 4:
        raise error(errno.EINVAL)
    return int.from_bytes(data[:4], sys.byteorder, signed=True)


def scatter(data: bytes, views: Iterable[memoryview]) -> None:
    """Copy `data` into buffers, filling one after the other."""
    for view in views:
        part = data[: len(view)]
        view[: len(part)] = part
        data = data[len(part) :]


def _as_linux_keeps(option: int, number: int) -> int:
    """Return the value that Linux stores for an option. A flag is 0 or 1. A buffer size is doubled,
    for the kernel's own use (socket(7)).
    """
    if option in _FLAGS:
        return int(bool(number))
    if option in _SMALLEST_BUFFER:
        allowed = min(number, defaults.RECEIVE_BUFFER_BYTES) if number >= 0 else 0
        return max(allowed * 2, _SMALLEST_BUFFER[option])
    return number

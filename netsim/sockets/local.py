"""Unix stream sockets within one host: bound to a path name, or created as a pair.

The path names of a host are not files on its disk. Written bytes arrive at once, as in a kernel: no
time passes, and the trace records no packet.
"""

import errno
import os
import socket as stdlib
import struct
from collections import deque
from typing import TYPE_CHECKING, ClassVar

import trio

from .. import defaults
from ..host import Host, error
from .base import COMMON, Option, StreamSocket, Waiters

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, StrOrBytesPath

_LONGEST_PATH = 107  # bytes of sun_path without the final zero, unix(7)


class LocalStack:
    """Path names of Unix sockets on one host. Each maps to the socket bound to it, or to None once
    that socket is closed.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.names: dict[str, LocalSocket | None] = {}

    def unlink(self, path: str) -> None:
        """Remove a path name. A listening socket stays open without it. Raises FileNotFoundError if
        the name does not exist.
        """
        if path not in self.names:
            raise error(errno.ENOENT)
        del self.names[path]

    def power_off(self) -> None:
        """Close all sockets, because the host loses power. Their path names stay."""
        for socket in list(self.names.values()):
            if socket is not None:
                socket.close()


class LocalSocket(StreamSocket):
    """Unix stream socket, which behaves as in Linux, unix(7)."""

    OPTIONS: ClassVar[dict[Option, int]] = {**COMMON, (stdlib.SOL_SOCKET, stdlib.SO_PASSCRED): 0}

    def __init__(self, host: Host) -> None:
        super().__init__(host, stdlib.AF_UNIX, stdlib.SOCK_STREAM, 0)
        self._name = ""
        self._peer: LocalSocket | None = None
        self._peer_name: str | None = None  # None if it was never connected
        self._inbox = bytearray()
        self._eof = False  # no more bytes will arrive
        self._done_writing = False
        self._reset = False  # whether the peer closed with unread data
        self._backlog: int | None = None  # backlog of a listener; None for other sockets
        self._pending: deque[LocalSocket] = deque()
        self._readers: Waiters[None] = Waiters()
        self._writers: Waiters[None] = Waiters()
        self._knocking: deque[Waiters[None]] = (
            deque()
        )  # tasks in `connect` that wait for space in the backlog

    @property
    def did_shutdown_SHUT_WR(self) -> bool:
        return self._done_writing

    def getsockname(self) -> str:
        self._check()
        return self._name

    def getpeername(self) -> str:
        self._check()
        if self._peer is None:
            raise error(errno.ENOTCONN)
        assert self._peer_name is not None
        return self._peer_name

    def _structure(self, level: int, option: int) -> bytes | None:
        if (level, option) == (stdlib.SOL_SOCKET, stdlib.SO_PEERCRED):
            return struct.pack("3i", 1, 0, 0)  # one user per host
        return super()._structure(level, option)

    def _listens(self) -> bool:
        return self._backlog is not None

    # Connecting.

    async def bind(self, address: "StrOrBytesPath") -> None:
        self._check()
        await trio.lowlevel.checkpoint()
        path = _path(address)
        if self._name:
            raise error(errno.EINVAL)
        if path in self.host.local.names:
            raise error(errno.EADDRINUSE)
        self._name = path
        self.host.local.names[path] = self

    def listen(self, backlog: int = 128) -> None:
        self._check()
        if self._peer is not None or not self._name:
            raise error(errno.EINVAL)
        self._backlog = max(0, backlog)

    async def accept(self) -> tuple["LocalSocket", str | None]:
        self._check()
        if self._backlog is None:
            raise error(errno.EINVAL)
        await self._turn()
        while not self._pending:
            await self._readers.wait()
        socket = self._pending.popleft()
        if self._knocking:
            self._knocking.popleft().wake()
        return socket, socket._peer_name

    async def connect(self, address: "StrOrBytesPath") -> None:
        self._check()
        await trio.lowlevel.checkpoint()
        if self._peer is not None:
            raise error(errno.EISCONN)
        listener = self._listener(_path(address))
        while len(listener._pending) > (listener._backlog or 0):
            await self._knock(listener)
            if listener._closed:
                raise error(errno.ECONNREFUSED)
        far = LocalSocket(self.host)
        far._name = listener._name
        _join(self, far)
        listener._pending.append(far)
        listener._readers.wake()

    def _listener(self, path: str) -> "LocalSocket":
        """Return the listener at a path name. Raises OSError if there is none."""
        if path not in self.host.local.names:
            raise error(errno.ENOENT)
        found = self.host.local.names[path]
        if found is None or found._backlog is None:
            raise error(errno.ECONNREFUSED)
        return found

    async def _knock(self, listener: "LocalSocket") -> None:
        """Wait for space in the backlog of a listener."""
        turn: Waiters[None] = Waiters()
        listener._knocking.append(turn)
        try:
            await turn.wait()
        except trio.Cancelled:
            listener._knocking.remove(turn)
            self.close()  # trio closes a socket whose connect is cancelled
            raise

    # Bytes.

    def take_ready(self, size: int, *, peek: bool = False) -> bytes:
        self._check()
        inbox = self._inbox
        if inbox:
            data = bytes(inbox[:size])
            if not peek:
                self._remove(len(data))
            return data
        if self._reset:
            self._reset = False
            raise error(errno.ECONNRESET)
        if self._eof:
            return b""
        if self._peer is None:
            raise error(errno.EINVAL)
        if not size:
            return b""
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _remove(self, size: int) -> None:
        """Remove bytes that were read, and wake a peer that waits for space to write."""
        del self._inbox[:size]
        peer = self._peer
        if peer is not None and peer._writers and peer._may_write():
            peer._writers.wake()

    def write_ready(self, data: "ReadableBuffer") -> int:
        self._check()
        peer = self._peer
        if peer is None:
            raise error(errno.ENOTCONN)
        if self._done_writing or peer._closed or peer._eof:
            raise error(errno.EPIPE)
        view = memoryview(data).cast("B")
        room = defaults.RECEIVE_BUFFER_BYTES - len(peer._inbox)
        if room <= 0 and view:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        taken = view[:room]
        peer._inbox += taken
        if taken:
            peer._readers.wake()
        return len(taken)

    def is_readable(self) -> bool:
        """Return whether a read or an `accept` would return at once."""
        return bool(self._inbox or self._eof or self._reset or self._pending)

    async def wait_readable(self) -> None:
        self._check()
        if self.is_readable():
            await self._turn()
        else:
            await self._readers.wait()

    def _may_write(self) -> bool:
        """Return whether the socket is writable. As in Linux, at most a quarter of the peer's
        buffer may be full.
        """
        peer = self._peer
        if peer is None or peer._closed or self._done_writing:
            return True
        return len(peer._inbox) * 4 <= defaults.RECEIVE_BUFFER_BYTES

    async def wait_writable(self) -> None:
        self._check()
        if self._may_write():
            await self._turn()
        else:
            await self._writers.wait()

    # The end.

    def shutdown(self, flag: int) -> None:
        self._check()
        peer = self._peer
        if peer is None:
            raise error(errno.ENOTCONN)
        if flag in (stdlib.SHUT_WR, stdlib.SHUT_RDWR):
            self._done_writing = True
            peer._no_more()
            self._writers.wake()
        if flag in (stdlib.SHUT_RD, stdlib.SHUT_RDWR):
            self._no_more()
            peer._writers.wake()

    def _no_more(self) -> None:
        """Mark the end of the incoming data, and wake a reader."""
        self._eof = True
        self._readers.wake()

    def _take_error(self) -> int:
        pending, self._reset = self._reset, False
        return errno.ECONNRESET if pending else 0

    def close(self) -> None:
        if self._closed:
            return
        super().close()
        names = self.host.local.names
        if self._name and names.get(self._name) is self:
            names[self._name] = None
        self._hang_up()
        for waiting in (self._readers, self._writers):
            waiting.fail(trio.ClosedResourceError("another task closed this socket"))
        for socket in self._pending:  # a waiting client sees a reset, not an end of file
            socket._hang_up(reset=True)
            socket.close()
        while self._knocking:
            self._knocking.popleft().wake()

    def _hang_up(self, *, reset: bool = False) -> None:
        """End the connection for the peer. The peer gets ECONNRESET if `reset` is True or if this
        socket has unread data, otherwise the end of the data.
        """
        peer = self._peer
        if peer is None or peer._closed:
            return
        peer._reset = peer._reset or reset or bool(self._inbox)
        peer._no_more()
        peer._writers.wake()


def pair(host: Host) -> tuple[LocalSocket, LocalSocket]:
    """Return two sockets of a host that are connected to each other."""
    a, b = LocalSocket(host), LocalSocket(host)
    _join(a, b)
    return a, b


def _join(near: LocalSocket, far: LocalSocket) -> None:
    """Connect two sockets to each other."""
    near._peer, far._peer = far, near
    near._peer_name, far._peer_name = far._name, near._name


def _path(address: "StrOrBytesPath") -> str:
    """Return the path name of an address. Raises OSError if it is too long."""
    path = os.fsdecode(address)
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise OSError("AF_UNIX path too long")
    return path

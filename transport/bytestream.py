"""Byte streams between two nodes, and the kinds of path that they form.

A TCP connection, a QUIC stream through a punched hole, a circuit through a relay, and a browser's
data channel all implement `ByteStream`. The layers above it (TLS, hello, frames) do not distinguish
between them.

A read or write never waits: it completes at once or raises BlockingIOError. The caller waits in a
separate method, `wait_readable` or `wait_writable`. trio's own socket methods pass through trio's
scheduler at every call. That would cost too much here, because frames are written by whichever task
has one.
"""

import os
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Protocol, cast

import trio

from .host.datagrams import Place


class PathKind(StrEnum):
    """Kind of the path by which a byte stream reaches the peer. The members are in order of
    preference, best first."""

    LOOPBACK = "loopback"
    LAN = "lan"
    DIRECT = "direct"  # to the peer's own public address
    MAPPED = "mapped"  # to a port that the peer's router forwards
    PUNCHED = "punched"  # through NATs that both sides opened by sending at the same time
    BROWSER = "webrtc"
    RELAYED = "relayed"

    @property
    def rank(self) -> int:
        """Preference of the kind: lower is better. A link uses the path with the lowest rank."""
        return _RANKS[self]


_RANKS = {
    PathKind.LOOPBACK: 0,
    PathKind.LAN: 0,
    PathKind.DIRECT: 1,
    PathKind.MAPPED: 1,
    PathKind.PUNCHED: 1,
    PathKind.BROWSER: 2,
    PathKind.RELAYED: 3,
}


class ByteStream(Protocol):
    """An open byte stream to one peer. Delivery is reliable and in order, but the peer is not
    authenticated."""

    @property
    def remote(self) -> Place:
        """Address of the remote end, as seen from here; `("", 0)` if it has none."""
        ...

    @property
    def medium(self) -> str:
        """The transport below: `tcp`, `udp`, `circuit` or `webrtc`."""
        ...

    def read_ready(self, size: int) -> bytes:
        """Return 1 to `size` received bytes, or b"" once the peer has closed its sending side.
        Raises BlockingIOError if no bytes have arrived yet, and OSError if the connection is lost.
        """
        ...

    def write_ready(self, data: memoryview) -> int:
        """Accept bytes for sending and return how many were accepted, at least one. Raises
        BlockingIOError if the send buffer is full, and OSError if the connection is lost."""
        ...

    async def wait_readable(self) -> None:
        """Wait until a read can succeed. Raises trio.ClosedResourceError if this end was closed,
        and OSError if the connection is lost."""
        ...

    async def wait_writable(self) -> None:
        """Wait until the stream has few unsent bytes. This can take longer than until the next
        write would succeed, and is necessary because an urgent frame cannot overtake bytes that the
        stream has already accepted.

        Raises trio.ClosedResourceError if this end was closed, and OSError if the connection is
        lost.
        """
        ...

    def end(self) -> None:
        """Close the sending side. Bytes accepted earlier are still sent. Raises OSError if the
        connection is lost."""
        ...

    def close(self) -> None:
        """Close both directions at once. Tasks that wait on the stream raise
        trio.ClosedResourceError. A second call does nothing."""
        ...


class _Ready(Protocol):
    """Methods of a simulated TCP socket that read and write without passing through trio."""

    def read_ready(self, size: int) -> bytes: ...

    def write_ready(self, data: memoryview) -> int: ...

    async def wait_readable(self) -> None: ...

    async def wait_writable(self) -> None: ...


class _SystemSocket:
    """Implementation of `_Ready` that calls the operating system directly, without Python code in
    between."""

    __slots__ = ("read_ready", "wait_readable", "wait_writable", "write_ready")

    def __init__(self, fd: int) -> None:
        self.read_ready = partial(os.read, fd)
        self.write_ready = partial(os.write, fd)
        self.wait_readable = partial(trio.lowlevel.wait_readable, fd)
        self.wait_writable = partial(trio.lowlevel.wait_writable, fd)


class TcpByteStream:
    """A connected TCP socket.

    A real socket is read and written through its file descriptor. A simulated socket has no
    descriptor (its `fileno` returns a negative number), and implements the methods of `_Ready`
    itself.
    """

    medium = "tcp"

    def __init__(self, stream: trio.SocketStream) -> None:
        self._socket = stream.socket
        fd = self._socket.fileno()
        ready: _Ready = _SystemSocket(fd) if fd >= 0 else cast(_Ready, self._socket)
        self.remote = _place(self._socket)
        self.local_port = int(self._socket.getsockname()[1])
        # Stored as attributes, so that a read or write is one call instead of two.
        self.read_ready = ready.read_ready
        self.write_ready = ready.write_ready
        self.wait_readable = ready.wait_readable
        self.wait_writable = ready.wait_writable

    def end(self) -> None:
        self._socket.shutdown(trio.socket.SHUT_WR)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()


def _place(socket: trio.socket.SocketType) -> Place:
    """Return the other end's IP address and port, or `("", 0)` if the socket is no longer
    connected."""
    try:
        name = socket.getpeername()
    except OSError:
        return "", 0
    return str(name[0]).split("%")[0], int(name[1])

"""Byte streams between two nodes, and the kinds of path that they make.

A TCP connection, a QUIC stream through a punched hole, a circuit through a relay and a browser's
data channel are all a `ByteStream`. Everything above (TLS, hello, frames) does not know which.
Reads and writes either happen at once or wait until they may work. trio's own methods try the
system call and then pass through the scheduler for each piece. A lane reads once per wake-up, and
writes from whichever task has a frame.
"""

import os
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Protocol, cast

import trio

from .host.datagrams import Place


class PathKind(StrEnum):
    """Path kind: how a byte stream reaches the peer. Best first."""

    LOOPBACK = "loopback"
    LAN = "lan"
    DIRECT = "direct"  # the peer's own public address
    MAPPED = "mapped"  # a port that the peer's router forwards
    PUNCHED = "punched"  # both sides sent at the same time
    BROWSER = "webrtc"
    RELAYED = "relayed"

    @property
    def rank(self) -> int:
        """Rank of the kind, lower is better: a link uses the best path that it has."""
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
    """An open byte stream to one peer, reliable and in order, but not authenticated."""

    @property
    def remote(self) -> Place:
        """Address of the other end as seen here; `("", 0)` if there is none."""
        ...

    @property
    def medium(self) -> str:
        """`tcp`, `udp`, `circuit` or `webrtc`."""
        ...

    def read_ready(self, size: int) -> bytes:
        """Return up to `size` received bytes, b"" at the end. Raises BlockingIOError if there are
        none yet, OSError if the connection is lost."""
        ...

    def write_ready(self, data: memoryview) -> int:
        """Return the number of bytes taken, at least one. Raises BlockingIOError if full,
        OSError."""
        ...

    async def wait_readable(self) -> None:
        """Wait until a read may succeed. Raises trio.ClosedResourceError, OSError."""
        ...

    async def wait_writable(self) -> None:
        """Wait until little is unsent, not merely until a write would succeed: later frames cannot
        overtake bytes that were written early. Raises trio.ClosedResourceError, OSError."""
        ...

    def end(self) -> None:
        """End writing. Bytes written before still leave. Raises OSError."""
        ...

    def close(self) -> None:
        """Close at once. Waiting tasks raise trio.ClosedResourceError. May be called again."""
        ...


class _Ready(Protocol):
    """The methods of a simulated TCP socket."""

    def read_ready(self, size: int) -> bytes: ...

    def write_ready(self, data: memoryview) -> int: ...

    async def wait_readable(self) -> None: ...

    async def wait_writable(self) -> None: ...


class _Descriptor:
    """`_Ready` over a descriptor of the operating system, without any code of ours in between."""

    __slots__ = ("read_ready", "wait_readable", "wait_writable", "write_ready")

    def __init__(self, fd: int) -> None:
        self.read_ready = partial(os.read, fd)
        self.write_ready = partial(os.write, fd)
        self.wait_readable = partial(trio.lowlevel.wait_readable, fd)
        self.wait_writable = partial(trio.lowlevel.wait_writable, fd)


class TcpByteStream:
    """A connected TCP socket. A socket of the operating system is used by its descriptor. A
    simulated socket has none (`fileno` is negative) and has the four methods itself."""

    medium = "tcp"

    def __init__(self, stream: trio.SocketStream) -> None:
        self._socket = stream.socket
        fd = self._socket.fileno()
        ready: _Ready = _Descriptor(fd) if fd >= 0 else cast(_Ready, self._socket)
        self.remote = _place(self._socket)
        self.local_port = int(self._socket.getsockname()[1])
        # Bound here, so that a read or write is one call instead of two.
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
    """Return the other end's IP address and port; empty if the socket is not connected any more."""
    try:
        name = socket.getpeername()
    except OSError:
        return "", 0
    return str(name[0]).split("%")[0], int(name[1])

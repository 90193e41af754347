"""What carries bytes between two nodes, whoever made it.

A TCP connection, a QUIC stream through a punched hole, a circuit through a relay, a browser's data
channel: each is a `Pipe`, and everything above (TLS, hello, frames) does not know which. Reads and
writes happen at once or wait until that may work: trio's own methods try the system call, then pass
through the scheduler, for each piece; a lane reads once per wake-up and writes from whoever has
a frame.
"""

import os
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Protocol, cast

import trio

from .datagrams import Place


class Way(StrEnum):
    """How a pipe got to the peer, as a person is told; best first."""

    LOOPBACK = "loopback"
    LAN = "lan"
    DIRECT = "direct"  # the peer's own public address
    MAPPED = "mapped"  # a port that its router forwards
    PUNCHED = "punched"  # both sides sent at the same time
    BROWSER = "webrtc"
    RELAYED = "relayed"

    @property
    def rank(self) -> int:
        """Lower is better: a link uses the best it has."""
        return _RANKS[self]


_RANKS = {
    Way.LOOPBACK: 0,
    Way.LAN: 0,
    Way.DIRECT: 1,
    Way.MAPPED: 1,
    Way.PUNCHED: 1,
    Way.BROWSER: 2,
    Way.RELAYED: 3,
}


class Pipe(Protocol):
    """An open byte stream to one peer, reliable and in order; not yet proven to be anybody's."""

    @property
    def remote(self) -> Place:
        """Where the other end is seen; `("", 0)` where there is no such place."""
        ...

    @property
    def medium(self) -> str:
        """`tcp`, `udp`, `circuit` or `webrtc`."""
        ...

    def read_ready(self, size: int) -> bytes:
        """What has come, up to `size` bytes, b"" at the end. Raises BlockingIOError where
        nothing has, OSError where the connection is lost."""
        ...

    def write_ready(self, data: memoryview) -> int:
        """Bytes taken, at least one. Raises BlockingIOError where there is no room, OSError."""
        ...

    async def wait_readable(self) -> None:
        """Until reading is worth a try. Raises trio.ClosedResourceError, OSError."""
        ...

    async def wait_writable(self) -> None:
        """Until little is unsent, not merely until there is room: what is written early cannot
        be overtaken. Raises trio.ClosedResourceError, OSError."""
        ...

    def end(self) -> None:
        """Nothing more is written; what was, still leaves. Raises OSError."""
        ...

    def close(self) -> None:
        """Drop it at once; tasks that wait raise trio.ClosedResourceError. May be repeated."""
        ...


class _Ready(Protocol):
    """What a simulated TCP socket brings."""

    def read_ready(self, size: int) -> bytes: ...

    def write_ready(self, data: memoryview) -> int: ...

    async def wait_readable(self) -> None: ...

    async def wait_writable(self) -> None: ...


class _Descriptor:
    """The same over a descriptor of the operating system, with no step of ours in between."""

    __slots__ = ("read_ready", "wait_readable", "wait_writable", "write_ready")

    def __init__(self, fd: int) -> None:
        self.read_ready = partial(os.read, fd)
        self.write_ready = partial(os.write, fd)
        self.wait_readable = partial(trio.lowlevel.wait_readable, fd)
        self.wait_writable = partial(trio.lowlevel.wait_writable, fd)


class TcpPipe:
    """A connected TCP socket. One of the operating system's is used by its descriptor; one of
    the simulator's has none (`fileno` is negative) and brings the four methods itself."""

    medium = "tcp"

    def __init__(self, stream: trio.SocketStream) -> None:
        self._socket = stream.socket
        fd = self._socket.fileno()
        ready: _Ready = _Descriptor(fd) if fd >= 0 else cast(_Ready, self._socket)
        self.remote = _place(self._socket)
        self.local_port = int(self._socket.getsockname()[1])
        # Bound here, so that a read or write is one call and not two.
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
    """The other end's IP address and port; empty where it is gone already."""
    try:
        name = socket.getpeername()
    except OSError:
        return "", 0
    return str(name[0]).split("%")[0], int(name[1])

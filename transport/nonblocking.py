"""A connected socket as a path uses it: read and write at once, or wait until that may work.

Trio's own methods try the system call, then pass through the scheduler, for each piece; a lane
reads once per wake-up and writes from whoever has a frame. A socket of the operating system's
is used by its descriptor. One of the simulator's has none (`fileno` is negative) and brings
these four methods itself.
"""

import os
from typing import Protocol, cast

import trio


class NonBlocking(Protocol):
    """What a path needs of a connected stream socket."""

    def read_ready(self, size: int) -> bytes:
        """What has come, up to `size` bytes, b"" at the end. Raises BlockingIOError where
        nothing has, OSError where the connection is lost."""
        ...

    def write_ready(self, data: memoryview) -> int:
        """Bytes taken, at least one. Raises BlockingIOError where there is no room, OSError."""
        ...

    async def wait_readable(self) -> None: ...

    async def wait_writable(self) -> None:
        """Until little is unsent (TCP_NOTSENT_LOWAT), not merely until there is room."""
        ...


class _Descriptor:
    """`NonBlocking` over a descriptor of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read_ready(self, size: int) -> bytes:
        return os.read(self._fd, size)

    def write_ready(self, data: memoryview) -> int:
        return os.write(self._fd, data)

    async def wait_readable(self) -> None:
        await trio.lowlevel.wait_readable(self._fd)

    async def wait_writable(self) -> None:
        await trio.lowlevel.wait_writable(self._fd)


def non_blocking(socket: trio.socket.SocketType) -> NonBlocking:
    """The four methods for a socket, whoever made it."""
    fd = socket.fileno()
    return _Descriptor(fd) if fd >= 0 else cast(NonBlocking, socket)

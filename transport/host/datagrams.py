"""UDP sockets. Sending either succeeds at once or fails, and receiving returns all datagrams that
have arrived.

A socket of the operating system is used through its file descriptor, which saves a pass through the
scheduler for each datagram. A simulated socket, whose `fileno` is negative, implements these
methods itself.
"""

import socket as stdlib
from typing import Final, Protocol, cast

import trio

Place = tuple[str, int]
"""(IP address as text without a zone or brackets, UDP or TCP port)."""
Datagram = tuple[bytes, Place]
"""(received bytes, source address)."""
_BATCH: Final = 64  # most datagrams that are read at once
_BYTES: Final = 65535  # largest datagram


class Datagrams(Protocol):
    """One bound UDP socket for one IP version."""

    @property
    def port(self) -> int: ...

    def send(self, data: bytes, to: Place) -> bool:
        """Pass one datagram to the network. Return False if it was not accepted because there is no
        route, the buffer is full, or the port refused an earlier datagram. Never blocks and never
        raises."""
        ...

    async def receive(self) -> list[Datagram]:
        """Wait for datagrams and return all that have arrived. Raises trio.ClosedResourceError if
        the socket is closed."""
        ...

    def close(self) -> None: ...


class _NonBlocking(Protocol):
    """The methods of a simulated socket that do not block."""

    def send_datagram(self, data: bytes, to: Place) -> int: ...

    async def receive_some(self) -> list[Datagram]: ...


class _Simulated:
    """Implementation of `Datagrams` on a simulated socket."""

    def __init__(self, socket: trio.socket.SocketType) -> None:
        self._socket = socket
        self._ready = cast(_NonBlocking, socket)
        self.port = int(socket.getsockname()[1])

    def send(self, data: bytes, to: Place) -> bool:
        try:
            self._ready.send_datagram(data, to)
        except OSError:
            return False
        return True

    async def receive(self) -> list[Datagram]:
        return await self._ready.receive_some()

    def close(self) -> None:
        self._socket.close()


class _Descriptor:
    """Implementation of `Datagrams` on a file descriptor of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._socket = stdlib.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])

    def send(self, data: bytes, to: Place) -> bool:
        try:
            self._socket.sendto(data, to)
        except OSError:
            return False
        return True

    async def receive(self) -> list[Datagram]:
        found: list[Datagram] = []
        while not found:
            if self._socket.fileno() < 0:
                raise trio.ClosedResourceError
            await trio.lowlevel.wait_readable(self._socket)
            found = self._take()
        return found

    def _take(self) -> list[Datagram]:
        found: list[Datagram] = []
        try:
            while len(found) < _BATCH:
                data, source = self._socket.recvfrom(_BYTES)
                found.append((data, (source[0].split("%")[0], source[1])))
        except BlockingIOError:
            pass
        except OSError:  # the error belongs to an earlier datagram, and the socket still works
            if self._socket.fileno() < 0:
                raise trio.ClosedResourceError from None
        return found

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


def datagrams(socket: trio.socket.SocketType) -> Datagrams:
    """Wrap a bound socket, real or simulated. The returned object owns the socket and closes it."""
    return _Descriptor(socket.detach()) if socket.fileno() >= 0 else _Simulated(socket)

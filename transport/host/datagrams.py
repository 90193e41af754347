"""UDP sockets that send at once or not at all, and receive everything that has arrived.

A socket of the operating system is used by its descriptor, which saves a pass through the scheduler
for each datagram. A simulated socket (its `fileno` is negative) has these methods itself.
"""

import socket as stdlib
from typing import Final, Protocol, cast

import trio

Place = tuple[str, int]
"""An IP address as text (no zone, no brackets) and a UDP or TCP port."""
Datagram = tuple[bytes, Place]
"""Received bytes and their source."""
_BATCH: Final = 64
_BYTES: Final = 65535


class Datagrams(Protocol):
    """One bound UDP socket, of one IP version."""

    @property
    def port(self) -> int: ...

    def send(self, data: bytes, to: Place) -> bool:
        """Pass one datagram to the network. Return False if it was not taken: no route, a full
        buffer, or a port that refused before. Never blocks, never raises."""
        ...

    async def receive(self) -> list[Datagram]:
        """Wait for datagrams and return all that have come. Raises trio.ClosedResourceError."""
        ...

    def close(self) -> None: ...


class _NonBlocking(Protocol):
    """The methods of a simulated socket."""

    def send_datagram(self, data: bytes, to: Place) -> int: ...

    async def receive_some(self) -> list[Datagram]: ...


class _Simulated:
    """`Datagrams` over a simulated socket."""

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
    """`Datagrams` over a descriptor of the operating system."""

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
    """Wrap a bound socket, real or simulated, and take ownership of it."""
    return _Descriptor(socket.detach()) if socket.fileno() >= 0 else _Simulated(socket)

"""A UDP socket as the transport uses it: send at once or not at all, take all that has come.

A socket of the operating system's is used by its descriptor, without a pass through the scheduler
for each datagram; one of the simulator's (its `fileno` is negative) brings the methods itself.
"""

import socket as stdlib
from typing import Final, Protocol, cast

import trio

Place = tuple[str, int]
"""An IP address as text (no zone, no brackets) and a UDP or TCP port."""
Datagram = tuple[bytes, Place]
"""What came, and where from."""
_BATCH: Final = 64
_BYTES: Final = 65535


class Datagrams(Protocol):
    """One bound UDP socket, of one IP version."""

    @property
    def port(self) -> int: ...

    def send(self, data: bytes, to: Place) -> bool:
        """Hand one datagram to the network; False where it was not taken (no route, a full
        buffer, a port that said no before). Never blocks, never raises."""
        ...

    async def receive(self) -> list[Datagram]:
        """Everything that has come, at least one. Raises trio.ClosedResourceError."""
        ...

    def close(self) -> None: ...


class _NonBlocking(Protocol):
    """What the simulator's sockets bring."""

    def send_datagram(self, data: bytes, to: Place) -> int: ...

    async def receive_some(self) -> list[Datagram]: ...


class _Simulated:
    """`Datagrams` over a socket of the simulator's."""

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
        except OSError:  # an error of an earlier datagram: nothing is wrong with the socket
            if self._socket.fileno() < 0:
                raise trio.ClosedResourceError from None
        return found

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


def datagrams(socket: trio.socket.SocketType) -> Datagrams:
    """The methods for a bound socket, whoever made it; it belongs to them from now on."""
    return _Descriptor(socket.detach()) if socket.fileno() >= 0 else _Simulated(socket)

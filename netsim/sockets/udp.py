"""UDP: the sockets, and the part of a host's stack that finds them."""

import errno
import socket as stdlib
from collections import deque
from typing import Any

import trio

from .. import defaults
from ..host import Host, cause, error
from ..packet import IP4_HEADER, IP6_HEADER, UDP, UDP_HEADER, Addr, Packet
from .base import SimSocket, Waiters

_OVERHEAD4 = IP4_HEADER + UDP_HEADER
_OVERHEAD6 = IP6_HEADER + UDP_HEADER


class UdpStack:
    """Finds the socket of a datagram: by its exact address, else by the port."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.sockets: dict[Addr, UdpSocket] = {}
        self._next = host.streams.get(host.name, "ports").randrange(*defaults.EPHEMERAL)

    def receive(self, packet: Packet) -> None:
        dst = packet.dst
        sockets = self.sockets
        socket = sockets.get(dst)
        if socket is None:
            socket = sockets.get(("::" if ":" in dst[0] else "0.0.0.0", dst[1]))
        if socket is not None:
            socket.take(packet)

    def free_port(self, address: str) -> int:
        """A port nobody uses. Raises OSError (EADDRINUSE)."""
        low, high = defaults.EPHEMERAL
        for _ in range(high - low + 1):
            self._next = self._next + 1 if self._next < high else low
            if (address, self._next) not in self.sockets:
                return self._next
        raise error(errno.EADDRINUSE)


class UdpSocket(SimSocket):
    """A datagram socket."""

    def __init__(self, stack: UdpStack, family: int) -> None:
        super().__init__(stack.host, family, stdlib.SOCK_DGRAM, stdlib.IPPROTO_UDP)
        self._stack = stack
        self._any = "::" if family == stdlib.AF_INET6 else "0.0.0.0"
        self._overhead = _OVERHEAD6 if family == stdlib.AF_INET6 else _OVERHEAD4
        self._name: Addr | None = None
        self._peer: Addr | None = None
        self._queue: deque[tuple[bytes, Addr]] = deque()
        self._queued = 0
        self._readers = Waiters()

    async def bind(self, address: Any) -> None:
        self._check()
        await trio.lowlevel.checkpoint()
        self._bind(str(address[0]) or self._any, int(address[1]))

    def _bind(self, address: str, port: int) -> None:
        if self._name is not None:
            raise error(errno.EINVAL)
        if address != self._any and self.host.source(address)[0] is not None:
            raise error(errno.EADDRNOTAVAIL)
        if not port:
            port = self._stack.free_port(address)
        if (address, port) in self._stack.sockets:
            raise error(errno.EADDRINUSE)
        self._name = address, port
        self._stack.sockets[self._name] = self

    def getsockname(self) -> Any:
        self._check()
        return self._name or (self._any, 0)

    async def connect(self, address: Any) -> None:
        self._check()
        await trio.lowlevel.checkpoint()
        if self._name is None:
            self._bind(self._any, 0)
        self._peer = str(address[0]), int(address[1])

    async def sendto(self, data: Any, *args: Any) -> int:
        await self._turn()
        return self.send_datagram(bytes(data), args[-1])

    async def send(self, data: Any, flags: int = 0) -> int:
        await self._turn()
        if self._peer is None:
            raise error(errno.EDESTADDRREQ)
        return self.send_datagram(bytes(data), self._peer)

    def send_datagram(self, data: bytes, to: Any) -> int:
        """Send now. Raises OSError."""
        self._check()
        size = len(data)
        if size > defaults.DATAGRAM_BYTES:
            raise error(errno.EMSGSIZE)
        if self._name is None:
            self._bind(self._any, 0)
        assert self._name is not None
        via, source = self.host.source(to[0])
        if self._name[0] != self._any:
            source = self._name[0]
        packet = Packet(
            UDP,
            (source, self._name[1]),
            (to[0], to[1]),
            size + self._overhead,
            data,
            self.host.name,
            cause(),
        )
        self.host.send(packet, via)
        return size

    def take(self, packet: Packet) -> None:
        """A datagram has come."""
        if self._peer is not None and packet.src != self._peer:
            return
        item = packet.data, packet.src
        if self._readers.wake(item):
            return
        cost = len(packet.data) + defaults.DATAGRAM_OVERHEAD_BYTES
        if self._queued + cost > defaults.RECEIVE_BUFFER_BYTES:
            self.host.network.drop("buffer", self.host.name, packet)
            return
        self._queued += cost
        self._queue.append(item)

    async def recvfrom(self, bufsize: int, flags: int = 0) -> tuple[bytes, Any]:
        self._check()
        if self._queue:
            await self._turn()
            data, source = self._queue.popleft()
            self._queued -= len(data) + defaults.DATAGRAM_OVERHEAD_BYTES
        else:
            item = await self._readers.wait()
            if item is None:
                raise trio.ClosedResourceError
            data, source = item
        return (data, source) if len(data) <= bufsize else (data[:bufsize], source)

    async def recv(self, bufsize: int, flags: int = 0) -> bytes:
        return (await self.recvfrom(bufsize, flags))[0]

    def close(self) -> None:
        if self._closed:
            return
        super().close()
        if self._name is not None and self._stack.sockets.get(self._name) is self:
            del self._stack.sockets[self._name]
        self._readers.wake_all()

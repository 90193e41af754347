"""The node's UDP port: owns its sockets and demultiplexes their datagrams (RFC 9443)."""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from ..errors import AddressInUse
from ..guard import Guard
from ..host.datagrams import Datagram, Datagrams, Place
from ..host.seam import Host
from ..limits import HalfOpen, Limits
from .connections import Connections, unreachable
from .defaults import UdpLimits
from .quic import QuicByteStream

OnStun = Callable[[bytes, Place, Datagrams], None]
_STUN: Final = 4  # a first byte below this means STUN (RFC 9443, section 3)
_QUIC: Final = 64  # a first byte from this on means QUIC
_PORT_TRIES: Final = 8  # port numbers that are tried until one is free for all addresses


class UdpPort:
    """One UDP port number, with a socket for each IP version, and further sockets that are added
    later.

    QUIC connections are dialled from this port and accepted on it. STUN messages are passed to the
    handler set by `on_stun`.
    """

    def __init__(
        self,
        host: Host,
        *,
        limits: UdpLimits | None = None,
        half_open: HalfOpen | None = None,
        guard: Guard | None = None,
    ) -> None:
        """`half_open` counts accepted connections that are not authenticated yet. It may be shared
        with other ports."""
        self.port = 0
        self.dropped = 0
        """Datagrams that were neither STUN nor QUIC."""
        self._host = host
        self._guard = guard or Guard()
        self.sockets: list[Datagrams] = []
        """The open sockets, one for each address family."""
        self._by_version: dict[bool, Datagrams] = {}  # True for IPv6
        self._added: dict[Datagrams, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None
        self._stun: OnStun | None = None
        self._byte_stream: Callable[[QuicByteStream], None] | None = None
        self._timer = trio.CancelScope()
        self.connections = Connections(
            host,
            limits or UdpLimits(),
            half_open or HalfOpen(Limits()),
            self._accepted,
            self._set_timer,
            self._guard,
        )

    def on_stun(self, callback: OnStun) -> None:
        """Set the handler of STUN messages. It is called with the datagram, its source, and the
        receiving socket."""
        self._stun = callback

    def on_byte_stream(self, callback: Callable[[QuicByteStream], None]) -> None:
        """Set the handler of accepted connections. It is called with a byte stream once its first
        bytes have arrived."""
        self._byte_stream = callback

    async def run(
        self,
        listen: Sequence[str],
        port: int,
        *,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the port on these addresses until cancelled. `port` 0 means any free port.

        Reports the port number through `task_status`. Raises AddressInUse if the port is in use,
        and HostError if it cannot be bound for another reason.
        """
        self.sockets = await self._bind(listen, port)
        for address, socket in zip(listen, self.sockets, strict=True):
            self._by_version.setdefault(":" in address, socket)
        self.port = self.sockets[0].port
        try:
            async with trio.open_nursery() as self._nursery:
                for socket in self.sockets:
                    self._nursery.start_soon(self._serve, socket)
                self._nursery.start_soon(self._serve_timers)
                task_status.started(self.port)
        finally:
            self._nursery = None
            self.connections.close()
            for socket in [*self.sockets, *self._added]:
                socket.close()
            self.sockets.clear()
            self._by_version.clear()
            self._added.clear()

    async def _bind(self, listen: Sequence[str], port: int) -> list[Datagrams]:
        """Bind a socket for each address, all with the same port number. If `port` is 0, try other
        port numbers if one address cannot use the same one."""
        for _ in range(_PORT_TRIES - 1):
            try:
                return await self._bind_once(listen, port)
            except AddressInUse:
                if port:
                    raise
        return await self._bind_once(listen, port)

    async def _bind_once(self, listen: Sequence[str], port: int) -> list[Datagrams]:
        sockets: list[Datagrams] = []
        try:
            for address in listen:
                number = sockets[0].port if sockets else port
                sockets.append(await self._host.datagrams(address, number))
        except BaseException:
            for socket in sockets:
                socket.close()
            raise
        return sockets

    # Sockets.

    def add(self, socket: Datagrams) -> None:
        """Start serving a further socket. Raises trio.ClosedResourceError if this port is not
        running."""
        if self._nursery is None:
            raise trio.ClosedResourceError("this port is not running")
        self._added[socket] = trio.CancelScope()
        self._nursery.start_soon(self._serve_added, socket)

    def remove(self, socket: Datagrams) -> None:
        """Close a socket that was added. Connections that use it lose their path."""
        scope = self._added.pop(socket, None)
        if scope is not None:
            scope.cancel()
            socket.close()

    def send(self, data: bytes, to: Place, socket: Datagrams | None = None) -> bool:
        """Send a datagram from an added socket, or from the port if `socket` is None. Return False
        if the datagram was not accepted."""
        found = socket or self._socket_for(to)
        return found is not None and found.send(data, to)

    def _socket_for(self, place: Place) -> Datagrams | None:
        """Return the port's socket for the IP version of an address, or None if there is none."""
        return self._by_version.get(":" in place[0])

    async def _serve_added(self, socket: Datagrams) -> None:
        with self._added.get(socket, trio.CancelScope()):
            await self._serve(socket)

    async def _serve(self, socket: Datagrams) -> None:
        # One task runs for each socket and handles all arrived datagrams at each wake-up.
        while True:
            try:
                batch = await socket.receive()
            except trio.ClosedResourceError:
                return
            quic: list[Datagram] = []
            for item in batch:
                data = item[0]
                if not data:
                    self.dropped += 1
                elif data[0] >= _QUIC:
                    quic.append(item)
                elif data[0] < _STUN and self._stun is not None:
                    with self._guard.around(item[1]):
                        self._stun(data, item[1], socket)
                else:
                    self.dropped += 1
            if quic:
                self.connections.receive(quic, socket)

    # QUIC.

    async def dial(
        self, place: Place, *, socket: Datagrams | None = None, timeout: float
    ) -> QuicByteStream:
        """Open a QUIC connection from an added socket, or from the port if `socket` is None. The
        dialling side must write first.

        Raises OSError if the handshake is not done within `timeout` seconds, or if this port has no
        socket for the IP version.
        """
        found = socket or self._socket_for(place)
        if found is None:
            raise unreachable(place)
        byte_stream, opened = self.connections.dial(place, found)
        try:
            with trio.move_on_after(timeout) as scope:
                await opened.wait()
        except BaseException:
            byte_stream.close()
            raise
        if scope.cancelled_caught or byte_stream.connection.ended:
            byte_stream.close()
            raise unreachable(place)
        return byte_stream

    def _accepted(self, byte_stream: QuicByteStream) -> None:
        if self._byte_stream is None:
            byte_stream.close()
        else:
            self._byte_stream(byte_stream)

    # Time.

    def _set_timer(self, when: float) -> None:
        self._timer.deadline = when

    async def _serve_timers(self) -> None:
        """Run a single timer for all connections. Its deadline is moved while this task sleeps."""
        while True:
            with trio.CancelScope(deadline=self.connections.due) as self._timer:
                await trio.sleep_forever()
            self.connections.timeout()

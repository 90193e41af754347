"""TCP sockets with the interface of trio's sockets, as a thin layer over `tcp.connection`."""

import errno
import os
import socket as stdlib
from typing import TYPE_CHECKING

import trio

from ..host import error
from ..network.packet import Addr
from .base import SocketName
from .tcp.connection import CLOSED, SYN_SENT
from .tcp.defaults import WRITE_PIECE_BYTES
from .tcp.segment import TcpSegment
from .tcpend import CONNECTED, DIALLED, DIALLING, FAILED, MAPPED, NEW, Backlog, TcpEnd
from .tcpstack import Key

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_MOST_BACKLOG = 4096  # connections (Linux: net.core.somaxconn)


class TcpSocket(TcpEnd):
    """TCP socket, which behaves as in Linux, tcp(7)."""

    @property
    def did_shutdown_SHUT_WR(self) -> bool:
        return self._shut_write

    # Names.

    def getsockname(self) -> SocketName:
        self._check()
        return self._shown((self.local[0], self.binding.port))

    def getpeername(self) -> SocketName:
        self._check()
        connection = self.connection
        if self.remote is None or connection is None or connection.state in (CLOSED, SYN_SENT):
            raise error(errno.ENOTCONN)
        return self._shown(self.remote)

    async def _meant(self, address: object, *, local: bool) -> Addr:
        """Resolve an address, and return it in the form that packets contain."""
        found = await self._resolve(address, local=local)
        ip = str(found[0]).split("%")[0]
        if ip.lower().startswith(MAPPED):
            ip = ip[len(MAPPED) :]
        return ip, int(found[1])

    # Listening.

    async def bind(self, address: object) -> None:
        self._check()
        await trio.lowlevel.checkpoint()
        ip, port = await self._meant(address, local=True)
        binding = self.binding
        if binding.port or self._phase != NEW:
            raise error(errno.EINVAL)
        if ip not in ("0.0.0.0", "::") and not self._own(ip):
            raise error(errno.EADDRNOTAVAIL)
        before, binding.address = binding.address, ip
        try:
            self.stack.ports.claim(binding, port)
        except OSError:
            binding.address = before
            raise
        self.local = ip, binding.port

    def _own(self, ip: str) -> bool:
        """Return whether an address belongs to this host."""
        try:
            return self.host.source(ip)[0] is None
        except OSError:
            return False

    def listen(self, backlog: int | None = None) -> None:
        self._check()
        if self._phase != NEW:
            raise error(errno.EINVAL)
        limit = min(_MOST_BACKLOG, 128 if backlog is None else max(0, backlog))
        if self.backlog is not None:
            self.backlog.limit = limit
            return
        binding, ports = self.binding, self.stack.ports
        if not binding.port:
            ports.claim(binding, 0)
        binding.listens = True
        if not ports.may_stand(binding, binding.port):
            binding.listens = False
            raise error(errno.EADDRINUSE)
        self.backlog = Backlog(limit)
        self.stack.listen(self)

    def _listens(self) -> bool:
        return self.backlog is not None

    def knock(self, syn: TcpSegment, key: Key) -> None:
        """Process a SYN for this listener: create a socket for the connection and reply. If the
        backlog is full, ignore the SYN, which the peer will send again.
        """
        assert self.backlog is not None
        if self.backlog.full:
            return
        child = TcpSocket(self.stack, self._family)
        child._options = self._options  # shared until either socket sets an option
        child._linger = self._linger
        child.binding = self.binding.inherit(key[0][0])
        child.parent = self
        child._phase = CONNECTED
        self.stack.ports.add(child.binding, child.binding.port)
        child._join(key)
        assert child.connection is not None
        child.connection.accept(syn, self.stack.events.now)
        child._after()

    async def accept(self) -> tuple[TcpEnd, SocketName]:
        self._check()
        await self._turn()
        while True:
            self._check()
            if self.backlog is None:
                raise error(errno.EINVAL)
            if self.backlog.queue:
                break
            await self._readers.wait()
        socket = self.backlog.queue.popleft()
        assert socket.remote is not None
        return socket, socket._shown(socket.remote)

    # Dialling.

    async def connect(self, address: object) -> None:
        self._check()
        try:
            ip, port = await self._meant(address, local=False)
            await trio.lowlevel.checkpoint()
            self._check()
            if ip in ("0.0.0.0", "::"):
                ip = "::1" if ip == "::" else "127.0.0.1"
            if self._phase == DIALLED:
                self._phase = CONNECTED  # the first `connect` after the handshake also succeeds
                return
            self._dial((ip, port))
            while self._phase == DIALLING:
                await self._writers.wait()
        except trio.Cancelled:
            self.close()
            raise
        number = self._take_error()
        if number:
            problem = f"Error connecting to {address!r}: {os.strerror(number)}"
            raise OSError(number, problem)

    def _dial(self, remote: Addr) -> None:
        """Start to connect to `remote`. Raises OSError if this is impossible or the previous
        attempt failed.
        """
        if self.backlog is not None or self._phase == CONNECTED:
            raise error(errno.EISCONN)
        if self._phase == DIALLING:
            raise error(errno.EALREADY)
        if self._phase == FAILED:
            number = self._take_error() or errno.ECONNABORTED
            self._as_new()
            raise error(number)
        source = self.host.source(remote[0])[1]
        binding, stack = self.binding, self.stack
        bound = binding.port and binding.address not in ("0.0.0.0", "::")
        local = binding.address if bound else source
        if not binding.port:
            stack.ports.claim_for_dial(binding, stack.taken(local, remote))
        key = (local, binding.port), remote
        if key in stack.connections:
            raise error(errno.EADDRNOTAVAIL)
        self._join(key)
        self._phase = DIALLING
        assert self.connection is not None
        self.connection.open(self.stack.events.now)
        self._after()

    # Bytes.

    def take_ready(self, size: int, *, peek: bool = False) -> bytes:
        self._check()
        connection = self.connection
        if connection is None:
            raise error(errno.ENOTCONN)
        inbox = connection.inbox
        if inbox.size and size:
            data = connection.read(size, self.stack.events.now, peek)
            if connection.out:
                self._after()
            return data
        if not connection.eof and connection.error:
            raise error(self._take_error())
        if connection.readable or not size:
            return b""
        raise _not_yet()

    async def recv(self, buflen: int, flags: int = 0) -> bytes:
        if buflen < 0:
            raise ValueError("negative buffersize in recv")
        self._check()
        await self._turn()
        connection = self.connection
        if connection is not None and not connection.readable and buflen:
            await self._readers.wait()
        return self.take_ready(buflen, peek=bool(flags & stdlib.MSG_PEEK))

    def write_ready(self, data: "ReadableBuffer") -> int:
        self._check()
        connection = self.connection
        if connection is None:
            raise error(errno.EPIPE)
        if connection.error:
            raise error(self._take_error())
        if connection.fin_wanted:
            raise error(errno.EPIPE)
        size = memoryview(data).nbytes
        if not size:
            return 0
        room = connection.limit - connection.queued
        lowat = connection.unsent_limit
        if room <= 0 or (lowat and connection.outbox.size >= lowat):
            raise _not_yet()
        taken = min(size, room)
        if lowat and taken > WRITE_PIECE_BYTES:
            taken = WRITE_PIECE_BYTES
        connection.write(_as_bytes(data, taken), self.stack.events.now)
        self._after()
        return taken

    def is_readable(self) -> bool:
        """Return whether a read or an `accept` would return at once."""
        self._check()
        if self.backlog is not None:
            return bool(self.backlog.queue)
        return self.connection is None or self.connection.readable

    async def wait_readable(self) -> None:
        self._check()
        if self.is_readable():
            await self._turn()
        else:
            await self._readers.wait()

    async def wait_writable(self) -> None:
        self._check()
        if self._phase != DIALLING and self._may_write():
            await self._turn()
        else:
            await self._writers.wait()

    def _as_new(self) -> None:
        """Reset the socket after a failed connection attempt, so that it can connect to another
        address.
        """
        self._phase = NEW
        self.connection = self.remote = None
        if self.binding.automatic:
            self.stack.ports.release(self.binding)
            self.binding.port = 0
            self.binding.automatic = False

    # The end.

    def shutdown(self, flag: int) -> None:
        self._check()
        connection = self.connection
        if self.backlog is not None:
            if flag != stdlib.SHUT_WR:
                self._stop_listening()
            return
        if connection is None or connection.state == CLOSED:
            raise error(errno.ENOTCONN)
        if flag != stdlib.SHUT_WR:
            connection.read_shut = True
        if flag != stdlib.SHUT_RD:
            self._shut_write = True
            connection.shutdown(self.stack.events.now)
        self._after()

    def _stop_listening(self) -> None:
        """Stop accepting connections, and reset those in the backlog."""
        backlog, self.backlog = self.backlog, None
        self.stack.deafen(self)
        self.binding.listens = False
        assert backlog is not None
        for socket in backlog.queue:  # no `accept` will return them
            socket._hard = True
            socket.close()
        self._readers.wake()

    def close(self) -> None:
        if self._closed:
            return
        super().close()
        for waiting in (self._readers, self._writers):
            waiting.fail(trio.ClosedResourceError("another task closed this socket"))
        if self.backlog is not None:
            self._stop_listening()
        connection, now = self.connection, self.stack.events.now
        if connection is None or connection.state == CLOSED:
            self.stack.ports.release(self.binding)
            return
        if self._hard:
            connection.abort(now)
        else:
            connection.close(now)
        self._after()


def _as_bytes(data: "ReadableBuffer", size: int) -> bytes:
    """Return the first `size` bytes of `data` as an immutable object. Copy them only if
    necessary.
    """
    if type(data) is bytes:
        return data if len(data) == size else data[:size]
    view = memoryview(data)
    if type(view.obj) is bytes and len(view.obj) == size == view.nbytes:
        return view.obj
    return bytes(view[:size])


def _not_yet() -> BlockingIOError:
    """Return the error of a call that would have to wait."""
    return BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

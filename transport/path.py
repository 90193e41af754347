"""One pipe under TLS: what carries a link for a while."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from . import defaults
from .browser.clear import Clear
from .errors import TransportError
from .frame import Bytes
from .pipe import Pipe, TcpPipe
from .tls import Tls


def _tie(hello: bytes) -> tuple[bytes, bytes]:
    """What decides between two first records; the whole of it where they are of one identity."""
    at = hello.find(defaults.TIE)
    end = at + len(defaults.TIE)
    return (hello[end : end + defaults.TIE_DIGITS] if at >= 0 else b"", hello)


_RECORD_HEADER: Final = 5  # RFC 8446, 5.1: type, version, length
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1


class PathLost(Exception):
    """The connection broke; the link above decides what that means."""


class Path:
    """`tls` over `pipe` (`Clear` over a browser's, which is encrypted as it is).

    One task reads, one writes; `first` was read from the pipe before. `turn` makes a TLS server,
    for the case that the other end began as a client too: two that dial each other at the same
    moment get one TCP connection (RFC 9293, section 3.5).
    """

    def __init__(
        self,
        pipe: Pipe,
        tls: Tls | Clear,
        first: bytes = b"",
        *,
        turn: Callable[[], Tls] | None = None,
    ) -> None:
        self.tls: Tls | Clear = tls
        self._turn = None if tls.server else turn
        self.address = pipe.remote
        self.medium = pipe.medium
        self.local_port = pipe.local_port if isinstance(pipe, TcpPipe) else 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.scope = trio.CancelScope()  # of the tasks that serve it
        self.finished = False
        self._pipe = pipe
        self._closed = False
        self._first = first
        self._rest: memoryview | None = None  # ciphertext the kernel has not taken
        self._read_bytes = defaults.SMALL_READ_BYTES
        self.read_most = defaults.READ_BYTES
        """Bytes that one read takes at the most."""

    @property
    def inside(self) -> bool:
        """Whether another link of this node carries it, and with it all that passes here."""
        return getattr(self._pipe, "inside", False)

    @property
    def lapsed(self) -> bool:
        """Whether a relay has ended it because it lends no more, though both ends may be well."""
        return getattr(self._pipe, "lapsed", False)

    @property
    def blocked(self) -> bool:
        """The kernel has not taken everything yet: only `drain` may send."""
        return self._rest is not None

    async def handshake(self) -> None:
        """Run TLS until both ends are proven. Raises TransportError, PathLost."""
        if self._turn is not None:
            await self._meet()
        while True:
            self._queue_outgoing()
            await self.drain()
            if self.tls.established:
                return
            data = await self._receive()
            if not data:
                raise PathLost
            try:
                self.tls.feed(data)
            except TransportError:
                self._queue_outgoing()  # the alert that tells the peer why
                with suppress(PathLost):
                    await self.drain()
                raise

    async def _meet(self) -> None:
        """Send the first record and see whether the other end began as a client too. Then who
        wrote the smaller tie into it stays the client: both ends know both."""
        self._queue_outgoing()
        ours = bytes(self._rest or b"")
        await self.drain()
        data = b""
        while len(data) < _RECORD_HEADER + 1:
            data += await self._some()
        if data[0] == _HANDSHAKE and data[_RECORD_HEADER] == _CLIENT_HELLO:
            size = _RECORD_HEADER + int.from_bytes(data[3:_RECORD_HEADER], "big")
            while len(data) < size:
                data += await self._some()
            if data[:size] == ours:  # a port that dials itself gets itself
                raise TransportError("self", "this node itself answered")
            if _tie(data[:size]) < _tie(ours) and self._turn is not None:
                self.tls = self._turn()
            else:
                data = data[size:]
        self._first = data + self._first

    async def _some(self) -> bytes:
        data = await self._receive()
        if not data:
            raise PathLost
        self.bytes_in -= len(data)  # it goes back to be received again
        return data

    async def receive(self) -> Bytes:
        """Plaintext that has come, b"" at the end. Raises PathLost."""
        while True:
            data = await self._receive()
            if not data:
                return b""
            try:
                self.tls.feed(data)
                plaintext = self.tls.read()
            except TransportError:
                raise PathLost from None
            if plaintext or self.tls.closed:
                return plaintext

    @property
    def reads_much(self) -> bool:
        """Whether a read takes more than the least."""
        return self._read_bytes > defaults.SMALL_READ_BYTES

    def read_less(self) -> None:
        """What came last took long: read little next time, so that others get their turn."""
        self._read_bytes = defaults.SMALL_READ_BYTES

    def early(self) -> Bytes:
        """Plaintext that came with the end of the handshake."""
        return self.tls.read()

    def send(self, plaintext: bytes) -> None:
        """Encrypt, and hand to the kernel what it takes; not while `blocked`. Raises PathLost."""
        try:
            self.tls.write(plaintext)
        except TransportError:
            raise PathLost from None
        self._queue_outgoing()
        self._send_rest()

    async def drain(self) -> None:
        """Wait until the kernel has taken everything. Raises PathLost."""
        while self._rest is not None:
            await self._wait(self._pipe.wait_writable)
            self._send_rest()

    async def wait_writable(self) -> None:
        """Wait until little is unsent in the kernel (TCP_NOTSENT_LOWAT). Raises PathLost."""
        await self._wait(self._pipe.wait_writable)

    def close(self) -> None:
        """Close the pipe; tasks that wait for it end."""
        self._closed = True
        self._rest = None
        self._pipe.close()
        self.scope.cancel()

    def finish(self) -> None:
        """Nothing more is written. The tasks that serve it end; `linger` is still to come."""
        if not self.blocked:
            self._end_sending()
        self.finished = True
        self.scope.cancel()

    async def linger(self) -> None:
        """Send what is left, and let the peer read our last words: closing with its bytes
        unread would reset the connection under them."""
        with trio.move_on_after(defaults.LINGER_S, shield=True), suppress(PathLost):
            await self.drain()
            self._end_sending()
            while await self._receive():
                pass

    def _end_sending(self) -> None:
        with suppress(OSError, trio.ClosedResourceError):
            self._pipe.end()

    def _queue_outgoing(self) -> None:
        data = self.tls.outgoing()
        if data:
            self.bytes_out += len(data)
            self._rest = memoryview(data if self._rest is None else b"".join((self._rest, data)))

    def _send_rest(self) -> None:
        if self._rest is None or self._closed:
            return
        try:
            sent = self._pipe.write_ready(self._rest)
        except BlockingIOError:
            return
        except (OSError, trio.ClosedResourceError):
            raise PathLost from None
        self._rest = self._rest[sent:] if sent < len(self._rest) else None

    async def _receive(self) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            self.bytes_in += len(first)
            return first
        try:
            while not self._closed:
                await self._pipe.wait_readable()
                try:
                    most = self._read_bytes
                    data = self._pipe.read_ready(most if most < self.read_most else self.read_most)
                except BlockingIOError:
                    continue
                self.bytes_in += len(data)
                self._adapt(len(data))
                return data
            raise PathLost
        except (OSError, trio.ClosedResourceError):
            raise PathLost from None

    def _adapt(self, size: int) -> None:
        if size == self._read_bytes:
            self._read_bytes = min(size * 4, defaults.READ_BYTES)
        elif size < self._read_bytes // 8 and self._read_bytes > defaults.SMALL_READ_BYTES:
            self._read_bytes = max(self._read_bytes // 4, defaults.SMALL_READ_BYTES)

    async def _wait(self, ready: Callable[[], Awaitable[None]]) -> None:
        if self._closed:
            raise PathLost
        try:
            await ready()
        except (OSError, trio.ClosedResourceError):
            raise PathLost from None

"""A secured stream: a byte stream under TLS, which carries a link as one of its paths."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol

import trio

from .. import defaults
from ..bytestream import ByteStream, TcpByteStream
from ..errors import DialFailed, TransportError
from ..identity import PeerId
from ..lane.frame import Bytes
from .certificate import Certificate
from .tls import Tls


def _tie(hello: bytes) -> tuple[bytes, bytes]:
    """Return the sort key that decides between two client hellos: (tie, all bytes).

    The tie is the text of hex digits after the prefix `TIE`. The bytes count only if the ties are
    equal, that is, if both hellos come from the same identity.
    """
    at = hello.find(defaults.TIE)
    end = at + len(defaults.TIE)
    return (hello[end : end + defaults.TIE_DIGITS] if at >= 0 else b"", hello)


_RECORD_HEADER: Final = 5  # bytes of type, version and length (RFC 8446, section 5.1)
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1


class PathLost(Exception):
    """The connection broke. The link decides what follows from that."""


class Security(Protocol):
    """The part of the interface of `Tls` that `SecureStream` uses.

    A browser's byte stream is already encrypted, and has an implementation of its own
    (`browser/clear.py`).
    """

    @property
    def peer(self) -> PeerId:
        """The authenticated peer."""
        ...

    @property
    def server(self) -> bool:
        """Whether this side is the server."""
        ...

    @property
    def established(self) -> bool:
        """Whether both ends are authenticated."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the peer has ended its direction."""
        ...

    def feed(self, ciphertext: Bytes) -> None: ...

    def read(self) -> Bytes: ...

    def write(self, plaintext: Bytes) -> None: ...

    def outgoing(self) -> Bytes: ...

    def release(self) -> None: ...

    def exporter(self, label: bytes, size: int) -> bytes: ...


class SecureStream:
    """The byte stream `byte_stream` under `tls`.

    At most one task may read at a time, and one may write. `first` are bytes that were already read
    from the byte stream. `turn` creates a TLS server. It is called if both ends have begun as
    clients and this end must become the server: two nodes that dial each other at the same moment
    get one TCP connection (RFC 9293, section 3.5).
    """

    def __init__(
        self,
        byte_stream: ByteStream,
        tls: Security,
        first: bytes = b"",
        *,
        turn: Callable[[], Tls] | None = None,
    ) -> None:
        self.tls = tls
        self._turn = None if tls.server else turn
        self.address = byte_stream.remote
        self.medium = byte_stream.medium
        self.local_port = byte_stream.local_port if isinstance(byte_stream, TcpByteStream) else 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.scope = trio.CancelScope()  # scope of the tasks that serve this stream
        self.finished = False
        self._byte_stream = byte_stream
        self._closed = False
        self._first = first
        self._rest: memoryview | None = None  # ciphertext that the kernel has not accepted
        self._read_bytes = defaults.SMALL_READ_BYTES
        self.read_most = defaults.READ_BYTES
        """Largest number of bytes that one read may return."""

    @property
    def inside(self) -> bool:
        """Whether this stream is carried by another link of this node, which counts its bytes
        already."""
        return getattr(self._byte_stream, "inside", False)

    @property
    def path_rate(self) -> float:
        """Bytes per second that the path can carry; 0 if unknown, as on TCP."""
        return getattr(self._byte_stream, "path_rate", 0.0)

    def packet_rtt(self) -> float:
        """Return the latest round trip of single packets in seconds; 0 if unknown, as on TCP."""
        return getattr(self._byte_stream, "packet_rtt", 0.0)

    @property
    def loss(self) -> float:
        """Share of the sent bytes that are lost on the path; 0 if unknown, as on TCP."""
        return getattr(self._byte_stream, "loss", 0.0)

    @property
    def lapsed(self) -> bool:
        """Whether a relay has ended the stream because the time of the circuit had expired.

        Both ends may still be alive then.
        """
        return getattr(self._byte_stream, "lapsed", False)

    @property
    def blocked(self) -> bool:
        """Whether the kernel has not accepted all bytes yet. Only `drain` may send then."""
        return self._rest is not None

    async def handshake(self, *, hold: bool = False) -> None:
        """Run TLS until both ends are authenticated.

        With `hold`, the last bytes of this side are not sent yet: they leave with its next `send`,
        in one packet.

        Raises TransportError if TLS fails, and PathLost if the connection breaks.
        """
        if self._turn is not None:
            await self._meet()
        while True:
            self._queue_outgoing()
            if hold and self.tls.established:
                return
            await self.drain()
            if self.tls.established:
                return
            data = await self._receive()
            if not data:
                raise PathLost
            try:
                self.tls.feed(data)
            except TransportError:
                self._queue_outgoing()  # the alert that tells the peer the reason
                with suppress(PathLost):
                    await self.drain()
                raise

    async def _meet(self) -> None:
        """Send the client hello. If the other end has sent one too, decide which end is the client.

        The end whose record has the smaller tie (`_tie`) stays the client. Both ends know both
        ties.
        """
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
            if data[:size] == ours:  # a port that dials itself gets its own record
                raise TransportError("self", "this node itself answered")
            if _tie(data[:size]) < _tie(ours) and self._turn is not None:
                self.tls = self._turn()
            else:
                data = data[size:]
        self._first = data + self._first

    async def _some(self) -> bytes:
        """Receive bytes that the caller will put back. Raises PathLost at the end of the stream."""
        data = await self._receive()
        if not data:
            raise PathLost
        self.bytes_in -= len(data)  # the bytes are put back and received again
        return data

    async def receive(self) -> Bytes:
        """Wait for plaintext and return it; b"" at the end. Raises PathLost if the connection
        breaks."""
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
        """Whether the next read may return more than the minimum."""
        return self._read_bytes > defaults.SMALL_READ_BYTES

    def read_less(self) -> None:
        """Make the next read small, because the last bytes took long to process."""
        self._read_bytes = defaults.SMALL_READ_BYTES

    def early(self) -> Bytes:
        """Return plaintext that arrived together with the end of the handshake."""
        return self.tls.read()

    def send(self, plaintext: bytes) -> None:
        """Encrypt bytes, and pass to the kernel as many as it accepts.

        Must not be called while `blocked`, except once after a `handshake` with `hold`. Raises
        PathLost if the connection is broken.
        """
        try:
            self.tls.write(plaintext)
        except TransportError:
            raise PathLost from None
        self._queue_outgoing()
        self._send_rest()

    async def drain(self) -> None:
        """Wait until the kernel has accepted all bytes. Raises PathLost if the connection
        breaks."""
        while self._rest is not None:
            await self._wait(self._byte_stream.wait_writable)
            self._send_rest()

    async def wait_writable(self) -> None:
        """Wait until little is unsent in the kernel (TCP_NOTSENT_LOWAT).

        Raises PathLost if the connection breaks.
        """
        await self._wait(self._byte_stream.wait_writable)

    def close(self) -> None:
        """Close the byte stream, and end the tasks that serve it."""
        self._closed = True
        self._rest = None
        self._byte_stream.close()
        self.scope.cancel()

    def finish(self) -> None:
        """End this side's direction, and the tasks that serve the stream. Call `linger` after
        this."""
        if not self.blocked:
            self._end_sending()
        self.finished = True
        self.scope.cancel()

    async def linger(self) -> None:
        """Send what is left, and wait some time for the peer to read it and to close.

        If the socket were closed while bytes of the peer are unread, TCP would reset the
        connection, and the last frames would be lost.
        """
        with trio.move_on_after(defaults.LINGER_S, shield=True), suppress(PathLost):
            await self.drain()
            self._end_sending()
            while await self._receive():
                pass

    def _end_sending(self) -> None:
        with suppress(OSError, trio.ClosedResourceError):
            self._byte_stream.end()

    def _queue_outgoing(self) -> None:
        """Append the ciphertext that TLS has produced to the bytes that wait for the kernel."""
        data = self.tls.outgoing()
        if data:
            self.bytes_out += len(data)
            self._rest = memoryview(data if self._rest is None else b"".join((self._rest, data)))

    def _send_rest(self) -> None:
        """Pass waiting bytes to the kernel, as many as it accepts."""
        if self._rest is None or self._closed:
            return
        try:
            sent = self._byte_stream.write_ready(self._rest)
        except BlockingIOError:
            return
        except (OSError, trio.ClosedResourceError):
            raise PathLost from None
        self._rest = self._rest[sent:] if sent < len(self._rest) else None

    async def _receive(self) -> bytes:
        """Wait for ciphertext and return it; b"" at the end of the stream."""
        if self._first:
            first, self._first = self._first, b""
            self.bytes_in += len(first)
            return first
        try:
            while not self._closed:
                await self._byte_stream.wait_readable()
                try:
                    most = self._read_bytes
                    data = self._byte_stream.read_ready(
                        most if most < self.read_most else self.read_most
                    )
                except BlockingIOError:
                    continue
                self.bytes_in += len(data)
                self._adapt(len(data))
                return data
            raise PathLost
        except (OSError, trio.ClosedResourceError):
            raise PathLost from None

    def _adapt(self, size: int) -> None:
        """Set the size of the next read after one that returned `size` bytes: larger if that read
        was full, smaller if it returned few bytes."""
        if size == self._read_bytes:
            self._read_bytes = min(size * 4, defaults.READ_BYTES)
        elif size < self._read_bytes // 8 and self._read_bytes > defaults.SMALL_READ_BYTES:
            self._read_bytes = max(self._read_bytes // 4, defaults.SMALL_READ_BYTES)

    async def _wait(self, ready: Callable[[], Awaitable[None]]) -> None:
        """Await `ready()`. Raises PathLost if the connection is broken."""
        if self._closed:
            raise PathLost
        try:
            await ready()
        except (OSError, trio.ClosedResourceError):
            raise PathLost from None


async def first_bytes(byte_stream: ByteStream, name: str) -> bytes:
    """Wait for the first bytes of a byte stream and return them.

    If that fails, closes the byte stream; raises DialFailed if the peer has closed it.
    """
    try:
        while True:
            await byte_stream.wait_readable()
            with suppress(BlockingIOError):
                return byte_stream.read_ready(defaults.SMALL_READ_BYTES)
    except (OSError, trio.ClosedResourceError):
        byte_stream.close()
        raise DialFailed.unreachable(name, "it hung up") from None
    except BaseException:
        byte_stream.close()
        raise


async def secure(
    byte_stream: ByteStream,
    certificate: Certificate,
    expect: PeerId | None,
    name: str,
    *,
    server: bool,
    first: bytes = b"",
) -> SecureStream:
    """Run TLS over a byte stream, and check that the other end is the expected peer.

    If that fails, closes the byte stream and raises DialFailed.
    """
    secured = SecureStream(
        byte_stream,
        Tls(certificate, server=server, expect=expect),
        first,
        turn=lambda: Tls(certificate, server=True, expect=expect),
    )
    try:
        await secured.handshake(hold=True)
    except PathLost:
        secured.close()
        raise DialFailed.unreachable(name, "it hung up during the handshake") from None
    except TransportError as error:
        secured.close()
        raise DialFailed(error.code, f"`{name}`: {error.message}") from None
    except BaseException:
        secured.close()
        raise
    return secured

"""Trio shell of one yamux stream. It is a `ByteStream`, so TLS runs over it as over a socket."""

from collections.abc import Callable
from contextlib import suppress

import trio

from ..host.datagrams import Place
from ..lane.frame import Fault
from . import defaults
from .varint import read_uvarint
from .yamux import Channel, Yamux

_LITTLE = defaults.UNSENT_BYTES // 4


class MuxStream:
    """Both directions of a stream. One task may read and one may write at a time.

    `flush` sends the frames that yamux has queued; `room` is woken when the connection has sent
    some. The async methods raise Fault (`stream-lost`) if the stream or the connection is lost.
    """

    medium = "circuit"

    def __init__(
        self,
        channel: Channel,
        yamux: Yamux,
        *,
        flush: Callable[[], None],
        room: trio.lowlevel.ParkingLot,
        remote: Place = ("", 0),
    ) -> None:
        self.remote = remote
        self._channel = channel
        self._yamux = yamux
        self._flush = flush
        self._room = room
        self._changed = trio.lowlevel.ParkingLot()
        self._early = b""
        self._closed = False
        channel.context = self

    # The `ByteStream` interface.

    def read_ready(self, size: int) -> bytes:
        if self._early:
            data, self._early = self._early[:size], self._early[size:]
            return data
        channel = self._channel
        if channel.unread:
            data = channel.read(size)
            self._flush()
            return data
        if channel.failed:
            raise ConnectionResetError("the stream was reset")
        if channel.read_done:
            return b""
        raise BlockingIOError

    def write_ready(self, data: bytes | memoryview) -> int:
        if self._channel.failed or self._channel.write_done:
            raise BrokenPipeError("the stream was closed")
        taken = self._channel.write(data)
        if not taken and data:
            raise BlockingIOError
        self._flush()
        return taken

    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        channel = self._channel
        while not (self._early or channel.unread or channel.read_done or channel.failed):
            await self._changed.park()
        self._check_open()

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not (self._channel.failed or self._channel.write_done):
            if self._channel.credit <= 0:
                await self._changed.park()
            elif self._yamux.unsent > _LITTLE:
                await self._room.park()
            else:
                break
        self._check_open()

    def end(self) -> None:
        self._channel.end()
        self._flush()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._early = b""
            self._channel.reset()
            self._flush()
            self.wake()

    @property
    def at_end(self) -> bool:
        """Whether everything has been read, up to the peer's end of stream."""
        channel = self._channel
        return channel.read_done and not (self._early or channel.unread or channel.failed)

    # Messages.

    async def receive(self, limit: int) -> bytes:
        """Receive 1 to `limit` bytes; b"" at the peer's end of stream."""
        try:
            while True:
                await self.wait_readable()
                with suppress(BlockingIOError):
                    return self.read_ready(limit)
        except (OSError, trio.ClosedResourceError):
            raise Fault("stream-lost") from None

    async def receive_exactly(self, size: int) -> bytes:
        """Receive `size` bytes. Raises Fault (`stream-lost`) if the stream ends before."""
        data = bytearray()
        while len(data) < size:
            piece = await self.receive(size - len(data))
            if not piece:
                raise Fault("stream-lost")
            data += piece
        return bytes(data)

    async def receive_message(self, limit: int) -> bytes:
        """Receive a message with its length prefix. Raises Fault (`too-large`, `bad-varint`)."""
        head = bytearray()
        while (found := read_uvarint(head)) is None:
            head += await self.receive_exactly(1)
        if found[0] > limit:
            raise Fault("too-large")
        return await self.receive_exactly(found[0])

    async def send(self, data: bytes) -> None:
        """Hand all bytes to the connection, as fast as the peer accepts them."""
        view = memoryview(data)
        try:
            while view:
                try:
                    view = view[self.write_ready(view) :]
                except BlockingIOError:
                    await self.wait_writable()
        except (OSError, trio.ClosedResourceError):
            raise Fault("stream-lost") from None

    async def finish(self) -> None:
        """End this direction and wait for the peer's end of stream."""
        self.end()
        while await self.receive(defaults.READ_BYTES):
            pass

    async def wait_closed(self) -> None:
        """Wait until `close` is called, or the stream or the connection is lost."""
        while not (self._closed or self._channel.failed):
            await self._changed.park()

    def put_back(self, data: bytes) -> None:
        """Return bytes that were read too early to the front."""
        self._early = data + self._early

    def wake(self) -> None:
        """Wake the waiting tasks after a change of the channel."""
        self._changed.unpark_all()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError

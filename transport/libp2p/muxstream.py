"""One yamux stream as a `ByteStream`, so that TLS runs over it as over a socket."""

from collections.abc import Callable
from contextlib import suppress

import trio

from ..host.datagrams import Place
from ..lane.frame import Fault
from . import defaults
from .varint import read_uvarint
from .yamux import Yamux, YamuxChannel

_LITTLE = defaults.UNSENT_BYTES // 4  # unsent bytes up to which a stream may write


class MuxStream:
    """Both directions of a yamux stream. At most one task may read at a time, and one may write.

    `flush` sends the frames that yamux has queued. `room` is woken when the connection has sent
    some bytes. The methods of the section "Messages" raise Fault (`stream-lost`) if the stream or
    the connection is lost.
    """

    medium = "circuit"

    def __init__(
        self,
        channel: YamuxChannel,
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
        """Whether everything has been read, up to the end of the peer's direction."""
        channel = self._channel
        return channel.read_done and not (self._early or channel.unread or channel.failed)

    # Messages.

    async def receive(self, limit: int) -> bytes:
        """Wait for data and return 1 to `limit` bytes. Return b"" once the peer has ended its
        direction.

        Raises Fault (`stream-lost`) if the connection or the stream ended with an error.
        """
        try:
            while True:
                await self.wait_readable()
                with suppress(BlockingIOError):
                    return self.read_ready(limit)
        except (OSError, trio.ClosedResourceError):
            raise Fault("stream-lost") from None

    async def receive_exactly(self, size: int) -> bytes:
        """Wait for `size` bytes and return them. Raises Fault (`stream-lost`) if the stream ends
        before."""
        data = bytearray()
        while len(data) < size:
            piece = await self.receive(size - len(data))
            if not piece:
                raise Fault("stream-lost")
            data += piece
        return bytes(data)

    async def receive_message(self, limit: int) -> bytes:
        """Wait for a message with a length prefix and return it.

        Raises Fault with code `too-large` if it exceeds `limit` bytes, or `bad-varint` if its
        length is malformed.
        """
        head = bytearray()
        while (found := read_uvarint(head)) is None:
            head += await self.receive_exactly(1)
        if found[0] > limit:
            raise Fault("too-large")
        return await self.receive_exactly(found[0])

    async def send(self, data: bytes) -> None:
        """Pass all bytes to the connection, as fast as the peer accepts them.

        Raises Fault (`stream-lost`) if the connection or the stream ended with an error.
        """
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
        """End this side's direction, and wait until the peer has ended its own. Data of the peer is
        dropped."""
        self.end()
        while await self.receive(defaults.READ_BYTES):
            pass

    async def wait_closed(self) -> None:
        """Wait until `close` has been called, or the stream or the connection is lost."""
        while not (self._closed or self._channel.failed):
            await self._changed.park()

    def put_back(self, data: bytes) -> None:
        """Put back bytes that were read too early. They are read again before all other bytes."""
        self._early = data + self._early

    def wake(self) -> None:
        """Wake the waiting tasks, because the state of the channel has changed."""
        self._changed.unpark_all()

    def _check_open(self) -> None:
        """Raise ClosedResourceError if `close` has been called."""
        if self._closed:
            raise trio.ClosedResourceError

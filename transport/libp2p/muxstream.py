"""The trio shell of one yamux stream. It is a `Pipe`, so TLS runs over it as over a socket."""

from collections.abc import Callable
from contextlib import suppress

import trio

from ..datagrams import Place
from ..frame import Fault
from . import defaults
from .wire import read_uvarint
from .yamux import Channel, Yamux

_LITTLE = defaults.UNSENT_BYTES // 4


class MuxStream:
    """Both directions of a stream. One task may read and one may write at a time.

    `flush` sends what yamux has; `room` is woken whenever the connection has sent some.
    The async methods raise Fault (`stream-lost`) where the stream or the connection is gone.
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

    # As a `Pipe`.

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
            raise ConnectionResetError("the stream is gone")
        if channel.read_done:
            return b""
        raise BlockingIOError

    def write_ready(self, data: bytes | memoryview) -> int:
        if self._channel.failed or self._channel.write_done:
            raise BrokenPipeError("the stream is gone")
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
        """Everything has been read, the peer's end included."""
        channel = self._channel
        return channel.read_done and not (self._early or channel.unread or channel.failed)

    # For messages.

    async def receive(self, limit: int) -> bytes:
        """1 to `limit` bytes as they come; b"" at the end of the peer's direction."""
        try:
            while True:
                await self.wait_readable()
                with suppress(BlockingIOError):
                    return self.read_ready(limit)
        except (OSError, trio.ClosedResourceError):
            raise Fault("stream-lost") from None

    async def receive_exactly(self, size: int) -> bytes:
        """`size` bytes; an earlier end is `stream-lost`."""
        data = bytearray()
        while len(data) < size:
            piece = await self.receive(size - len(data))
            if not piece:
                raise Fault("stream-lost")
            data += piece
        return bytes(data)

    async def receive_message(self, limit: int) -> bytes:
        """What stands behind a varint of its length. Raises Fault (`too-large`, `bad-varint`)."""
        head = bytearray()
        while (found := read_uvarint(head)) is None:
            head += await self.receive_exactly(1)
        if found[0] > limit:
            raise Fault("too-large")
        return await self.receive_exactly(found[0])

    async def send(self, data: bytes) -> None:
        """Hand all of it to the connection, as fast as the peer takes it."""
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
        """Say the end, and wait for the peer's."""
        self.end()
        while await self.receive(defaults.READ_BYTES):
            pass

    async def wait_closed(self) -> None:
        """Until `close`, or until the stream or the connection is lost."""
        while not (self._closed or self._channel.failed):
            await self._changed.park()

    def put_back(self, data: bytes) -> None:
        """These bytes were read too early."""
        self._early = data + self._early

    def wake(self) -> None:
        """Something changed: let whoever waits look again."""
        self._changed.unpark_all()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError

"""A pipe in a QUIC connection: what its one stream carries."""

import errno
from collections.abc import Callable

import trio
from aioquic.quic.events import StreamDataReceived

from ..datagrams import Place
from . import defaults
from .connection import Connection


class QuicPipe:
    """`Pipe` over a QUIC connection. What has arrived waits here; what is written waits in the
    connection, and there is little of it."""

    medium = "udp"

    def __init__(
        self,
        connection: Connection,
        flush: Callable[[], None],
        trusted: Callable[[], None] = lambda: None,
    ) -> None:
        """`flush` sends what the connection has to send now; `trusted` is called by `trust`."""
        self.connection = connection
        self._trusted = trusted
        self._flush = flush
        self._arrived = bytearray()
        self._finished = False  # the peer writes no more
        self._ended = False  # we write no more
        self._closed = False
        self._lost = False
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()

    @property
    def remote(self) -> Place:
        """Where the other end is seen now: it may move."""
        return self.connection.via.place

    @property
    def port(self) -> int:
        """The UDP port of ours that this connection uses now."""
        return self.connection.via.socket.port

    @property
    def rtt(self) -> float:
        """The smoothed round trip in seconds, 0 until one is known."""
        return self.connection.rtt

    @property
    def rate(self) -> float:
        """Bytes per second that the path was seen to deliver, 0 until known."""
        return self.connection.control.rate

    @property
    def kept(self) -> int:
        """Bytes that have come and were not read, in order or not."""
        return len(self._arrived) + self.connection.kept

    def trust(self) -> None:
        """The other end has proven itself: its whole window opens, and it may stay."""
        self.connection.window.trust()
        self._trusted()
        if self.connection.owes_window and not self._lost:
            self._flush()

    # Reading.

    def read_ready(self, size: int) -> bytes:
        """See `Pipe`."""
        arrived = self._arrived
        if not arrived:
            self._check()
            if self._finished:
                return b""
            if self._lost:
                raise OSError(errno.ECONNRESET, "the connection is lost")
            raise BlockingIOError
        data = bytes(arrived[:size])
        del arrived[:size]
        self.connection.window.taken += len(data)
        if self.connection.owes_window and not self._lost:
            self._flush()
        return data

    async def wait_readable(self) -> None:
        """See `Pipe`."""
        self._check()
        if self._arrived or self._finished or self._lost:
            await trio.lowlevel.checkpoint()
        else:
            await self._readers.park()
        self._check()

    # Writing.

    def write_ready(self, data: memoryview) -> int:
        """See `Pipe`. It leaves at once, as far as the path takes it."""
        self._check()
        if self._lost or self._ended:
            raise OSError(errno.EPIPE, "the connection is lost")
        room = self._room - self.connection.unsent
        if room <= 0:
            raise BlockingIOError
        taken = min(room, len(data))
        self.connection.send_stream_data(defaults.STREAM_ID, data[:taken])  # type: ignore[arg-type]
        self._flush()
        return taken

    async def wait_writable(self) -> None:
        """See `Pipe`."""
        self._check()
        if self._lost or self.writable:
            await trio.lowlevel.checkpoint()
        else:
            await self._writers.park()
        self._check()

    @property
    def writable(self) -> bool:
        """Little is unsent."""
        return self.connection.unsent * 2 <= self._room

    @property
    def _room(self) -> int:
        """Bytes to take ahead of the wire: what keeps it busy until the writer's next turn."""
        least, most = defaults.UNSENT_BYTES
        return min(max(int(self.connection.control.rate * defaults.UNSENT_S), least), most)

    # The end.

    def end(self) -> None:
        """See `Pipe`."""
        self._check()
        if self._lost:
            raise OSError(errno.EPIPE, "the connection is lost")
        if not self._ended:
            self._ended = True
            self.connection.send_stream_data(defaults.STREAM_ID, b"", end_stream=True)
            self._flush()

    def close(self) -> None:
        """See `Pipe`."""
        if self._closed:
            return
        self._closed = True
        self._arrived.clear()
        if not self._lost:
            self.connection.close()
            self._flush()
        self.connection.drop()
        self._wake()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this pipe is closed")

    def _wake(self) -> None:
        self._readers.unpark_all()
        self._writers.unpark_all()

    # What the connection brings.

    def take(self, event: StreamDataReceived) -> None:
        """Bytes of the stream, in order."""
        if not self._closed:
            self._arrived += event.data
            self._finished = self._finished or event.end_stream
            self._readers.unpark_all()

    def sent(self) -> None:
        """Packets have left: there may be room."""
        if self._writers and self.writable:
            self._writers.unpark_all()

    def lose(self) -> None:
        """The connection has ended, by the peer, by time, or by a fault."""
        self._lost = True
        self._wake()

"""Byte stream over the single stream of a QUIC connection."""

import errno
from collections.abc import Callable

import trio
from aioquic.quic.events import StreamDataReceived

from ..host.datagrams import Place
from . import defaults
from .connection import UdpConnection


class QuicByteStream:
    """`ByteStream` over a QUIC connection.

    Received bytes wait in this object. Written bytes wait in the connection, which accepts only a
    few.
    """

    medium = "udp"

    def __init__(
        self,
        connection: UdpConnection,
        flush: Callable[[], None],
        trusted: Callable[[], None] = lambda: None,
    ) -> None:
        """`flush` sends what the connection has queued. `trusted` is called once the other end is
        authenticated."""
        self.connection = connection
        self._trusted = trusted
        self._flush = flush
        self.arrived = bytearray()
        self._finished = False  # the peer has closed its sending side
        self._ended = False  # this node has closed its sending side
        self._closed = False
        self._lost = False
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()

    @property
    def remote(self) -> Place:
        """Present address of the other end. It may change during the connection."""
        return self.connection.via.place

    @property
    def port(self) -> int:
        """UDP port of this node that the connection uses at present."""
        return self.connection.via.socket.port

    @property
    def rtt(self) -> float:
        """Smoothed round-trip time in seconds; 0 until measured."""
        return self.connection.rtt

    @property
    def packet_rtt(self) -> float:
        """Latest round trip of single packets in seconds, without the time for which bytes wait for
        lost ones that come before them; 0 until measured."""
        return self.connection.control.packet_rtt

    @property
    def rate(self) -> float:
        """Delivery rate of the path in bytes per second; 0 until measured."""
        return self.connection.control.rate

    @property
    def path_rate(self) -> float:
        """Delivery rate that the path limits, in bytes per second; 0 until measured."""
        return self.connection.control.path_rate

    @property
    def loss(self) -> float:
        """Share of the sent bytes that were lost lately."""
        return self.connection.control.loss

    @property
    def kept(self) -> int:
        """Number of unread bytes, including those that arrived out of order."""
        return len(self.arrived) + self.connection.kept

    def trust(self) -> None:
        """Open the full window and remove the deadline, because the other end is now
        authenticated."""
        self.connection.window.trust()
        self._trusted()
        if self.connection.owes_window and not self._lost:
            self._flush()

    # Reading.

    def read_ready(self, size: int) -> bytes:
        """Return 1 to `size` received bytes, as `ByteStream` specifies.

        Raises BlockingIOError if nothing has arrived, and OSError if the connection is lost.
        """
        arrived = self.arrived
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
        """Wait until a read can succeed, as `ByteStream` specifies."""
        self._check()
        if self.arrived or self._finished or self._lost:
            await trio.lowlevel.checkpoint()
        else:
            await self._readers.park()
        self._check()

    # Writing.

    def write_ready(self, data: memoryview) -> int:
        """Accept bytes for sending, as `ByteStream` specifies. They are sent at once, as far as
        congestion control allows it.

        Raises BlockingIOError if there is no room, and OSError if the connection is lost.
        """
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
        """Wait until few bytes are unsent, as `ByteStream` specifies."""
        self._check()
        if self._lost or self.writable:
            await trio.lowlevel.checkpoint()
        else:
            await self._writers.park()
        self._check()

    @property
    def writable(self) -> bool:
        """Whether few enough bytes are unsent to accept more."""
        return self.connection.unsent * 2 <= self._room

    @property
    def _room(self) -> int:
        """Number of unsent bytes to accept at most. They keep the path busy until the writer runs
        again."""
        least, most = defaults.UNSENT_BYTES
        return min(max(int(self.connection.control.rate * defaults.UNSENT_S), least), most)

    # The end.

    def end(self) -> None:
        """Close the sending side, as `ByteStream` specifies.

        Raises OSError if the connection is lost.
        """
        self._check()
        if self._lost:
            raise OSError(errno.EPIPE, "the connection is lost")
        if not self._ended:
            self._ended = True
            self.connection.send_stream_data(defaults.STREAM_ID, b"", end_stream=True)
            self._flush()

    def close(self) -> None:
        """Close both directions at once, as `ByteStream` specifies."""
        if self._closed:
            return
        self._closed = True
        self.arrived.clear()
        if not self._lost:
            self.connection.close()
            self._flush()
        self.connection.drop()
        self._wake()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this byte_stream is closed")

    def _wake(self) -> None:
        self._readers.unpark_all()
        self._writers.unpark_all()

    # Callbacks of the connection.

    def take(self, event: StreamDataReceived) -> None:
        """Append received bytes of the stream. aioquic reports them in order."""
        if not self._closed:
            self.arrived += event.data
            self._finished = self._finished or event.end_stream
            self._readers.unpark_all()

    def sent(self) -> None:
        """Wake waiting writers if few bytes are unsent. Call this after packets were sent."""
        if self._writers and self.writable:
            self._writers.unpark_all()

    def lose(self) -> None:
        """Mark the connection as ended by the peer, by a timeout, or by an error."""
        self._lost = True
        self._flush = self._trusted = _nothing  # they may lead back to this object
        self._wake()


def _nothing() -> None:
    pass

"""A data channel as a `ByteStream`: converts between messages and a stream of bytes, with bounded
buffers.

The bridge (bridge.py) passes in the messages that arrive, and fetches the messages to send. This
module therefore needs neither aiortc nor asyncio. The bridge calls it in the same thread.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from ..host.datagrams import Place
from . import defaults

_OPEN: Final = "open"
_ENDED: Final = "ended"  # closed by the peer; bytes that arrived before can still be read
_LOST: Final = "lost"


class ChannelByteStream:
    """A byte stream over the messages of one data channel.

    `on_output` is called when `next_message` may have something to send, and `on_read` with the
    number of bytes that the reader has consumed. `on_end` is called when everything is sent after a
    call of `end`, and `on_close` when `close` is called.
    """

    medium = "webrtc"

    def __init__(
        self,
        remote: Place,
        *,
        on_output: Callable[[], None],
        on_read: Callable[[int], None],
        on_end: Callable[[], None],
        on_close: Callable[[], None],
    ) -> None:
        self.remote = remote
        self._on_output = on_output
        self._on_read = on_read
        self._on_end = on_end
        self._on_close = on_close
        self._state = _OPEN
        self._closed = False
        self._finishing = False
        self._in: deque[bytes] = deque()
        self._in_bytes = 0
        self._out = bytearray()
        self._ahead = 0  # bytes that the channel below has accepted but not sent
        self._readable = trio.lowlevel.ParkingLot()
        self._writable = trio.lowlevel.ParkingLot()

    # The interface of `ByteStream`.

    def read_ready(self, size: int) -> bytes:
        """Return 1 to `size` received bytes, or b"" once the peer has closed the channel. Raises
        BlockingIOError if no bytes have arrived yet, and OSError if the channel is lost."""
        if not self._in:
            self._check()
            if self._state == _ENDED:
                return b""
            raise BlockingIOError
        data = self._in.popleft()
        if len(data) > size:
            self._in.appendleft(data[size:])
            data = data[:size]
        self._in_bytes -= len(data)
        self._on_read(len(data))
        return data

    def write_ready(self, data: memoryview) -> int:
        """Accept bytes for sending and return how many were accepted. Raises BlockingIOError if the
        buffer is full, and OSError if the channel is closed or lost."""
        self._check()
        if self._state == _ENDED or self._finishing:
            raise BrokenPipeError("the data channel is closed")
        room = defaults.OUTGOING_BYTES - len(self._out)
        if room <= 0:
            raise BlockingIOError
        taken = min(room, len(data))
        self._out += data[:taken]
        self._on_output()
        return taken

    async def wait_readable(self) -> None:
        """Wait until there are bytes to read, or the peer has closed the channel."""
        self._check()
        if self._in or self._state == _ENDED:
            await trio.lowlevel.checkpoint()
            return
        await self._readable.park()
        self._check()

    async def wait_writable(self) -> None:
        """Wait until at most a quarter of `SEND_AHEAD_BYTES` is unsent."""
        self._check()
        if self._is_low() or self._state == _ENDED:
            await trio.lowlevel.checkpoint()
            return
        await self._writable.park()
        self._check()

    def end(self) -> None:
        """Close the channel once all accepted bytes are sent."""
        self._check()
        if not self._finishing:
            self._finishing = True
            self._finish_if_sent()

    def close(self) -> None:
        """Close the channel at once, and discard everything unsent and unread."""
        if not self._closed:
            self._closed = True
            self._forget()
            self._on_close()

    # The interface for the bridge.

    @property
    def unread(self) -> int:
        """Number of received bytes that the reader has not consumed."""
        return self._in_bytes

    def arrived(self, message: bytes) -> None:
        """Append a message from the peer to the received bytes."""
        if message and not self._closed and self._state == _OPEN:
            self._in.append(message)
            self._in_bytes += len(message)
            self._readable.unpark_all()

    def next_message(self, ahead: int) -> bytes | None:
        """Return the next message to send on the channel, which already has `ahead` unsent bytes.

        Return None if the channel has enough unsent bytes, or if there is nothing to send.
        """
        self._ahead = ahead
        if not self._out or ahead >= defaults.SEND_AHEAD_BYTES:
            if self._is_low():
                self._writable.unpark_all()
            self._finish_if_sent()
            return None
        message = bytes(self._out[: defaults.MESSAGE_BYTES])
        del self._out[: defaults.MESSAGE_BYTES]
        return message

    def ended(self) -> None:
        """Record that the peer has closed the channel, and wake waiting tasks."""
        if self._state == _OPEN:
            self._state = _ENDED
            self._wake()

    def lost(self) -> None:
        """Record that the connection below is lost, and wake waiting tasks. If the peer has closed
        the channel before, reads still report the regular end."""
        if self._state == _OPEN:
            self._state = _LOST
        self._forget()

    def _is_low(self) -> bool:
        return not self._out and self._ahead <= defaults.SEND_AHEAD_BYTES // 4

    def _finish_if_sent(self) -> None:
        if self._finishing and not self._out and not self._closed:
            self._on_end()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if self._state == _LOST and not self._in:
            raise ConnectionResetError("the data channel broke")

    def _forget(self) -> None:
        self._out.clear()
        if self._closed:
            self._in.clear()
            self._in_bytes = 0
        self._wake()

    def _wake(self) -> None:
        self._readable.unpark_all()
        self._writable.unpark_all()

"""A data channel as a `Pipe`: messages below, bytes above, bounded both ways, without aiortc.

The bridge (bridge.py) hands in what arrives and fetches what is to be sent; the trio side sees a
`Pipe` and never an event loop of another kind. Both run in one thread.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from ..datagrams import Place
from . import defaults

_OPEN: Final = "open"
_ENDED: Final = "ended"  # the peer closed the channel: what came before is still read
_LOST: Final = "lost"


class ChannelPipe:
    """Bytes over the messages of one data channel.

    `on_output` is called when there is something to fetch with `next_message`, `on_read` with
    the bytes that a reader has taken, `on_end` and `on_close` when this side has finished.
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
        self._ahead = 0  # bytes that the channel below has taken and not sent
        self._readable = trio.lowlevel.ParkingLot()
        self._writable = trio.lowlevel.ParkingLot()

    # What everybody uses: `Pipe`.

    def read_ready(self, size: int) -> bytes:
        """Bytes that have come; b"" at the end. Raises BlockingIOError, OSError."""
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
        """Bytes taken. Raises BlockingIOError, OSError."""
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
        """Until there is something to read, or the end of it."""
        self._check()
        if self._in or self._state == _ENDED:
            await trio.lowlevel.checkpoint()
            return
        await self._readable.park()
        self._check()

    async def wait_writable(self) -> None:
        """Until little is unsent."""
        self._check()
        if self._is_low() or self._state == _ENDED:
            await trio.lowlevel.checkpoint()
            return
        await self._writable.park()
        self._check()

    def end(self) -> None:
        """The channel closes once everything has left."""
        self._check()
        if not self._finishing:
            self._finishing = True
            self._finish_if_sent()

    def close(self) -> None:
        """Drop it at once."""
        if not self._closed:
            self._closed = True
            self._forget()
            self._on_close()

    # What the bridge uses.

    @property
    def unread(self) -> int:
        """Bytes that wait for the reader."""
        return self._in_bytes

    def arrived(self, message: bytes) -> None:
        """A message of the peer's."""
        if message and not self._closed and self._state == _OPEN:
            self._in.append(message)
            self._in_bytes += len(message)
            self._readable.unpark_all()

    def next_message(self, ahead: int) -> bytes | None:
        """What to hand to the channel next, where `ahead` bytes are unsent already; None while
        that is enough, or nothing is there."""
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
        """The peer closed the channel."""
        if self._state == _OPEN:
            self._state = _ENDED
            self._wake()

    def lost(self) -> None:
        """The connection under the channel broke; after the peer's end that is no news."""
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

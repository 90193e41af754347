"""A client's connection as hypercorn sees it: bounded in time and memory, and watched for its end.

hypercorn stops reading while a request is being answered and another one has arrived behind it, and
it sends with a shield against cancellation. This stream therefore reads by itself, so that the end
of the connection is always noticed, and it limits the time of each send.
"""

from collections.abc import Callable

import trio

from .. import defaults

_PIECE = 1 << 16  # bytes of one read
GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class ClientStream:
    """Stream of one connection. `pump` must be running. `on_end` is called when it has ended."""

    def __init__(self, stream: trio.SocketStream, now: float, on_end: Callable[[], None]) -> None:
        self.stream = stream
        self._on_end = on_end
        self._buffer = bytearray()
        self._changed = trio.Event()
        self.answering = False  # whether an authorized request is in progress
        self.asked = False  # whether there has been one
        self.displaced = False  # whether it ends for another one, and is told so
        self.idle_since = now

    async def pump(self) -> None:
        """Read ahead until the client closes its side. Then close the connection.

        A client that leaves API_AHEAD bytes unanswered for API_BODY_TIME seconds is disconnected.
        """
        try:
            while True:
                if len(self._buffer) >= defaults.API_AHEAD and not await self._drained():
                    return
                data = await self.stream.receive_some(_PIECE)
                if not data:
                    return
                self._buffer += data
                self._wake()
        except GONE:
            return
        finally:
            self.close()

    async def receive_some(self, most: int) -> bytes:
        """Return the next bytes of the client, at most `most`.

        They are at most API_HEAD, because h11 limits a head only while it is incomplete.
        """
        while not self._buffer:
            await self._changed.wait()
        most = min(most, defaults.API_HEAD)
        data = bytes(self._buffer[:most])
        del self._buffer[:most]
        self._wake()
        return data

    async def send_all(self, data: bytes) -> None:
        """Send bytes. Raises BrokenResourceError if the client does not read them within
        API_SEND_TIME seconds."""
        with trio.move_on_after(defaults.API_SEND_TIME):
            await self.stream.send_all(data)
            return
        self.close()
        raise trio.BrokenResourceError("the client does not read the response")

    def close(self) -> None:
        """Close the connection, which also ends a send that is in progress. If it was displaced,
        the caller of `displace` closes it."""
        if not self.displaced:
            self.stream.socket.close()
        self._on_end()

    def displace(self) -> None:
        """End everything but the connection."""
        self.displaced = True
        self._on_end()

    async def aclose(self) -> None:
        """Close the connection."""
        self.close()
        await trio.lowlevel.checkpoint()

    async def _drained(self) -> bool:
        """Wait until the buffer has room. Return False if that takes too long."""
        with trio.move_on_after(defaults.API_BODY_TIME):
            while len(self._buffer) >= defaults.API_AHEAD:
                await self._changed.wait()
            return True
        return False

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

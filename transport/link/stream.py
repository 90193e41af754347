"""One stream of a link: ordered bytes in both directions, with flow control."""

from collections.abc import Callable

import trio

from ..defaults import SEND_AHEAD_BYTES
from ..errors import CallRefused, LinkClosed
from ..lane.frame import Bytes, Priority
from ..lane.lane import Lane
from ..lane.stream import LaneStream


class Stream:
    """Both directions of a stream. At most one task may send at a time, and one may receive.

    Methods raise CallRefused with the code if the stream was reset, and LinkClosed if the link has
    ended. `core` is the lane's state of the stream. `flush` sends the frames that the lane has
    queued. `ended` returns the error with which the link has ended, or None if it is alive.
    """

    def __init__(
        self,
        lane: Lane,
        core: LaneStream,
        *,
        flush: Callable[[], None],
        ended: Callable[[], LinkClosed | None],
    ) -> None:
        self._lane = lane
        self._core = core
        self._flush = flush
        self._ended = ended
        self._wake_at = SEND_AHEAD_BYTES  # unsent bytes at which the sender is woken
        self._senders = trio.lowlevel.ParkingLot()
        self._receivers = trio.lowlevel.ParkingLot()

    @property
    def priority(self) -> Priority:
        """The priority of both directions, chosen by the side that opened the stream."""
        return self._core.priority

    @property
    def failed(self) -> str | None:
        """The code with which either side reset the stream, "link-lost" if the link has ended, or
        None."""
        return "link-lost" if self._ended() is not None else self._core.failed

    def narrow(self, window: int) -> None:
        """Set the flow control window to `window` bytes, for kinds of stream that specify one.

        Both ends must call this before they send or receive anything.
        """
        self._core.narrow(window)

    def carry_link(self) -> None:
        """Mark that the stream carries another link, which notices itself when it is lost.

        This link then sends no pings because of the stream's data.
        """
        self._core.carries_link = True

    def lend(self) -> None:
        """Count the stream's data towards a relay's caps, because this node forwards it for other
        peers."""
        self._core.lent = True

    async def send(self, data: Bytes | bytearray) -> None:
        """Queue bytes to be sent. Returns once at most 512 KiB of them are unsent.

        If this is cancelled, a part may have been sent, and only `aclose` is allowed after that.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        self._queue(data if isinstance(data, bytes) else bytes(data))
        self._wake_at = SEND_AHEAD_BYTES
        while self._core.queued > SEND_AHEAD_BYTES:
            await self._senders.park()
            self._check()

    async def receive(self, limit: int) -> bytes:
        """Wait for data and return 1 to `limit` bytes. Return b"" once the peer has ended its
        direction.

        Lets other tasks run even if data has arrived, so that a peer that sends many small pieces
        cannot keep the event loop in one reader.
        """
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self.receive_ready(limit)
            except BlockingIOError:
                await self._receivers.park()

    async def receive_into(self, target: memoryview) -> int:
        """Wait for data, copy it to the beginning of `target`, and return how many bytes that were.
        Return 0 once the peer has ended its direction. Lets other tasks run as `receive` does."""
        await trio.lowlevel.checkpoint()
        while not (size := self._lane.read_into(self._core, target)):
            if self._core.failed is None and self._core.receive_done:
                return 0
            self._check()
            await self._receivers.park()
        if self._lane.has_output:  # reading has granted credit
            self._flush()
        return size

    async def finish(self) -> None:
        """End this side's direction. The peer's `receive` returns b"" after the last byte."""
        await trio.lowlevel.checkpoint()
        self.end()

    # Variants that do not wait, for callers that forward bytes and have their own buffer.

    def send_ready(self, data: Bytes, ahead: int = SEND_AHEAD_BYTES) -> int:
        """Queue bytes without waiting, and return how many were accepted. At most `ahead` stay
        unsent.

        At least one byte is accepted unless `data` is empty. Raises BlockingIOError if there is no
        room. Read-only memory is not copied, so the caller must not change it.
        """
        self._check()
        room = ahead - self._core.queued
        if room <= 0 and data:
            raise BlockingIOError
        piece = data if len(data) <= room else memoryview(data)[:room]
        stable = isinstance(piece, bytes) or piece.readonly
        self._queue(piece if stable else bytes(piece))
        return len(piece)

    def receive_ready(self, limit: int) -> bytes:
        """Return 1 to `limit` received bytes without waiting, or b"" at the end of the peer's
        direction.

        Raises BlockingIOError if no byte has arrived yet.
        """
        data = self._lane.read(self._core, limit)
        if data:
            if self._lane.has_output:  # reading has granted credit
                self._flush()
            return data
        if self._core.failed is None and self._core.receive_done:
            return b""
        self._check()
        raise BlockingIOError

    def is_sendable(self, below: int = SEND_AHEAD_BYTES) -> bool:
        """Return whether fewer than `below` bytes are unsent. Raises the errors of `send`."""
        self._check()
        return self._core.queued < below

    async def wait_sendable(self, below: int = SEND_AHEAD_BYTES) -> None:
        """Wait until fewer than `below` bytes are unsent. Raises the errors of `send`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        self._wake_at = below - 1
        while self._core.queued >= below:
            await self._senders.park()
            self._check()

    async def wait_receivable(self) -> None:
        """Wait until data, the end of the peer's direction or an error has arrived.

        Call `receive_ready` then to learn which of them it is.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._core.readable and self._ended() is None:
            await self._receivers.park()

    def end(self) -> None:
        """End this side's direction as `finish` does, but without a checkpoint."""
        self._check()
        self._core.finish()
        self._lane.outbox.schedule(self._core)
        self._flush()

    async def aclose(self) -> None:
        """Abandon the stream. If either direction has not ended, the stream is reset (`closed`)."""
        self.reset("closed")
        await trio.lowlevel.checkpoint()

    def reset(self, code: str) -> None:
        """End both directions with a code, and drop unread bytes.

        If both sides have ended their directions already, all sent bytes still arrive.
        """
        if self._ended() is None:
            self._lane.reset(self._core, code)
            self._flush()
            self.wake()

    def wake(self) -> None:
        """Wake the tasks that send and receive, because the stream's state has changed."""
        if self._senders:
            self._senders.unpark_all()
        if self._receivers:
            self._receivers.unpark_all()

    def wake_sender(self) -> None:
        """Wake the task that sends, if few enough bytes are unsent."""
        if self._core.queued <= self._wake_at:
            self._senders.unpark_all()

    def _queue(self, data: Bytes) -> None:
        """Queue bytes, and send as many as the lane allows."""
        self._core.write(data)
        self._lane.outbox.schedule(self._core)
        self._flush()

    def _check(self) -> None:
        """Raise LinkClosed if the link has ended, or CallRefused if the stream was reset."""
        ended = self._ended()
        if ended is not None:
            raise ended
        if self._core.failed is not None:
            raise CallRefused(self._core.failed, f"the stream was reset ({self._core.failed})")

"""The trio shell of one stream: ordered bytes in both directions, with the peer's credit."""

from collections.abc import Callable

import trio

from ..defaults import SEND_AHEAD_BYTES
from ..errors import CallRefused, LinkClosed
from ..lane.frame import Bytes, Priority
from ..lane.lane import Lane
from ..lane.stream import LaneStream


class Stream:
    """Both directions of a stream. One task may send and one may receive at a time.

    A stream that was reset raises CallRefused with the code. A stream whose link ended raises
    LinkClosed. `flush` sends what the lane has. `ended` returns the link's end, or None.
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
        """The priority of both directions, which the opener chose."""
        return self._core.priority

    @property
    def failed(self) -> str | None:
        """The code with which either side reset it, or "link-lost"."""
        return "link-lost" if self._ended() is not None else self._core.failed

    def narrow(self, window: int) -> None:
        """Use a window of `window` bytes, for kinds of stream that are specified to have one. Both
        ends call this before they send or receive anything."""
        self._core.narrow(window)

    def lend(self) -> None:
        """Count the stream's data towards a relay's caps, because it is spliced for other peers."""
        self._core.lent = True

    async def send(self, data: Bytes | bytearray) -> None:
        """Send bytes. Returns when all but the last 512 KiB have left.

        If cancelled, it may have sent a part: after that only `aclose` is allowed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        self._queue(data if isinstance(data, bytes) else bytes(data))
        self._wake_at = SEND_AHEAD_BYTES
        while self._core.queued > SEND_AHEAD_BYTES:
            await self._senders.park()
            self._check()

    async def receive(self, limit: int) -> bytes:
        """Wait for bytes, and return 1 to `limit` of them; b"" at the end of the peer's
        direction."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                return self.receive_ready(limit)
            except BlockingIOError:
                await self._receivers.park()

    async def finish(self) -> None:
        """End this side's direction: the peer's `receive` returns b"" after the last byte."""
        await trio.lowlevel.checkpoint()
        self.end()

    # Variants that do not wait, for callers that forward bytes and have their own buffer.

    def send_ready(self, data: Bytes, ahead: int = SEND_AHEAD_BYTES) -> int:
        """Queue bytes now, with at most `ahead` bytes unsent. Return how many were taken (>= 1).

        Raises BlockingIOError if there is no room. Read-only memory is not copied, so it must not
        change. Nothing is taken of an empty `data`.
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
        """Return 1 to `limit` received bytes; b"" at the end. Raises BlockingIOError if there are
        none yet."""
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
        """Whether `wait_sendable` would return at once. Raises like `send`."""
        self._check()
        return self._core.queued < below

    async def wait_sendable(self, below: int = SEND_AHEAD_BYTES) -> None:
        """Wait until fewer than `below` bytes are unsent. Raises like `send`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        self._wake_at = below - 1
        while self._core.queued >= below:
            await self._senders.park()
            self._check()

    async def wait_receivable(self) -> None:
        """Wait for bytes, the end or an error: `receive_ready` says which."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._core.readable and self._ended() is None:
            await self._receivers.park()

    def end(self) -> None:
        """Do the same as `finish`, without a checkpoint."""
        self._check()
        self._core.finish()
        self._lane.outbox.schedule(self._core)
        self._flush()

    async def aclose(self) -> None:
        """Abandon the stream: a direction that has not ended is reset (`closed`)."""
        self.reset("closed")
        await trio.lowlevel.checkpoint()

    def reset(self, code: str) -> None:
        """End both directions with a code, and drop unread bytes.

        If `finish` was called and the peer's end has come, all sent bytes still arrive.
        """
        if self._ended() is None:
            self._lane.reset(self._core, code)
            self._flush()
            self.wake()

    def wake(self) -> None:
        """Wake the sender and the receiver, because the stream's state changed."""
        if self._senders:
            self._senders.unpark_all()
        if self._receivers:
            self._receivers.unpark_all()

    def wake_sender(self) -> None:
        """Wake the sender if enough bytes have left."""
        if self._core.queued <= self._wake_at:
            self._senders.unpark_all()

    def _queue(self, data: Bytes) -> None:
        self._core.write(data)
        self._lane.outbox.schedule(self._core)
        self._flush()

    def _check(self) -> None:
        ended = self._ended()
        if ended is not None:
            raise ended
        if self._core.failed is not None:
            raise CallRefused(self._core.failed, f"the stream was reset ({self._core.failed})")

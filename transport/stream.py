"""The trio shell of one stream: bytes in order, both ways, with the peer's credit."""

from collections.abc import Callable

import trio

from .defaults import SEND_AHEAD_BYTES
from .errors import CallRefused, LinkClosed
from .frame import Bytes, Priority
from .lane import Lane
from .lanestream import LaneStream


class Stream:
    """Both directions of a stream. One task may send and one may receive at a time.

    A stream that the peer reset raises CallRefused with the peer's code; one whose link ended
    raises LinkClosed. `flush` sends what the lane has; `ended` is the link's end, if it has.
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
        self._wake_at = SEND_AHEAD_BYTES  # bytes unsent at which the sender looks again
        self._senders = trio.lowlevel.ParkingLot()
        self._receivers = trio.lowlevel.ParkingLot()

    @property
    def priority(self) -> Priority:
        """That of both directions; its opener chose it."""
        return self._core.priority

    @property
    def failed(self) -> str | None:
        """The code by which either side reset it, or "link-lost"."""
        return "link-lost" if self._ended() is not None else self._core.failed

    def narrow(self, window: int) -> None:
        """Keep to a window of so many bytes, where this kind of stream is known to have it: both
        ends call this before they send or receive anything."""
        self._core.narrow(window)

    def lend(self) -> None:
        """What it carries is spliced for others: who does that keeps to the caps of a relay."""
        self._core.lent = True

    async def send(self, data: Bytes | bytearray) -> None:
        """Send bytes; returns when they have left, but for the last 512 KiB.

        Cancelled, it may have sent a part: the stream is then good for `aclose` only.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        self._queue(data if isinstance(data, bytes) else bytes(data))
        self._wake_at = SEND_AHEAD_BYTES
        while self._core.queued > SEND_AHEAD_BYTES:
            await self._senders.park()
            self._check()

    async def receive(self, limit: int) -> bytes:
        """1 to `limit` bytes as they come; b"" at the end of the peer's direction."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                return self.receive_ready(limit)
            except BlockingIOError:
                await self._receivers.park()

    async def finish(self) -> None:
        """No more bytes will be sent: the peer's `receive` returns b"" after the last."""
        await trio.lowlevel.checkpoint()
        self.end()

    # The same without waiting, for who carries bytes on and has its own buffer.

    def send_ready(self, data: Bytes, ahead: int = SEND_AHEAD_BYTES) -> int:
        """Bytes taken now, at least one, so that `ahead` at most have not left.

        Raises BlockingIOError where there is no room. Read-only memory is not copied: it must
        not change. An empty `data` takes nothing.
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
        """1 to `limit` bytes that have come; b"" at the end. Raises BlockingIOError where nothing
        has."""
        data = self._lane.read(self._core, limit)
        if data:
            if self._lane.has_output:  # credit
                self._flush()
            return data
        if self._core.failed is None and self._core.receive_done:
            return b""
        self._check()
        raise BlockingIOError

    def is_sendable(self, below: int = SEND_AHEAD_BYTES) -> bool:
        """Whether `wait_sendable` would return at once. Raises as `send`."""
        self._check()
        return self._core.queued < below

    async def wait_sendable(self, below: int = SEND_AHEAD_BYTES) -> None:
        """Until fewer than `below` bytes have not left. Raises as `send`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        self._wake_at = below - 1
        while self._core.queued >= below:
            await self._senders.park()
            self._check()

    async def wait_receivable(self) -> None:
        """Until bytes, the end or an error have come: `receive_ready` says which."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._core.readable and self._ended() is None:
            await self._receivers.park()

    def end(self) -> None:
        """`finish`, at once."""
        self._check()
        self._core.finish()
        self._lane.outbox.schedule(self._core)
        self._flush()

    async def aclose(self) -> None:
        """Give the stream up: a direction that has not ended is reset (`closed`)."""
        self.reset("closed")
        await trio.lowlevel.checkpoint()

    def reset(self, code: str) -> None:
        """End both directions with a code, and drop what is unread.

        Where `finish` was called and the peer's end has come, what was sent still arrives.
        """
        if self._ended() is None:
            self._lane.reset(self._core, code)
            self._flush()
            self.wake()

    def wake(self) -> None:
        """Something changed: let whoever waits look again."""
        if self._senders:
            self._senders.unpark_all()
        if self._receivers:
            self._receivers.unpark_all()

    def wake_sender(self) -> None:
        """Bytes have left."""
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

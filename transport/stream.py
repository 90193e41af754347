"""The trio shell of one stream: bytes in order, both ways, with the peer's credit."""

from collections.abc import Callable

import trio

from .defaults import SEND_AHEAD_BYTES
from .errors import CallRefused, LinkClosed
from .frame import Bytes
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
        self._senders = trio.lowlevel.ParkingLot()
        self._receivers = trio.lowlevel.ParkingLot()

    async def send(self, data: Bytes | bytearray) -> None:
        """Send bytes; returns when they have left, but for the last 128 KiB.

        Cancelled, it may have sent a part: the stream is then good for `aclose` only.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        self._core.write(data if isinstance(data, bytes) else bytes(data))
        self._lane.outbox.schedule(self._core)
        self._flush()
        while self._core.queued > SEND_AHEAD_BYTES:
            await self._senders.park()
            self._check()

    async def receive(self, limit: int) -> bytes:
        """1 to `limit` bytes as they come; b"" at the end of the peer's direction."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            data = self._lane.read(self._core, limit)
            if data:
                self._flush()
                return data
            if self._core.failed is None and self._core.receive_done:
                return b""
            self._check()
            await self._receivers.park()

    async def finish(self) -> None:
        """No more bytes will be sent: the peer's `receive` returns b"" after the last."""
        await trio.lowlevel.checkpoint()
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
        self._senders.unpark_all()
        self._receivers.unpark_all()

    def wake_sender(self) -> None:
        """Bytes have left."""
        if self._core.queued <= SEND_AHEAD_BYTES:
            self._senders.unpark_all()

    def _check(self) -> None:
        ended = self._ended()
        if ended is not None:
            raise ended
        if self._core.failed is not None:
            raise CallRefused(self._core.failed, f"the stream was reset ({self._core.failed})")

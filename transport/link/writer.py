"""Writer of a lane's frames to one path: decides when to write, and how much."""

from collections.abc import Callable
from math import inf

import trio

from .. import defaults
from ..handshake.secured import PathLost, SecureStream
from ..host.seam import Host
from ..lane.connection import LaneConnection
from ..lane.lane import Lane
from ..lane.meter import PathMeter


class LaneWriter:
    """Writer of a lane's frames to one path.

    If nothing is being written, frames are written in the caller's context. Otherwise the writer's
    task coalesces the frames that several callers queue at the same moment. `batch` is the number
    of bytes that are encrypted at once. `sent` is called after each write. `meter` enforces the
    node's bandwidth caps; None if there are none.
    """

    def __init__(
        self,
        host: Host,
        lane: Lane,
        connection: LaneConnection,
        secured: SecureStream,
        sent: Callable[[], None],
        meter: PathMeter | None = None,
    ) -> None:
        self.batch = 4 * defaults.SMALL_BATCH_BYTES
        self._host = host
        self._lane = lane
        self._connection = connection
        self._path = secured
        self._sent = sent
        self._meter = meter
        self._busy = True  # whether the task is writing, or has not started
        self._idle = trio.lowlevel.ParkingLot()
        self._flushed = 0.0  # time of the last write in a caller's context
        self._due = inf  # time by which frames must leave that wait for others

    @property
    def has_output(self) -> bool:
        """Whether the lane has frames queued for this path."""
        return self._lane.outbox.has_output(self._connection)

    @property
    def waits(self) -> bool:
        """Whether queued frames wait for others (`flush_within`)."""
        return self._due < inf

    def flush(self, *, at_once: bool = False, now: float | None = None) -> None:
        """Send queued frames now. If the task is writing, leave them to the task.

        Set `at_once` if no other frames are expected that could leave together with these. `now` is
        the time, if the caller knows it already.
        """
        if self._busy:
            return
        if now is None:
            now = self._host.now()
        if not at_once and now - self._flushed < defaults.COALESCE_S:
            self.wake()
            return
        self._flushed = now
        data = self._take(now)
        if data:
            try:
                self._send(data)
            except PathLost:
                self._path.close()
            self._sent()
        if self._path.blocked or self.has_output or self._connection.bulk_at < inf:
            self.wake()

    def flush_within(self, seconds: float) -> None:
        """Send queued frames after so many seconds, or earlier together with others."""
        if self._busy:
            return
        at = self._host.now() + seconds
        if at < self._due:
            self._due = at
            self._idle.unpark()

    def _take(self, now: float) -> bytes:
        """Return the next frames as bytes, at most a batch and what the caps allow."""
        meter, batch = self._meter, self.batch
        allowance = meter.allow(batch, now) if meter is not None else None
        return self._lane.take(self._connection, batch, now, allowance)

    def _send(self, data: bytes) -> None:
        """Encrypt bytes and write them to the path. Raises PathLost if the path is lost."""
        self._path.send(data)
        if self._meter is not None:
            self._meter.sent(self._path.bytes_out)

    def wake(self) -> None:
        """Wake the task, which then sends all frames queued in this pass of the event loop."""
        if not self._busy:
            self._busy = True
            self._idle.unpark()

    async def run(self) -> None:
        """Send queued frames until the path is lost, and keep few bytes in the kernel's buffer."""
        secured = self._path
        try:
            while True:
                await secured.drain()
                began = self._host.now()
                data = self._take(began)
                if data:
                    self._send(data)
                    self._sent()
                    await secured.drain()
                    await secured.wait_writable()
                    if len(data) >= self.batch:
                        self.set_pace(self._host.now() - began)
                else:
                    await self._rest()
        except PathLost:
            secured.close()

    async def _rest(self) -> None:
        """Wait until there are frames to send, or until the queued ones may leave."""
        self._busy = False
        least, self._connection.bulk_at = self._connection.bulk_at, inf
        if self._meter is not None:
            least = min(least, self._meter.again_at)
        while not self._busy:
            at = min(least, self._due)
            if at == inf:
                await self._idle.park()
                continue
            with trio.CancelScope(deadline=at) as scope:
                await self._idle.park()
            if scope.cancelled_caught:
                self._busy = True
        self._due = inf

    def set_pace(self, seconds: float) -> None:
        """Adapt `batch` to the number of seconds that the last batch took to leave.

        A generated token then waits only briefly behind a batch, whatever the speed of the path.
        """
        fast, slow = defaults.BATCH_S
        if seconds < fast:
            self.batch = min(2 * self.batch, defaults.BATCH_BYTES)
        elif seconds > slow:
            self.batch = max(self.batch // 2, defaults.SMALL_BATCH_BYTES)

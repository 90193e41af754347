"""When and how much of a lane's frames go to the connection that carries it."""

from collections.abc import Callable

import trio

from . import defaults
from .host import Host
from .lane import Lane
from .path import Path, PathLost


class Writer:
    """Sends what a lane has, from the caller's context or in the writer task.

    Frames leave from the caller's context when nothing is being written; several callers of one
    moment are coalesced by the task. `batch` is what is encrypted ahead of the kernel, in
    bytes. `sent` is called after every write.
    """

    def __init__(self, host: Host, lane: Lane, sent: Callable[[], None]) -> None:
        self.batch = 4 * defaults.SMALL_BATCH_BYTES
        self._host = host
        self._lane = lane
        self._sent = sent
        self._busy = True  # no task yet, or it is writing
        self._idle = trio.lowlevel.ParkingLot()
        self._flushed = 0.0

    def reset(self) -> None:
        """The connection is gone; the next one's task starts busy."""
        self._busy = True

    def flush(self, path: Path | None, *, at_once: bool = False) -> None:
        """Send what waits from here if nobody writes; else the task takes it along."""
        if path is None or self._busy:
            return
        if not at_once:
            now = self._host.now()
            if now - self._flushed < defaults.COALESCE_S:
                self.wake()
                return
            self._flushed = now
        data = self._lane.take(self.batch)
        if data:
            try:
                path.send(data)
            except PathLost:
                path.close()
            self._sent()
            if path.blocked or self._lane.outbox.has_output:
                self.wake()

    def wake(self) -> None:
        """Let the task send what waits, with what else is queued in this pass of the loop."""
        if not self._busy:
            self._busy = True
            self._idle.unpark()

    async def run(self, path: Path) -> None:
        """The task of one connection: coalesces what is queued, keeps little in the kernel."""
        try:
            while True:
                await path.drain()
                data = self._lane.take(self.batch)
                if data:
                    began = self._host.now()
                    path.send(data)
                    self._sent()
                    await path.drain()
                    await path.wait_writable()
                    if len(data) >= self.batch:
                        self.set_pace(self._host.now() - began)
                else:
                    self._busy = False
                    await self._idle.park()
        except PathLost:
            path.close()

    def set_pace(self, seconds: float) -> None:
        """Keep what a token may wait behind short in time, whatever the connection's speed."""
        fast, slow = defaults.BATCH_S
        if seconds < fast:
            self.batch = min(2 * self.batch, defaults.BATCH_BYTES)
        elif seconds > slow:
            self.batch = max(self.batch // 2, defaults.SMALL_BATCH_BYTES)

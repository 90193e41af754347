"""Accounting of one path against the bandwidth caps of its node. No I/O.

When sending, a class of frames without budget is skipped, so that the others leave. When reading, a
path is a single stream of bytes: received bytes are charged to the class of each frame, and the
path is not read again until all classes that it brought may continue. So the cap of a class bounds
the bytes of that class. A call behind bulk on the same path waits for one read of it, a few
milliseconds. On another path it does not wait.
"""

from math import inf
from typing import Final

from .connection import Connection
from .shaper import Direction, Flow, Shaper

LEAST_S: Final = 0.0005
"""The shortest time until a refused class asks again, in seconds."""
LEAST_PIECE_BYTES: Final = 1024
"""The smallest piece that frames are split into, however small the budget."""
FLOWS: Final = len(Flow)
_OWN: Final = (Flow.CONTROL, Flow.ACTIVATION, Flow.BULK)  # relays charge spliced data themselves


class Allowance:
    """Budget of one batch by priority, which counts the bytes that leave."""

    def __init__(self, shaper: Shaper, who: "Meter") -> None:
        self.again_at = inf
        """When a class that was refused should ask again."""
        self._shaper = shaper
        self._who = who
        self._left: list[int | None] = [None] * FLOWS  # None: not asked yet
        self._sent = [0] * FLOWS
        self._lent = 0
        self._most = 0
        self._now = 0.0

    def open(self, most: int, now: float) -> None:
        """Begin a batch of at most `most` bytes."""
        self._left = [None] * FLOWS
        self._sent = [0] * FLOWS
        self._lent = 0
        self._most, self._now = most, now
        self.again_at = inf

    def left(self, priority: int) -> int:
        """Return how many bytes of a priority may still leave; 0 closes it for this batch."""
        left = self._left[priority]
        if left is None:
            left = self._ask(Flow(priority))
        return left

    def piece(self, priority: int) -> int:
        """Return the size of the pieces to split a priority's payload into, in bytes."""
        return max(self.left(priority), LEAST_PIECE_BYTES)

    def _ask(self, flow: Flow) -> int:
        now, shaper = self._now, self._shaper
        left = self._left[flow] = shaper.room(Direction.UP, flow, self._who, now, self._most)
        if not left:
            at = max(shaper.next_at(Direction.UP, flow, self._who, now), now + LEAST_S)
            self.again_at = min(self.again_at, at)
        return left

    def count(self, priority: int, size: int) -> None:
        """Count a frame that leaves."""
        self._sent[priority] += size
        left = self._left[priority]
        if left is not None:
            self._left[priority] = max(0, left - size)

    def lend(self, priority: int, size: int) -> None:
        """Exempt bytes of the last frame that are a relay's, and charged where they are spliced."""
        self._sent[priority] -= size
        self._lent += size

    def settle(self, size: int) -> None:
        """Charge the counted bytes, which were `size` bytes after encryption."""
        counted = sum(self._sent)
        if not counted:
            self._shaper.spend(Direction.UP, Flow.CONTROL, size - self._lent, self._now)
            return
        part = (size - self._lent) / counted
        for flow in Flow:
            if self._sent[flow]:
                cost = round(self._sent[flow] * part)
                self._shaper.spend(Direction.UP, flow, cost, self._now)


class Meter:
    """Account of a path in both directions, if the node has caps. Call `leave` when it closes."""

    def __init__(self, shaper: Shaper) -> None:
        self.paused = False
        """Whether reading is paused by the caps, so that silence is not the peer's fault."""
        self._shaper = shaper
        self._up = Allowance(shaper, self)
        self._out = 0  # bytes sent and charged
        self._in = 0
        self._begun = (0, 0)  # bytes and class of an incomplete frame

    def leave(self) -> None:
        """Forget the path, because it has closed."""
        self._shaper.leave(self)

    # Sending.

    def allow(self, most: int, now: float) -> Allowance | None:
        """Return the budget for a batch of at most `most` bytes; None if there is no cap."""
        if not self._shaper.capped[Direction.UP]:
            return None
        self._up.open(most, now)
        return self._up

    def sent(self, bytes_out: int) -> None:
        """Charge what has left. `bytes_out` counts from the path's beginning."""
        if self._shaper.capped[Direction.UP]:
            self._up.settle(bytes_out - self._out)
        self._out = bytes_out

    @property
    def again_at(self) -> float:
        """When to retry what was not allowed."""
        return self._up.again_at

    # Reading.

    def read(self, connection: Connection, bytes_in: int, now: float) -> list[Flow]:
        """Charge what has been received. `bytes_in` counts from the path's beginning.

        Return the classes that were received, or none if there is no cap. An incomplete frame is
        charged as far as it has come.
        """
        size, self._in = bytes_in - self._in, bytes_in
        came, connection.intake = connection.intake or [0] * FLOWS, None
        if not self._shaper.capped[Direction.DOWN]:
            self._begun = (0, 0)
            return []
        connection.intake = [0] * FLOWS
        came[self._begun[1]] -= self._begun[0]
        self._begun = connection.cutter.begun
        came[self._begun[1]] += self._begun[0]
        rest = size - sum(came)  # TLS overhead, and changes in incomplete records
        main = max(_OWN, key=lambda flow: came[flow])
        for flow in _OWN:
            cost = came[flow] + (rest if flow is main else 0)
            if cost:
                self._shaper.spend(Direction.DOWN, flow, cost, now)
        return [flow for flow in _OWN if came[flow] > 0]

    def room(self, flows: list[Flow], most: int, now: float) -> tuple[int, float]:
        """Return how many bytes to read next and `now`, or 0 and when to ask again."""
        found, at = most, now
        for flow in flows:
            room = self._shaper.room(Direction.DOWN, flow, self, now, most)
            found = min(found, room)
            if not room:
                at = max(at, self._shaper.next_at(Direction.DOWN, flow, self, now))
        return found, at if found else max(at, now + LEAST_S)

"""One path's account with the caps of its node: what may leave, what was read. No I/O.

Sending, a class of frames that has no room is passed over, so that the others leave. Reading, a
path is one stream of bytes: what it has brought is charged to the class of each frame, and the path
is not read before all classes that it brought may go on. So a cap of a class bounds what that class
brings, and a call that comes behind bulk on the same path waits for one read of it, some
milliseconds; on another path it does not wait.
"""

from math import inf
from typing import Final

from .connection import Connection
from .shaper import Direction, Flow, Shaper

LEAST_S: Final = 0.0005
"""No sooner is asked again after a refusal, in seconds."""
LEAST_PIECE_BYTES: Final = 1024
"""Nothing is cut finer, however little room there is."""
FLOWS: Final = len(Flow)
_OWN: Final = (Flow.CONTROL, Flow.ACTIVATION, Flow.BULK)  # a relay charges what it splices itself


class Allowance:
    """What of each priority may leave in one batch; counts what does."""

    def __init__(self, shaper: Shaper, who: "Meter") -> None:
        self.again_at = inf
        """When a class that was refused should be asked for again."""
        self._shaper = shaper
        self._who = who
        self._left: list[int | None] = [None] * FLOWS  # None: not asked yet
        self._sent = [0] * FLOWS
        self._lent = 0
        self._most = 0
        self._now = 0.0

    def open(self, most: int, now: float) -> None:
        """A batch of at most so many bytes is to be filled."""
        self._left = [None] * FLOWS
        self._sent = [0] * FLOWS
        self._lent = 0
        self._most, self._now = most, now
        self.again_at = inf

    def left(self, priority: int) -> int:
        """Bytes of a priority that may still leave; 0 closes it for this batch."""
        left = self._left[priority]
        if left is None:
            left = self._ask(Flow(priority))
        return left

    def piece(self, priority: int) -> int:
        """Bytes to cut it into."""
        return max(self.left(priority), LEAST_PIECE_BYTES)

    def _ask(self, flow: Flow) -> int:
        now, shaper = self._now, self._shaper
        left = self._left[flow] = shaper.room(Direction.UP, flow, self._who, now, self._most)
        if not left:
            at = max(shaper.next_at(Direction.UP, flow, self._who, now), now + LEAST_S)
            self.again_at = min(self.again_at, at)
        return left

    def count(self, priority: int, size: int) -> None:
        """A frame leaves."""
        self._sent[priority] += size
        left = self._left[priority]
        if left is not None:
            self._left[priority] = max(0, left - size)

    def lend(self, priority: int, size: int) -> None:
        """So much of the frame that leaves is a relay's, and charged where it is spliced."""
        self._sent[priority] -= size
        self._lent += size

    def settle(self, size: int) -> None:
        """What was counted has left, and was so many bytes once encrypted."""
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
    """Both directions of a path. Made where the node has caps; `leave` when the path is gone."""

    def __init__(self, shaper: Shaper) -> None:
        self.paused = False
        """Nothing is read for the caps' sake, so that silence is not the peer's."""
        self._shaper = shaper
        self._up = Allowance(shaper, self)
        self._out = 0  # bytes that have left and are charged
        self._in = 0
        self._begun = (0, 0)  # bytes and class of a frame that has not come whole

    def leave(self) -> None:
        """Nothing passes any more."""
        self._shaper.leave(self)

    # Sending.

    def allow(self, most: int, now: float) -> Allowance | None:
        """What may leave in a batch of at most so many bytes; None: all."""
        if not self._shaper.capped[Direction.UP]:
            return None
        self._up.open(most, now)
        return self._up

    def sent(self, bytes_out: int) -> None:
        """What was allowed has left; `bytes_out` are the path's, since its beginning."""
        if self._shaper.capped[Direction.UP]:
            self._up.settle(bytes_out - self._out)
        self._out = bytes_out

    @property
    def again_at(self) -> float:
        """When to look for what was not allowed."""
        return self._up.again_at

    # Reading.

    def read(self, connection: Connection, bytes_in: int, now: float) -> list[Flow]:
        """Charge what has come, `bytes_in` since the path's beginning; the classes it brought,
        none where there is no cap.

        A frame that has not come whole is charged as far as it has.
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
        rest = size - sum(came)  # TLS, a record that has not come whole, or one that now has
        main = max(_OWN, key=lambda flow: came[flow])
        for flow in _OWN:
            cost = came[flow] + (rest if flow is main else 0)
            if cost:
                self._shaper.spend(Direction.DOWN, flow, cost, now)
        return [flow for flow in _OWN if came[flow] > 0]

    def room(self, flows: list[Flow], most: int, now: float) -> tuple[int, float]:
        """Bytes to read next, or 0 and when to ask again."""
        found, at = most, now
        for flow in flows:
            room = self._shaper.room(Direction.DOWN, flow, self, now, most)
            found = min(found, room)
            if not room:
                at = max(at, self._shaper.next_at(Direction.DOWN, flow, self, now))
        return found, at if found else max(at, now + LEAST_S)

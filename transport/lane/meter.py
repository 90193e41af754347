"""Accounting of the bytes of one path for the bandwidth caps of its node. No I/O.

When this node sends, a traffic class without budget is skipped, so that the other classes can send.
When it reads, this is not possible, because a path is a single stream of bytes. Received bytes are
charged to the class of each frame, and the path is not read again until each class that was
received has budget again. The cap of a class therefore bounds only the bytes of that class. A call
that arrives behind bulk on the same path waits for the bulk of one read, which takes a few
milliseconds. A call on another path does not wait.
"""

from math import inf
from typing import Final

from .connection import LaneConnection
from .shaper import Flow, Shaper, TrafficDirection

LEAST_S: Final = 0.0005
"""Shortest time after which a traffic class without budget is retried, in seconds."""
LEAST_PIECE_BYTES: Final = 1024
"""Smallest piece into which a payload is split, in bytes, however small the budget is."""
FLOWS: Final = len(Flow)
# The classes that are charged here. Relays charge the data that they forward.
_OWN: Final = (Flow.CONTROL, Flow.ACTIVATION, Flow.BULK)


class Allowance:
    """Budget of one batch of frames, by priority. It also counts the bytes that are sent."""

    def __init__(self, shaper: Shaper, waiter: "PathMeter") -> None:
        """`waiter` identifies the path in the shaper's queues."""
        self.again_at = inf
        """Time at which to retry the classes that had no budget; infinite if all had some."""
        self._shaper = shaper
        self._waiter = waiter
        # Remaining budget in bytes; None if the shaper was not asked in this batch.
        self._left: list[int | None] = [None] * FLOWS
        self._sent = [0] * FLOWS
        self._lent = 0  # bytes that a relay charges
        self._most = 0
        self._now = 0.0

    def open(self, most: int, now: float) -> None:
        """Start a batch of at most `most` bytes."""
        self._left = [None] * FLOWS
        self._sent = [0] * FLOWS
        self._lent = 0
        self._most, self._now = most, now
        self.again_at = inf

    def left(self, priority: int) -> int:
        """Return how many bytes of a priority may still be sent in this batch. Once it is 0, it
        stays 0 for the rest of the batch."""
        left = self._left[priority]
        if left is None:
            left = self._ask(Flow(priority))
        return left

    def piece(self, priority: int) -> int:
        """Return the size in bytes of the pieces into which a payload of this priority must be
        split."""
        return max(self.left(priority), LEAST_PIECE_BYTES)

    def _ask(self, flow: Flow) -> int:
        now, shaper = self._now, self._shaper
        left = self._left[flow] = shaper.room(
            TrafficDirection.UP, flow, self._waiter, now, self._most
        )
        if not left:
            at = max(shaper.next_at(TrafficDirection.UP, flow, self._waiter, now), now + LEAST_S)
            self.again_at = min(self.again_at, at)
        return left

    def count(self, priority: int, size: int) -> None:
        """Count a frame of `size` bytes that is sent."""
        self._sent[priority] += size
        left = self._left[priority]
        if left is not None:
            self._left[priority] = max(0, left - size)

    def lend(self, priority: int, size: int) -> None:
        """Exclude bytes of the last frame from the count, because the relay service charges the
        data that it forwards."""
        self._sent[priority] -= size
        self._lent += size

    def settle(self, size: int) -> None:
        """Charge the counted bytes to the shaper. `size` is the number of bytes sent after
        encryption, including those that are not counted."""
        counted = sum(self._sent)
        if not counted:
            self._shaper.spend(TrafficDirection.UP, Flow.CONTROL, size - self._lent, self._now)
            return
        part = (size - self._lent) / counted
        for flow in Flow:
            if self._sent[flow]:
                cost = round(self._sent[flow] * part)
                self._shaper.spend(TrafficDirection.UP, flow, cost, self._now)


class PathMeter:
    """Account of one path in both directions, if the node has caps. Call `leave` when the path
    closes."""

    def __init__(self, shaper: Shaper) -> None:
        self.paused = False
        """Whether the caps have paused reading. Silence of the peer then means nothing."""
        self._shaper = shaper
        self._up = Allowance(shaper, self)
        self._out = 0  # bytes sent and charged
        self._in = 0
        self._begun = (0, 0)  # (bytes received, class) of the incomplete frame

    def leave(self) -> None:
        """Remove the path from the shaper's queues, because it has closed."""
        self._shaper.leave(self)

    # Sending.

    def allow(self, most: int, now: float) -> Allowance | None:
        """Return the budget for a batch of at most `most` bytes, or None if there is no cap."""
        if not self._shaper.capped[TrafficDirection.UP]:
            return None
        self._up.open(most, now)
        return self._up

    def sent(self, bytes_out: int) -> None:
        """Charge the bytes that were sent since the last call. `bytes_out` is the total number of
        bytes sent on this path."""
        if self._shaper.capped[TrafficDirection.UP]:
            self._up.settle(bytes_out - self._out)
        self._out = bytes_out

    @property
    def again_at(self) -> float:
        """Time at which to retry sending the classes that had no budget."""
        return self._up.again_at

    # Reading.

    def read(self, connection: LaneConnection, bytes_in: int, now: float) -> list[Flow]:
        """Charge the bytes that were received since the last call. `bytes_in` is the total number
        of bytes received on this path.

        Return the traffic classes that were received; the list is empty if there is no cap. Of an
        incomplete frame, the part received so far is charged.
        """
        size, self._in = bytes_in - self._in, bytes_in
        came, connection.intake = connection.intake or [0] * FLOWS, None
        if not self._shaper.capped[TrafficDirection.DOWN]:
            self._begun = (0, 0)
            return []
        connection.intake = [0] * FLOWS
        came[self._begun[1]] -= self._begun[0]
        self._begun = connection.cutter.begun
        came[self._begun[1]] += self._begun[0]
        rest = size - sum(came)  # overhead of TLS, and incomplete TLS records
        main = max(_OWN, key=lambda flow: came[flow])
        for flow in _OWN:
            cost = came[flow] + (rest if flow is main else 0)
            if cost:
                self._shaper.spend(TrafficDirection.DOWN, flow, cost, now)
        return [flow for flow in _OWN if came[flow] > 0]

    def room(self, flows: list[Flow], most: int, now: float) -> tuple[int, float]:
        """Return (bytes that may be read next, `now`), or (0, time at which to ask again) if one of
        the classes has no budget."""
        found, at = most, now
        for flow in flows:
            room = self._shaper.room(TrafficDirection.DOWN, flow, self, now, most)
            found = min(found, room)
            if not room:
                at = max(at, self._shaper.next_at(TrafficDirection.DOWN, flow, self, now))
        return found, at if found else max(at, now + LEAST_S)

"""Log of what a stage has sent to the next stage, for replay. Spec: docs/spec/session.md."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from operator import attrgetter

from ....transport.rates import ByteBudget

_start = attrgetter("start")


@dataclass(frozen=True, slots=True)
class Sent:
    """A span as it was sent to the next stage."""

    epoch: int
    start: int
    count: int
    data: bytes | memoryview


class SentLog:
    """Spans that a stage sent to the next stage in one session, ordered by position, for replay.

    A log that would exceed the budget is dropped permanently, and `complete` becomes False. The
    session continues, but its recovery has to start at an earlier stage. Data is not copied.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.sent: list[Sent] = []
        self.complete = True
        self.bytes = 0

    @property
    def length(self) -> int:
        """Position after the last logged one, or 0 if the log is empty."""
        return self.sent[-1].start + self.sent[-1].count if self.sent else 0

    def append(self, epoch: int, start: int, count: int, data: bytes | memoryview) -> None:
        """Append a span. Positions from `start` that are already in the log are dropped first, and
        so are all before it if it leaves some out: the log has no holes."""
        if not self.complete:
            return
        self.truncate(start if start <= self.length else 0)
        if not self._budget.take(len(data)):
            self.drop()
            return
        self.bytes += len(data)
        self.sent.append(Sent(epoch, start, count, data))

    def truncate(self, length: int) -> None:
        """Drop the positions from `length` on. A span that contains position `length` is cut
        there."""
        while self.sent and self.length > length:
            last = self.sent.pop()
            self._release(len(last.data))
            if (keep := length - last.start) > 0:
                data = bytes(last.data[: len(last.data) // last.count * keep])
                self._budget.take(len(data))
                self.bytes += len(data)
                self.sent.append(Sent(last.epoch, last.start, keep, data))

    def covers(self, start: int, stop: int) -> bool:
        """Return whether all positions from `start` to before `stop` are in the log."""
        return (
            self.complete
            and bool(self.sent)
            and self.sent[0].start <= start
            and (stop <= self.length)
        )

    def rows(self, start: int, stop: int) -> bytes:
        """Return the bytes of the positions from `start` to before `stop`, which are in the log."""
        parts = []
        for sent in self.slices(start, stop):
            row = len(sent.data) // sent.count
            first, last = max(start, sent.start), min(stop, sent.start + sent.count)
            parts.append(sent.data[(first - sent.start) * row : (last - sent.start) * row])
        return b"".join(parts)

    def slices(self, start: int, stop: int | None = None) -> list[Sent]:
        """Return the spans with positions from `start` to before `stop` (None: to the end). The
        first one may begin before `start`, and the last one may end after `stop`.

        An answer has a span for each position, so the others are not looked at.
        """
        first = bisect_right(self.sent, start, key=_start)
        if first and self.sent[first - 1].start + self.sent[first - 1].count > start:
            first -= 1
        last = None if stop is None else bisect_left(self.sent, stop, key=_start)
        return self.sent[first:last]

    def drop(self) -> None:
        """Drop all spans and ignore later ones."""
        self.complete = False
        self.sent.clear()
        self._release(self.bytes)

    def _release(self, size: int) -> None:
        self._budget.give(size)
        self.bytes -= size

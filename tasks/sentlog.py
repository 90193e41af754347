"""What a stage keeps of the inputs it sent on, to send them again; docs/spec/session.md."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sent:
    """One span as it went to the next stage."""

    epoch: int
    start: int
    count: int
    data: bytes | memoryview


class SentBudget:
    """Bytes that all logs of one stage may hold together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, size: int) -> bool:
        if self.used + size > self.limit:
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        self.used -= size


class SentLog:
    """What a stage sent on in one session, in order of positions, to be sent again.

    A log that would exceed the budget is dropped for good (`complete` turns False): the
    session goes on, and its recovery starts at an earlier stage. Data is kept, not copied.
    """

    def __init__(self, budget: SentBudget) -> None:
        self._budget = budget
        self._sent: list[Sent] = []
        self.complete = True
        self.bytes = 0

    @property
    def length(self) -> int:
        """Positions covered, from 0 or from the cached prefix on."""
        return self._sent[-1].start + self._sent[-1].count if self._sent else 0

    def append(self, epoch: int, start: int, count: int, data: bytes | memoryview) -> None:
        """Keep a span; one that starts below the log's end truncates the log first."""
        if not self.complete:
            return
        self.truncate(start)
        if not self._budget.take(len(data)):
            self.drop()
            return
        self.bytes += len(data)
        self._sent.append(Sent(epoch, start, count, data))

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on; a span that straddles it is cut."""
        while self._sent and self.length > length:
            last = self._sent.pop()
            self._release(len(last.data))
            if (keep := length - last.start) > 0:
                data = bytes(last.data[: len(last.data) // last.count * keep])
                self._budget.take(len(data))
                self.bytes += len(data)
                self._sent.append(Sent(last.epoch, last.start, keep, data))

    def slices(self, start: int) -> list[Sent]:
        """The spans that cover the positions from `start` on; the first may begin earlier."""
        return [sent for sent in self._sent if sent.start + sent.count > start]

    def drop(self) -> None:
        """Forget everything and keep nothing more."""
        self.complete = False
        self._sent.clear()
        self._release(self.bytes)

    def _release(self, size: int) -> None:
        self._budget.give(size)
        self.bytes -= size

"""Tests of the log for replay: its order, truncation and budget."""

from collections.abc import Iterator
from typing import Any

from shoal.tasks.inference.surviving.sentlog import Sent, SentLog
from shoal.transport.rates import ByteBudget


def _log(limit: int = 100) -> tuple[SentLog, ByteBudget]:
    budget = ByteBudget(limit)
    return SentLog(budget), budget


def test_slices_cover_the_positions_asked_for() -> None:
    log, _ = _log()
    log.append(1, 0, 2, b"aabb")
    log.append(1, 2, 1, b"cc")
    log.append(1, 3, 1, b"dd")
    assert log.length == 4
    assert [sent.data for sent in log.slices(0)] == [b"aabb", b"cc", b"dd"]
    assert [sent.data for sent in log.slices(1)] == [b"aabb", b"cc", b"dd"]
    assert log.slices(3) == [Sent(1, 3, 1, b"dd")]
    assert log.slices(4) == []


def test_a_start_below_the_end_truncates() -> None:
    log, budget = _log()
    log.append(1, 0, 4, b"aabbccdd")
    log.append(2, 1, 1, b"xx")
    assert [(sent.start, sent.count, sent.data) for sent in log.slices(0)] == [
        (0, 1, b"aa"),
        (1, 1, b"xx"),
    ]
    assert log.bytes == budget.used == 4
    log.truncate(0)
    assert log.length == log.bytes == budget.used == 0


def test_positions_that_were_left_out_leave_no_hole() -> None:
    """Others would get the states of later positions in place of theirs."""
    log, budget = _log()
    log.append(1, 0, 2, b"aabb")
    log.append(1, 2, 1, b"cc")
    log.append(1, 8, 2, b"iijj")
    assert not log.covers(0, 1) and not log.covers(2, 9) and log.covers(8, 10)
    assert log.sent == [Sent(1, 8, 2, b"iijj")]
    assert log.bytes == budget.used == 4
    log.append(1, 10, 1, b"kk")
    assert log.rows(8, 11) == b"iijjkk"


def test_over_the_budget_the_log_is_dropped_and_the_budget_freed() -> None:
    log, budget = _log(5)
    other = SentLog(budget)
    other.append(1, 0, 1, b"aa")
    log.append(1, 0, 1, b"aa")
    log.append(1, 1, 1, b"bb")
    assert (log.complete, log.bytes, log.slices(0)) == (False, 0, [])
    assert (other.complete, budget.used) == (True, 2)
    log.append(1, 2, 1, b"c")  # a log with a hole would be no use
    assert log.slices(0) == []


def test_dropping_twice_frees_once() -> None:
    log, budget = _log()
    log.append(1, 0, 1, b"aa")
    log.drop()
    log.drop()
    assert budget.used == 0


class Counting(list[Sent]):
    """Counts the spans that are looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.looks += len(range(*at.indices(len(self)))) if isinstance(at, slice) else 1
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[Sent]:
        for sent in super().__iter__():
            self.looks += 1
            yield sent


def test_reading_a_range_does_not_depend_on_the_length_of_the_log() -> None:
    """A peer chooses the ranges: with each reading the whole log, it would stall the daemon."""
    log, _ = _log(10**6)
    for position in range(10_000):
        log.append(1, position, 1, position.to_bytes(2))
    log.sent = spans = Counting(log.sent)
    for start in range(0, 10_000, 100):
        assert log.rows(start, start + 3) == b"".join(
            n.to_bytes(2) for n in range(start, start + 3)
        )
    assert spans.looks < 100 * 40

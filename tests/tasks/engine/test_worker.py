"""Tests of the worker's sender: frames that may wait leave with the next one, or after a while."""

import socket
from collections.abc import Iterator

import pytest

from shoal.tasks.engine.defaults import PIECE_SECONDS
from shoal.tasks.engine.wire import Header, WorkerChannel
from shoal.tasks.engine.worker import FrameSender


@pytest.fixture
def channels() -> Iterator[tuple[WorkerChannel, WorkerChannel]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ends = WorkerChannel(ours.fileno()), WorkerChannel(theirs.fileno())
    yield ends
    for end in ends:
        end.close()


def arrived(channel: WorkerChannel) -> list[Header]:
    return [header for header, _ in channel.receive()]


def test_frames_that_may_wait_leave_in_order_with_the_next(
    channels: tuple[WorkerChannel, WorkerChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = channels
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    sender = FrameSender(ours)
    sender.queue(("first",), b"")
    assert arrived(theirs) == [], "the step has not ended"
    sender.settle(False)
    assert arrived(theirs) == [("first",)], "nothing had left for long"
    sender.queue(("second",), b"")
    sender.settle(False)
    assert arrived(theirs) == []
    sender.send(("third",), b"")
    assert arrived(theirs) == [("second",), ("third",)]
    now += PIECE_SECONDS
    sender.settle(False)
    assert arrived(theirs) == []
    sender.queue(("fourth",), b"")
    sender.queue(("fifth",), b"")
    sender.settle(False)
    assert arrived(theirs) == [("fourth",), ("fifth",)]
    sender.queue(("sixth",), b"")
    sender.settle(False)
    now += PIECE_SECONDS
    sender.settle(False)
    assert arrived(theirs) == [("sixth",)]
    sender.queue(("seventh",), b"")
    sender.settle(True)
    assert arrived(theirs) == [("seventh",)]

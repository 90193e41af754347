"""Tests of the worker's sender: frames that may wait leave with the next one, or after a while."""

import socket
from collections.abc import Iterator

import pytest

from shoal.tasks.engine.defaults import PIECE_SECONDS
from shoal.tasks.engine.wire import Header, WorkerChannel
from shoal.tasks.engine.worker import FrameInbox, FrameSender


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


def test_a_request_is_noticed_while_a_background_step_is_computed(
    channels: tuple[WorkerChannel, WorkerChannel],
) -> None:
    ours, theirs = channels
    inbox = FrameInbox(ours)

    def open_(name: bytes, *, background: bool) -> Header:
        rest = b"", 0, None, "", False, False, True, None, ""
        return "open", 1, name.ljust(16), 64, "gateway", background, *rest

    def send(header: Header) -> None:
        theirs.put(header)
        assert theirs.flush()

    assert not inbox.urgent()
    send(("close", 1, b"other"))
    send(open_(b"job", background=True))
    assert not inbox.urgent(), "work for jobs is no reason to end a step"
    send(open_(b"user", background=False))
    assert inbox.urgent() and inbox.urgent(), "until the core has it"
    assert [header[0] for header, _ in inbox.frames(None)] == ["close", "open", "open"]
    assert not inbox.urgent() and not inbox.frames(0.0)
    send(("hold",))
    assert inbox.urgent()

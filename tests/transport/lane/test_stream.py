"""Tests of the credit that a stream grants to its peer."""

from shoal.transport.lane.frame import DATA, Frame, Priority
from shoal.transport.lane.stream import LaneStream, StreamWindows

WINDOW = 1000


def made(largest: int = 4 * WINDOW) -> LaneStream:
    return LaneStream(
        1, Priority.BULK, mine=False, windows=StreamWindows(WINDOW, WINDOW, largest),
        on_done=lambda stream: None,
    )  # fmt: skip


def pass_on(stream: LaneStream, rounds: int, unread: int = 0) -> int:
    """Receive pieces of 100 bytes and read them, but leave `unread` bytes. Return by how many bytes
    the peer is ahead of the reader at most."""
    received = granted = ahead = 0
    for _ in range(rounds):
        stream.take_in(Frame(DATA, 0, 0, 1, received, b"", bytes(100)))
        received += 100
        stream.read(max(0, stream.held - unread))
        limit = stream.new_limit()
        if limit is not None:
            granted, ahead = limit, max(ahead, limit - (received - stream.held))
    assert granted >= received
    return ahead


def test_the_window_grows_while_the_reader_waits_for_the_peer() -> None:
    assert pass_on(made(), 100) == 4 * WINDOW
    assert pass_on(made(largest=3 * WINDOW), 100) == 3 * WINDOW
    assert pass_on(made(largest=0), 100) == WINDOW


def test_the_window_stays_small_if_the_reader_is_slow() -> None:
    assert pass_on(made(), 100, unread=WINDOW // 2) == WINDOW


def test_a_narrow_window_does_not_grow() -> None:
    stream = made()
    stream.narrow(WINDOW // 2)
    assert pass_on(stream, 100) == WINDOW // 2

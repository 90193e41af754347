"""A data channel as a byte stream: messages below, bytes above."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from shoal.transport.browser import defaults
from shoal.transport.browser.channel import ChannelByteStream

pytestmark = pytest.mark.trio


@dataclass
class Below:
    """A channel that takes what it is told to take."""

    told: list[str] = field(default_factory=list)
    read: int = 0
    byte_stream: ChannelByteStream = field(init=False)

    def __post_init__(self) -> None:
        self.byte_stream = ChannelByteStream(
            ("192.0.2.1", 9),
            on_output=self._tell("output"),
            on_read=self._count,
            on_end=self._tell("end"),
            on_close=self._tell("close"),
        )

    def _tell(self, word: str) -> Callable[[], None]:
        return lambda: self.told.append(word)

    def _count(self, size: int) -> None:
        self.read += size

    def write(self, data: bytes) -> int:
        return self.byte_stream.write_ready(memoryview(data))


async def test_bytes_come_out_of_messages() -> None:
    below = Below()
    with pytest.raises(BlockingIOError):
        below.byte_stream.read_ready(10)
    below.byte_stream.arrived(b"hello")
    below.byte_stream.arrived(b"")
    below.byte_stream.arrived(b"world")
    assert below.byte_stream.unread == 10
    assert below.byte_stream.read_ready(3) == b"hel" and below.byte_stream.read_ready(100) == b"lo"
    assert below.byte_stream.read_ready(100) == b"world"
    assert below.read == 10 and below.byte_stream.unread == 0


async def test_a_reader_wakes_when_a_message_comes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    below = Below()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(below.byte_stream.wait_readable)
        await trio.testing.wait_all_tasks_blocked()
        below.byte_stream.arrived(b"x")
    await below.byte_stream.wait_readable()  # there is something: at once


async def test_bytes_leave_in_messages_of_bounded_size() -> None:
    below = Below()
    size = 2 * defaults.MESSAGE_BYTES + 5
    assert below.write(bytes(size)) == size
    assert below.told == ["output"]
    sizes = []
    while (message := below.byte_stream.next_message(0)) is not None:
        sizes.append(len(message))
    assert sizes == [defaults.MESSAGE_BYTES, defaults.MESSAGE_BYTES, 5]


async def test_a_writer_is_held_back_by_what_is_unsent() -> None:
    below = Below()
    assert below.write(bytes(2 * defaults.OUTGOING_BYTES)) == defaults.OUTGOING_BYTES
    with pytest.raises(BlockingIOError):
        below.write(b"x")
    assert (
        below.byte_stream.next_message(defaults.SEND_AHEAD_BYTES) is None
    )  # enough is below already
    woken = trio.Event()

    async def wait() -> None:
        await below.byte_stream.wait_writable()
        woken.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        while below.byte_stream.next_message(0) is not None:
            assert not woken.is_set()
        await trio.testing.wait_all_tasks_blocked()
        assert woken.is_set()
    await below.byte_stream.wait_writable()


async def test_a_writer_waits_until_the_channel_has_sent_too() -> None:
    below = Below()
    below.write(b"x")
    assert below.byte_stream.next_message(0) == b"x"
    assert below.byte_stream.next_message(defaults.SEND_AHEAD_BYTES // 2) is None
    with trio.move_on_after(0) as scope:
        await below.byte_stream.wait_writable()
    assert scope.cancelled_caught
    assert below.byte_stream.next_message(0) is None
    await below.byte_stream.wait_writable()


async def test_end_lets_everything_leave_first() -> None:
    below = Below()
    below.write(b"last words")
    below.byte_stream.end()
    assert "end" not in below.told
    with pytest.raises(BrokenPipeError):
        below.write(b"more")
    assert below.byte_stream.next_message(0) == b"last words"
    assert below.byte_stream.next_message(0) is None
    assert below.told[-1] == "end"


async def test_the_peer_s_end_is_read_after_its_last_bytes() -> None:
    below = Below()
    below.byte_stream.arrived(b"bye")
    below.byte_stream.ended()
    await below.byte_stream.wait_readable()
    assert below.byte_stream.read_ready(10) == b"bye" and below.byte_stream.read_ready(10) == b""
    with pytest.raises(BrokenPipeError):
        below.write(b"x")


async def test_a_lost_channel_is_an_error_after_its_last_bytes() -> None:
    below = Below()
    below.byte_stream.arrived(b"bye")
    below.byte_stream.lost()
    assert below.byte_stream.read_ready(10) == b"bye"
    with pytest.raises(ConnectionResetError):
        below.byte_stream.read_ready(10)
    with pytest.raises(ConnectionResetError):
        await below.byte_stream.wait_writable()


@pytest.mark.parametrize("what", ["wait_readable", "wait_writable"])
async def test_closing_wakes_waiting_tasks(what: str) -> None:
    below = Below()
    below.write(b"x")
    below.byte_stream.next_message(defaults.SEND_AHEAD_BYTES)

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await getattr(below.byte_stream, what)()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        below.byte_stream.close()
    below.byte_stream.close()
    assert below.told.count("close") == 1
    below.byte_stream.arrived(b"late")
    assert below.byte_stream.unread == 0
    with pytest.raises(trio.ClosedResourceError):
        below.byte_stream.read_ready(1)

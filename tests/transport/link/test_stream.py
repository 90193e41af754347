"""Non-waiting methods of a stream, for callers that forward bytes. See also test_link.py."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from shoal.transport.errors import CallRefused, LinkClosed
from shoal.transport.lane.frame import Priority
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream
from shoal.transport.link.stream import Stream
from tests.transport.fleet import clock, make_node, running, until

pytestmark = pytest.mark.trio


@pytest.fixture
def virtual_time() -> Iterator[trio.testing.MockClock]:
    yield clock()


@asynccontextmanager
async def streams() -> AsyncIterator[tuple[Stream, Stream, Link]]:
    """Yield both ends of a stream, and the link of the first."""
    a, b = make_node(1), make_node(2)
    arrived: list[Stream] = []

    async def keep(incoming: IncomingStream) -> None:
        arrived.append(incoming.stream)
        await trio.sleep_forever()

    b.endpoint.handle_stream("keep", keep)
    async with running(a, b):
        link = await a.endpoint.dial(b.address, timeout=5)
        near = await link.open_stream("keep", priority=Priority.ACTIVATION)
        await until(lambda: arrived)
        yield near, arrived[0], link


async def test_received_bytes_are_returned_at_once() -> None:
    async with streams() as (near, far, _):
        assert far.priority == near.priority == Priority.ACTIVATION
        with pytest.raises(BlockingIOError):
            far.receive_ready(10)
        assert near.send_ready(b"hello") == 5
        await far.wait_receivable()
        assert far.receive_ready(3) == b"hel"
        assert far.receive_ready(10) == b"lo"
        near.end()
        await far.wait_receivable()
        assert far.receive_ready(10) == b""
        assert far.receive_ready(10) == b""


async def test_the_sender_takes_no_more_than_may_run_ahead(virtual_time: object) -> None:
    async with streams() as (near, far, _):
        data, taken = bytes(range(256)) * (1 << 14), 0
        with pytest.raises(BlockingIOError):
            while True:
                taken += near.send_ready(memoryview(data)[taken:], 10_000)
        assert taken < len(data)
        assert not near.is_sendable(10_000) and near.is_sendable(10_001)
        got = bytearray()
        async with trio.open_nursery() as nursery:

            async def drain() -> None:
                while len(got) < len(data):
                    got.extend(await far.receive(1 << 16))

            nursery.start_soon(drain)
            while taken < len(data):
                await near.wait_sendable(5_000)
                assert near.is_sendable(5_000)
                taken += near.send_ready(memoryview(data)[taken:], 10_000)
        assert bytes(got) == data


async def test_memory_that_may_change_is_copied(virtual_time: object) -> None:
    async with streams() as (near, far, _):
        with pytest.raises(BlockingIOError):
            while True:
                near.send_ready(bytes(1 << 16), 1 << 16)
        buffer = bytearray(b"before")
        near.send_ready(memoryview(buffer), 1 << 20)
        near.end()
        buffer[:] = b"after!"
        got = b""
        while piece := await far.receive(1 << 16):
            got = (got + piece)[-6:]
        assert got == b"before"


async def test_a_reset_wakes_all_waiting_tasks_and_its_first_code_stays() -> None:
    async with streams() as (near, far, _):
        seen = []

        async def wait() -> None:
            await far.wait_receivable()
            seen.append(far.failed)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.01)
            near.reset("first")
            near.reset("second")
        assert seen == ["first"] and near.failed == "first"
        for attempt in (
            lambda: far.receive_ready(1),
            lambda: far.send_ready(b"x"),
            far.is_sendable,
            far.end,
        ):
            with pytest.raises(CallRefused) as caught:
                attempt()
            assert caught.value.code == "first"


async def test_the_end_of_the_link_is_seen_too() -> None:
    async with streams() as (near, far, link):
        near.send_ready(b"last words")
        await far.wait_receivable()
        link.close()
        await until(lambda: far.failed)
        assert near.failed == far.failed == "link-lost"
        await far.wait_receivable()
        assert far.receive_ready(100) == b"last words"
        with pytest.raises(LinkClosed):
            far.receive_ready(100)
        with pytest.raises(LinkClosed):
            await near.wait_sendable()


async def test_both_ends_may_use_a_smaller_window(virtual_time: object) -> None:
    """No more than the smaller window is in flight, and all of it arrives. The twin is
    `test_the_sender_takes_no_more_than_may_run_ahead`, where a whole MiB leaves unread."""
    async with streams() as (near, far, link):
        near.narrow(10_000)
        far.narrow(10_000)
        taken = 0
        with trio.move_on_after(1):
            while True:
                taken += near.send_ready(bytes(1_000), 1_000)
                await near.wait_sendable(1)
        assert 10_000 <= taken <= 11_000 and link.alive
        got = 0
        while got < 10_000:
            got += len(await far.receive(1 << 16))
        await near.wait_sendable(1)
        near.send_ready(bytes(5_000), 1 << 20)
        near.end()
        while piece := await far.receive(1 << 16):
            got += len(piece)
        assert got == taken + 5_000 and link.alive


async def test_exceeding_the_smaller_window_ends_the_link() -> None:
    async with streams() as (near, far, link):
        far.narrow(10_000)
        near.send_ready(bytes(20_000))
        await until(lambda: not link.alive)
        assert link.code == "credit-exceeded"


async def test_others_run_between_pieces_that_have_arrived(virtual_time: object) -> None:
    async with streams() as (near, far, _):
        near.send_ready(bytes(100))
        await far.wait_receivable()
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            for _ in range(100):
                await far.receive(1)
            nursery.cancel_scope.cancel()
        assert turns >= 50


async def test_bytes_are_received_into_the_callers_memory(virtual_time: object) -> None:
    """All of them in order, with credit for more than one window, until the end or an error."""
    async with streams() as (near, far, link):
        data = bytes(range(256)) * (1 << 14) + b"end"
        target = bytearray(len(data) + 100)

        async def send() -> None:
            await near.send(data)
            near.end()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            at = 0
            while size := await far.receive_into(memoryview(target)[at : at + 70_000]):
                assert size <= 70_000
                at += size
        assert at == len(data) and target[:at] == data and not any(target[at:])
        far.reset("stop")
        await until(lambda: near.failed)
        link.close()
        with pytest.raises(LinkClosed):
            await near.receive_into(memoryview(target))

"""Pipes over QUIC, on simulated networks."""

from dataclasses import replace

import pytest
import trio

from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.bytestream import ByteStream
from shoal.transport.udp.defaults import UdpLimits
from tests.transport.pipes import read, write
from tests.transport.udp.nodes import joined, link, pair, running


def pattern(size: int) -> bytes:
    """Bytes that show where they belong."""
    return b"".join(n.to_bytes(4) for n in range(size // 4 + 1))[:size]


async def test_bytes_both_ways_and_the_end(world: World) -> None:
    async with running(*pair(world)) as (a, b):
        near, far = await joined(a, b)
        kept: ByteStream = near
        assert (kept.medium, kept.remote) == ("udp", b.place)
        assert far.remote == a.place
        await write(near, b"question")
        near.end()
        assert await read(far, 100) == b"question"
        await write(far, b"answer")
        far.end()
        assert await read(near, 100) == b"answer"
        with pytest.raises(OSError):
            near.write_ready(memoryview(b"more"))
        near.close()
        near.close()
        far.close()


async def test_nothing_has_come(world: World) -> None:
    async with running(*pair(world)) as (a, b):
        near, far = await joined(a, b)
        for byte_stream in (near, far):
            with pytest.raises(BlockingIOError):
                byte_stream.read_ready(100)


CLEAN = PipeSpec(delay=0.01, rate=5e6)
DAMAGE = {
    "loss": replace(CLEAN, loss=0.05),
    "reorder": replace(CLEAN, reorder=0.1, reorder_delay=0.003),
    "duplicate": replace(CLEAN, duplicate=0.1),
    "all": replace(CLEAN, loss=0.03, reorder=0.05, duplicate=0.05, jitter=0.01),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
@pytest.mark.parametrize("size", [300_000])
async def test_damaged_paths_deliver_every_byte(world: World, damage: str, size: int) -> None:
    both = DAMAGE[damage]
    data = pattern(size)
    async with running(*pair(world, LinkSpec(both, both))) as (a, b):
        near, far = await joined(a, b)
        for source, target in ((near, far), (far, near)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, source, data)
                with trio.fail_after(20):
                    assert await read(target, size) == data


async def test_a_reader_that_stops_is_not_drowned(world: World) -> None:
    """The window opens as the reader reads; what waits for it is bounded."""
    limits = UdpLimits(window_bytes=100_000, largest_window_bytes=100_000)
    assert 60_000 < await _unread(world, limits) <= 100_000


@pytest.mark.ci
async def test_a_window_without_bounds_would_drown_it(world: World) -> None:
    assert await _unread(world, UdpLimits(window_bytes=1 << 40)) > 1_000_000


async def _unread(world: World, limits: UdpLimits) -> int:
    """Bytes that wait for a reader that never comes."""
    async with running(*pair(world, link(20, 0.02)), limits=limits) as (a, b):
        near, far = await joined(a, b)
        a.host.start_soon(a.nursery, write, near, bytes(10_000_000))
        await trio.sleep(2)
        assert far.connection.fault is None
        return len(far.arrived)


async def test_it_goes_on_when_the_reader_comes_back(world: World) -> None:
    limits = UdpLimits(window_bytes=50_000)
    data = pattern(400_000)
    async with running(*pair(world, link(20, 0.02)), limits=limits) as (a, b):
        near, far = await joined(a, b)
        a.host.start_soon(a.nursery, write, near, data)
        await trio.sleep(5)
        with trio.fail_after(5):
            assert await read(far, len(data)) == data


async def test_little_is_taken_ahead_of_the_wire(world: World) -> None:
    """`wait_writable` means that what is written now leaves soon."""
    async with running(*pair(world, link(2, 0.04))) as (a, b):
        near, _ = await joined(a, b)
        for _ in range(200):
            try:
                near.write_ready(memoryview(bytes(65536)))
            except BlockingIOError:
                with trio.move_on_after(1):
                    await near.wait_writable()
            assert near.connection.unsent <= 8192
        while near.connection.unsent * 2 > 8192:
            await near.wait_writable()


async def test_closing_wakes_waiting_tasks(world: World) -> None:
    async with running(*pair(world)) as (a, b):
        near, _ = await joined(a, b)
        with pytest.raises(BlockingIOError):
            for _ in range(100):
                near.write_ready(memoryview(bytes(65536)))

        async def ends(wait: object) -> None:
            with pytest.raises(trio.ClosedResourceError):
                await wait()  # type: ignore[operator]
            woken.append(1)

        woken: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends, near.wait_readable)
            nursery.start_soon(ends, near.wait_writable)
            await trio.sleep(0.001)
            near.close()
        assert len(woken) == 2
        with pytest.raises(trio.ClosedResourceError):
            near.read_ready(1)


async def test_the_peer_hears_of_a_close(world: World) -> None:
    async with running(*pair(world)) as (a, b):
        near, far = await joined(a, b)
        near.close()
        with trio.fail_after(1):
            await far.wait_readable()
        with pytest.raises(ConnectionResetError):
            far.read_ready(1)
        with pytest.raises(BrokenPipeError):
            far.write_ready(memoryview(b"x"))
        await trio.sleep(3)
        assert len(a.port.connections) == len(b.port.connections) == 0


async def test_a_lost_close_is_sent_again(world: World) -> None:
    async with running(*pair(world)) as (a, b):
        near, far = await joined(a, b)
        with a.muted():
            near.close()
        await write(far, b"are you there")
        with trio.fail_after(2):
            await far.wait_readable()
        with pytest.raises(ConnectionResetError):
            far.read_ready(1)


async def test_what_came_before_a_close_is_read(world: World) -> None:
    async with running(*pair(world)) as (a, b):
        near, far = await joined(a, b)
        await write(near, b"last words")
        near.end()
        await trio.sleep(0.2)
        near.close()
        await trio.sleep(0.2)
        assert await read(far, 100) == b"last words"
        assert far.read_ready(100) == b""


async def test_both_close_at_once(world: World) -> None:
    async with running(*pair(world)) as (a, b):
        near, far = await joined(a, b)
        near.close()
        far.close()
        await trio.sleep(3)
        assert len(a.port.connections) == len(b.port.connections) == 0


async def test_a_silent_peer_is_given_up_in_time(world: World) -> None:
    async with running(*pair(world), limits=UdpLimits(idle_s=5)) as (a, b):
        near, _ = await joined(a, b)
        began = trio.current_time()
        with b.muted(), trio.fail_after(10):
            await near.wait_readable()
        assert 4 < trio.current_time() - began < 6
        with pytest.raises(ConnectionResetError):
            near.read_ready(1)


async def test_waiting_can_be_cancelled(world: World) -> None:
    async with running(*pair(world)) as (a, b):
        near, far = await joined(a, b)
        with trio.move_on_after(0.1) as scope:
            await near.wait_readable()
        assert scope.cancelled_caught
        await write(far, b"still there")
        assert await read(near, 11) == b"still there"

"""A stream as a `ByteStream`: what the contract of `transport/bytestream.py` asks of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p import defaults
from shoal.transport.libp2p.connection import Libp2pConnection
from shoal.transport.libp2p.muxstream import MuxStream
from tests.transport.libp2p.pipes import connected, responder

pytestmark = pytest.mark.trio
NAME = "/test/1"


@asynccontextmanager
async def streams() -> AsyncIterator[tuple[MuxStream, MuxStream, Libp2pConnection]]:
    """Both ends of a stream; and the dialler's connection."""
    ours = responder()
    got: list[MuxStream] = []
    done = trio.Event()

    async def serve(connection: Libp2pConnection, stream: MuxStream) -> None:
        got.append(stream)
        done.set()
        await stream.wait_closed()

    ours.protocols = lambda: {NAME: serve}  # type: ignore[method-assign]
    async with connected(ours) as connection:
        near = await connection.open(NAME)
        await done.wait()
        yield near, got[0], connection


async def test_reads_and_writes_happen_at_once_or_wait(autojump_clock: Any) -> None:
    async with streams() as (near, far, _):
        assert (near.medium, near.remote) == ("circuit", ("", 0))
        with pytest.raises(BlockingIOError):
            far.read_ready(10)
        assert near.write_ready(memoryview(b"hello")) == 5
        await far.wait_readable()
        assert far.read_ready(3) == b"hel"
        await far.wait_readable()
        assert far.read_ready(10) == b"lo"


async def test_writing_stops_at_the_window_and_goes_on(autojump_clock: Any) -> None:
    async with streams() as (near, far, _):
        total = 0
        with trio.move_on_after(5):
            while True:
                try:
                    total += near.write_ready(memoryview(bytes(10_000)))
                except BlockingIOError:
                    await near.wait_writable()
        assert defaults.YAMUX_WINDOW_BYTES - 100 < total < defaults.YAMUX_WINDOW_BYTES
        assert len(await far.receive_exactly(200_000)) == 200_000
        with trio.fail_after(1):
            await near.wait_writable()
        assert near.write_ready(memoryview(b"more")) == 4


async def test_an_end_still_lets_the_other_way_flow(autojump_clock: Any) -> None:
    async with streams() as (near, far, _):
        await near.send(b"last")
        near.end()
        with pytest.raises(BrokenPipeError):
            near.write_ready(memoryview(b"x"))
        assert await far.receive_exactly(4) == b"last"
        await far.wait_readable()
        assert far.read_ready(10) == b"" and far.at_end
        await far.send(b"answer")
        assert await near.receive_exactly(6) == b"answer"


@pytest.mark.parametrize("wait", ["wait_readable", "wait_writable"])
async def test_closing_wakes_waiting_tasks(autojump_clock: Any, wait: str) -> None:
    async with streams() as (near, far, _):
        ended = []

        async def waits() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await getattr(near, wait)()
            ended.append(True)

        with trio.move_on_after(1):
            await near.send(bytes(defaults.YAMUX_WINDOW_BYTES))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits)
            await trio.sleep(1)
            near.close()
            near.close()  # again does no harm
        assert ended
        await trio.sleep(1)
        with pytest.raises(OSError, match="the stream was"):
            far.write_ready(memoryview(b"x"))
        with pytest.raises(ConnectionResetError):
            far.read_ready(10)


async def test_a_lost_connection_wakes_waiting_tasks(autojump_clock: Any) -> None:
    async with streams() as (near, _, connection):
        async with trio.open_nursery() as nursery:

            async def waits() -> None:
                with pytest.raises(Fault, match="stream-lost"):
                    await near.receive(10)

            nursery.start_soon(waits)
            await trio.sleep(1)
            connection.close("closed")
        with pytest.raises(OSError, match="the stream was"):
            near.write_ready(memoryview(b"x"))
        await near.wait_closed()
        with pytest.raises(Fault):
            await connection.open(NAME)


async def test_messages_are_bounded(autojump_clock: Any) -> None:
    async with streams() as (near, far, _):
        await near.send(b"\x05hello\x06toobig")
        assert await far.receive_message(5) == b"hello"
        with pytest.raises(Fault, match="too-large"):
            await far.receive_message(5)


async def test_what_was_read_too_early_comes_first(autojump_clock: Any) -> None:
    async with streams() as (near, far, _):
        await near.send(b"later")
        far.put_back(b"early")
        assert await far.receive_exactly(10) == b"earlylater"

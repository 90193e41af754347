"""aiortc as a byte stream: two carriers whose datagrams are handed over directly, sometimes not."""

import gc
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

pytest.importorskip("aiortc", reason="needs `pip install 'shoal[browser]'`")
pytest.importorskip("trio_asyncio", reason="needs `pip install 'shoal[browser]'`")

from aiortc.rtcsctptransport import Chunk, ForwardTsnChunk, SackChunk

from shoal.transport.browser import defaults
from shoal.transport.browser.bridge import Bridge, Carrier, FarEnd, open_bridge
from shoal.transport.browser.screen import Screen
from tests.transport.pipes import read, write

pytestmark = pytest.mark.trio


@dataclass
class Ends:
    """A browser and a node, and what happens to a datagram on its way (None: it is lost)."""

    bridge: Bridge
    browser: Carrier
    node: Carrier
    nursery: trio.Nursery
    settled: list[str]
    to_node: Callable[[bytes], list[bytes]] = field(default=lambda data: [data])


class Open(Screen):
    """A screen that lets everything through."""

    def admits(self, packet: bytes, **_: object) -> bool:
        return True


@asynccontextmanager
async def ends(
    fingerprint: bytes | None = None, screen: Screen | None = None
) -> AsyncIterator[Ends]:
    async with open_bridge() as bridge, trio.open_nursery() as nursery:
        settled: list[str] = []

        def to_node(data: bytes) -> None:
            for datagram in pair.to_node(data):
                node.take(datagram)

        def to_browser(data: bytes) -> None:
            browser.take(data)

        browser = Carrier(
            bridge,
            FarEnd(bridge.fingerprint, 5000),
            server=False,
            send=to_node,
            settled=lambda: settled.append("browser"),
        )
        node = Carrier(
            bridge,
            FarEnd(fingerprint or bridge.fingerprint, 5000),
            server=True,
            send=to_browser,
            settled=lambda: settled.append("node"),
            screen=screen,
        )
        pair = Ends(bridge, browser, node, nursery, settled)
        nursery.start_soon(node.run)
        nursery.start_soon(browser.run)
        with trio.fail_after(10):
            if fingerprint is None:
                await browser.opened.wait()
                await node.opened.wait()
        yield pair
        nursery.cancel_scope.cancel()


async def test_bytes_go_both_ways() -> None:
    data = bytes(range(256)) * 800  # 200 kB
    async with ends() as pair, trio.open_nursery() as nursery:
        assert sorted(pair.settled) == ["browser", "node"]
        nursery.start_soon(write, pair.browser.byte_stream, data)
        nursery.start_soon(write, pair.node.byte_stream, data[::-1])
        with trio.fail_after(20):
            assert await read(pair.node.byte_stream, len(data)) == data
            assert await read(pair.browser.byte_stream, len(data)) == data[::-1]


async def test_a_reader_that_does_not_read_holds_the_writer_back() -> None:
    data = bytes(range(256)) * 8192  # 2 MiB
    async with ends() as pair, trio.open_nursery() as nursery:
        nursery.start_soon(write, pair.browser.byte_stream, data)
        sizes = [-1, pair.node.byte_stream.unread]
        with trio.fail_after(20):
            while sizes[-1] != sizes[-2] or not sizes[-1]:
                await trio.sleep(0.2)
                sizes.append(pair.node.byte_stream.unread)
        assert defaults.WINDOW_BYTES // 2 < sizes[-1] <= defaults.WINDOW_BYTES + 16384
        with trio.fail_after(20):
            assert await read(pair.node.byte_stream, len(data)) == data


@pytest.mark.parametrize("which", ["browser", "node"])
async def test_an_end_is_read_after_the_last_words(which: str) -> None:
    async with ends() as pair:
        this, that = getattr(pair, which).byte_stream, pair.node.byte_stream
        if which == "node":
            that = pair.browser.byte_stream
        await write(this, b"x" * 100_000)
        this.end()
        with trio.fail_after(10):
            assert await read(that, 100_000) == b"x" * 100_000
            await that.wait_readable()
            assert that.read_ready(10) == b""


async def test_a_dropped_pipe_ends_the_other_side_too() -> None:
    async with ends() as pair:
        pair.browser.byte_stream.close()
        with trio.fail_after(10):
            await pair.browser.over.wait()
            await pair.node.over.wait()
        with pytest.raises(ConnectionResetError):
            pair.node.byte_stream.read_ready(10)


async def test_another_certificate_than_the_offered_one_is_refused() -> None:
    async with ends(fingerprint=b"x" * 32) as pair:
        with trio.fail_after(10):
            await pair.node.over.wait()
        assert not pair.node.opened.is_set() and "node" not in pair.settled


async def test_lost_datagrams_are_sent_again(autojump_clock: trio.testing.MockClock) -> None:
    data = bytes(range(256)) * 400
    seen = 0

    def every_tenth_is_lost(datagram: bytes) -> list[bytes]:
        nonlocal seen
        seen += 1
        return [] if seen % 10 == 0 else [datagram]

    async with ends() as pair, trio.open_nursery() as nursery:
        pair.to_node = every_tenth_is_lost
        nursery.start_soon(write, pair.browser.byte_stream, data)
        with trio.fail_after(300):
            assert await read(pair.node.byte_stream, len(data)) == data
        assert seen > 80


async def send_chunk(pair: Ends, chunk: Chunk) -> None:
    """As a browser of another make would: past its own SCTP."""

    async def send() -> None:
        sctp: Any = pair.browser._sctp
        await sctp._send_chunk(chunk)

    import trio_asyncio

    await trio_asyncio.aio_as_trio(send)()


async def test_a_breach_ends_the_channel_and_nothing_else() -> None:
    skip = ForwardTsnChunk()
    async with ends() as pair:
        await send_chunk(pair, skip)
        with trio.fail_after(10):
            await pair.node.over.wait()
        assert pair.node.breach is not None
        with pytest.raises(OSError):
            pair.node.byte_stream.read_ready(1)


async def test_twin_without_the_screen_the_same_reaches_aiortc() -> None:
    sack = SackChunk()
    sack.gaps = [(1, 20000)]  # the real one has 285 of these, each three times as long: 0.9 s
    for screen in (None, Open()):
        async with ends(screen=screen) as pair:
            reached: list[object] = []

            async def note(chunk: object, reached: list[object] = reached) -> None:
                reached.append(chunk)

            pair.node._sctp._receive_sack_chunk = note
            await send_chunk(pair, sack)
            with trio.move_on_after(0.1):
                await pair.node.over.wait()
            found = [item for item in reached if getattr(item, "gaps", None)]
            assert bool(found) == (screen is not None)
            assert pair.node.over.is_set() == (screen is None)


async def test_datagrams_of_more_than_one_record_are_lost() -> None:
    """OpenSSL would keep the second one, each time."""

    def doubled(datagram: bytes) -> list[bytes]:
        return [datagram + datagram]

    async with ends() as pair:
        await write(pair.browser.byte_stream, b"hello")
        with trio.fail_after(5):
            assert await read(pair.node.byte_stream, 5) == b"hello"
        pair.to_node = doubled
        await write(pair.browser.byte_stream, b"again")
        with trio.move_on_after(0.2) as scope:
            await pair.node.byte_stream.wait_readable()
        assert scope.cancelled_caught


async def test_no_second_handshake() -> None:
    async with ends() as pair:
        await write(pair.browser.byte_stream, b"hello")
        with trio.fail_after(5):
            await read(pair.node.byte_stream, 5)
        hello = struct.pack(">BHHHIH", 22, 0xFEFD, 0, 0, 9, 5) + b"hello"
        before = pair.node._wire._queue.qsize()
        pair.node.take(hello)
        assert pair.node._wire._queue.qsize() == before


async def test_a_handshake_takes_so_many_datagrams_and_no_more() -> None:
    async with open_bridge() as bridge:
        carrier = Carrier(
            bridge,
            FarEnd(bytes(32), 5000),
            server=True,
            send=lambda data: None,
            settled=lambda: None,
        )
        for _ in range(1000):
            carrier.take(b"\x16" + bytes(100))
        assert carrier._wire._queue.qsize() == defaults.HANDSHAKE_DATAGRAMS


async def test_the_queue_before_aiortc_is_bounded() -> None:
    async with ends() as pair:
        record = struct.pack(">BHHHIH", 23, 0xFEFD, 1, 0, 9, 5) + b"hello"
        for _ in range(5000):
            pair.node.take(record)
        assert pair.node._wire._queue.qsize() <= defaults.QUEUED_DATAGRAMS


async def test_cancelled_at_any_time_nothing_is_left() -> None:
    """The handshake takes some 10 ms; asyncio's `wait_for` in it swallows a cancellation now and
    then, which once made this test hang."""
    for step in range(40):
        with trio.move_on_after(step * 0.0005):
            async with ends():
                await trio.sleep_forever()


@pytest.mark.parametrize("method", ["start", "stop"])
async def test_an_exception_of_aiortc_s_ends_its_channel_and_nothing_else(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: object) -> None:
        raise RuntimeError("a bug of theirs")

    async with ends() as pair:
        bridge = pair.bridge
        monkeypatch.setattr("aiortc.RTCSctpTransport." + method, broken)
        _, node = await another_pair(pair)
        with trio.fail_after(10):
            if method == "stop":
                await node.opened.wait()
                node.byte_stream.close()
            await node.over.wait()
        await trio.sleep(0.02)
        gc.collect()  # a task tells of its exception when it is forgotten
        await trio.sleep(0.02)
        assert bridge.faults >= 1
        await write(pair.browser.byte_stream, b"still there")
        with trio.fail_after(10):
            assert await read(pair.node.byte_stream, 11) == b"still there"


async def another_pair(pair: Ends) -> tuple[Carrier, Carrier]:
    """Two more carriers over the same bridge."""
    made: list[Carrier] = []

    def hand_over(server: bool, data: bytes) -> None:
        made[not server].take(data)

    for server in (False, True):
        carrier = Carrier(
            pair.bridge,
            FarEnd(pair.bridge.fingerprint, 5000),
            server=server,
            send=partial(hand_over, server),
            settled=lambda: None,
        )
        made.append(carrier)
    for carrier in made:
        pair.nursery.start_soon(carrier.run)
    return made[0], made[1]

"""Streams of a link over real sockets: both directions, backpressure, limits, cuts."""

import pytest
import trio
import trio.testing

from shoal.transport.errors import CallRefused
from shoal.transport.limits import Limits
from shoal.transport.link.serving import IncomingStream
from tests.transport.fleet import linked, make_node, running, through_a_proxy, until

pytestmark = pytest.mark.trio


async def test_streams_are_byte_exact_both_ways() -> None:
    a, b = make_node(1), make_node(2)

    async def upper(incoming: IncomingStream) -> None:
        while data := await incoming.stream.receive(10_000):
            await incoming.stream.send(data.upper())
        await incoming.stream.finish()

    b.endpoint.handle_stream("upper", upper)
    text = b"the quick brown fox " * 150_000  # 3 MB
    async with running(a, b):
        link = await linked(a, b)
        stream = await link.open_stream("upper", {"x": 1})
        received = bytearray()

        async def read() -> None:
            while data := await stream.receive(1 << 16):
                received.extend(data)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for at in range(0, len(text), 50_000):
                await stream.send(text[at : at + 50_000])
            await stream.finish()
        assert received == text.upper()


async def test_the_first_bytes_leave_with_the_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make_node(1), make_node(2)
    got, there = list[bytes](), trio.Event()

    async def sink(incoming: IncomingStream) -> None:
        got.append(await incoming.stream.receive(1 << 20))
        there.set()

    b.endpoint.handle_stream("sink", sink)
    async with running(a, b):
        link = await linked(a, b)
        streams, queued = link._streams, list[list[int]]()
        flush = streams._flush

        def noted() -> None:
            queued.append([core.queued for core in link._lane.streams.values()])
            flush()

        monkeypatch.setattr(streams, "_flush", noted)
        await link.open_stream("sink", first=b"hello" * 1000)
        assert queued == [[5000]], "they were queued before anything was sent"
        with trio.fail_after(5):
            await there.wait()
        assert got == [b"hello" * 1000]


async def test_a_slow_reader_holds_the_sender_back() -> None:
    a, b = make_node(1), make_node(2)
    gate = trio.Event()
    got: list[int] = []

    async def slow_reader(incoming: IncomingStream) -> None:
        await gate.wait()
        while data := await incoming.stream.receive(1 << 20):
            got.append(len(data))

    b.endpoint.handle_stream("slow", slow_reader)
    sent: list[int] = []
    async with running(a, b) as nursery:
        link = await linked(a, b)
        stream = await link.open_stream("slow", {})

        async def send() -> None:
            for _ in range(64):
                await stream.send(bytes(1 << 16))
                sent.append(1 << 16)
            await stream.finish()

        nursery.start_soon(send)
        await trio.sleep(0.2)
        assert sum(sent) <= (1 << 20) + (1 << 19) + (1 << 17)
        assert (await link.call("echo", {"n": 1}, timeout=5)).header == {"n": 1}
        gate.set()
        await until(lambda: sum(got) == 64 << 16)


async def test_streams_wait_for_acknowledgements_and_continue() -> None:
    """A sender that waits for its own backlog is woken by the acknowledgement that frees it."""
    a, b = make_node(1, limits=Limits(backlog_bytes=1 << 17)), make_node(2)

    async def sink(incoming: IncomingStream) -> None:
        total = 0
        while data := await incoming.stream.receive(1 << 20):
            total += len(data)
        await incoming.stream.send(str(total).encode())
        await incoming.stream.finish()

    b.endpoint.handle_stream("sink", sink)
    async with running(a, b):
        link = await linked(a, b)
        with trio.fail_after(20):
            stream = await link.open_stream("sink")
            for _ in range(16):
                await stream.send(bytes(1 << 18))
            await stream.finish()
            assert await stream.receive(100) == str(1 << 22).encode()


async def test_streams_are_reset_with_a_code() -> None:
    a, b = make_node(1), make_node(2)

    async def refuse(incoming: IncomingStream) -> None:
        raise CallRefused("not-here", "no")

    b.endpoint.handle_stream("refuse", refuse)
    async with running(a, b):
        link = await linked(a, b)
        for method, code in {"refuse": "not-here", "nobody": "unknown-method"}.items():
            stream = await link.open_stream(method, {})
            with pytest.raises(CallRefused) as refused:
                await stream.receive(10)
            assert refused.value.code == code
            with pytest.raises(CallRefused):
                await stream.send(b"x")


async def test_open_streams_are_limited() -> None:
    a, b = make_node(1), make_node(2, limits=Limits(streams=2))

    async def hold(incoming: IncomingStream) -> None:
        await incoming.stream.receive(1)

    b.endpoint.handle_stream("hold", hold)
    async with running(a, b):
        link = await linked(a, b)
        first = await link.open_stream("hold", {})
        await link.open_stream("hold", {})
        with pytest.raises(CallRefused) as refused:
            await link.open_stream("hold", {})
        assert refused.value.code == "busy"
        await first.aclose()
        with trio.fail_after(5):
            while True:
                try:
                    await link.open_stream("hold", {})
                    break
                except CallRefused:
                    await trio.sleep(0.001)


async def test_a_stream_survives_cut_connections() -> None:
    a, b = make_node(1), make_node(2)
    got = bytearray()

    async def sink(incoming: IncomingStream) -> None:
        while data := await incoming.stream.receive(1 << 16):
            got.extend(data)
        await incoming.stream.finish()

    b.endpoint.handle_stream("sink", sink)
    data = bytes(range(256)) * 40_000
    async with running(a, b) as nursery:
        link, proxy = await through_a_proxy(a, b, nursery)
        stream = await link.open_stream("sink", {})
        for at in range(0, len(data), 1 << 18):
            await stream.send(data[at : at + (1 << 18)])
            if at % (1 << 20) == 0:
                proxy.cut()
        await stream.finish()
        assert await stream.receive(1) == b""
        assert got == data

"""Hostile peers at the listener (bad hellos, garbage, floods), and harmless libp2p programs."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio
import trio.testing

from shoal.transport import defaults
from shoal.transport.dial.accepting import Acceptor
from shoal.transport.host.real import RealHost
from shoal.transport.lane import frame as wire
from shoal.transport.libp2p.responder import MULTISTREAM_BYTE
from shoal.transport.limits import Limits
from tests.transport.fleet import (
    LOOPBACK,
    clock,
    goodbye,
    hello,
    make_node,
    raw_path,
    running,
    until,
)

pytestmark = pytest.mark.trio


@pytest.fixture
def virtual_time() -> Iterator[trio.testing.MockClock]:
    yield clock()


BAD_HELLOS = {
    "a call first": (wire.encode(wire.CALL, head=b"\x01m", ident=1), "bad-hello"),
    "an empty hello": (wire.encode(wire.HELLO), "bad-hello"),
    "not a map": (wire.encode(wire.HELLO, head=b"\x93\x01\x02\x03"), "bad-hello"),
    "a bomb": (wire.encode(wire.HELLO, head=b"\x91" * 4000), "bad-hello"),
    "an empty map": (wire.encode(wire.HELLO, head=b"\x80"), "bad-hello"),
    "a hello of 5 kB": (wire.encode(wire.HELLO, head=bytes(5000)), "frame-too-large"),
    "a frame of 4 GB": (b"\xff" * 28, "frame-too-large"),
    "a link never heard of": (hello(resume=bytes(16)), "unknown-link"),
}


@pytest.mark.parametrize("name", BAD_HELLOS)
async def test_a_bad_hello_is_refused_with_its_code(name: str) -> None:
    data, code = BAD_HELLOS[name]
    node = make_node(1)
    async with running(node):
        path = await raw_path(node)
        path.send(data)
        assert await goodbye(path) == code
        path.close()
        assert node.up == []


async def test_garbage_silence_and_slow_bytes_cost_bounded_time(
    virtual_time: trio.testing.MockClock,
) -> None:
    node = make_node(1)
    host = RealHost()
    async with running(node) as nursery:
        began = trio.current_time()

        async def slow_loris() -> None:
            stream = await host.connect(LOOPBACK, node.endpoint.port)
            try:
                for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100):
                    await stream.send_all(bytes([byte]))
                    await trio.sleep(0.5)
            except trio.BrokenResourceError:
                pass
            finally:
                stream.socket.close()

        nursery.start_soon(slow_loris)
        for first in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01garbage", b"\x13"):
            stream = await host.connect(LOOPBACK, node.endpoint.port)
            await stream.send_all(first)
            with trio.fail_after(15):
                with suppress(trio.BrokenResourceError):
                    answer = await stream.receive_some(100)
                    assert answer == b"" or answer[:2] == b"\x15\x03"  # a TLS alert
            stream.socket.close()
        await until(lambda: node.endpoint.accepting.half_open.count == 0)
        assert trio.current_time() - began < 2 * defaults.HANDSHAKE_S + 5


async def test_half_open_connections_are_bounded_and_links_continue() -> None:
    limits = Limits(half_open_loopback=20)
    node, friend = make_node(1, limits=limits), make_node(2)
    host = RealHost()
    async with running(node, friend):
        link = await friend.endpoint.dial(node.address, timeout=5)
        streams = [await host.connect(LOOPBACK, node.endpoint.port) for _ in range(100)]
        slowest = 0.0
        for number in range(50):
            began = trio.current_time()
            await link.call("echo", {"n": number}, timeout=5)
            slowest = max(slowest, trio.current_time() - began)
            await trio.sleep(0.01)
        assert node.endpoint.accepting.half_open.count == 20
        assert slowest < 1.0
        for stream in streams:
            stream.socket.close()
        await until(lambda: node.endpoint.accepting.half_open.count == 0)
        late = make_node(3)
        async with running(late):
            assert (await late.endpoint.dial(node.address, timeout=5)).alive


async def test_libp2p_programs_are_passed_to_the_responder() -> None:
    node = make_node(1)
    served: list[bytes] = []

    async def serve(stream: trio.SocketStream, first: bytes) -> None:
        served.append(first)
        stream.socket.close()

    node.endpoint.accept(MULTISTREAM_BYTE, Acceptor("libp2p", serve, lasting=True))
    async with running(node):
        stream = await RealHost().connect(LOOPBACK, node.endpoint.port)
        await stream.send_all(b"\x13/multistream/1.0.0\n")
        assert await stream.receive_some(10) == b""
        stream.socket.close()
        assert served == [b"\x13/multistream/1.0.0\n"]


async def test_a_missing_hello_times_out(
    virtual_time: trio.testing.MockClock,
) -> None:
    node = make_node(1)
    async with running(node):
        path = await raw_path(node)
        began = trio.current_time()
        with trio.fail_after(60):
            assert await path.receive() == b""
        assert trio.current_time() - began == pytest.approx(defaults.HANDSHAKE_S, abs=1)
        path.close()

"""A link over simulated sockets instead of the operating system's.

The tests with real sockets are in test_link.py.
"""

from typing import Any

import pytest
import trio

from shoal.transport.bytestream import TcpByteStream
from shoal.transport.handshake.certificate import Certificate
from shoal.transport.handshake.secured import SecureStream
from shoal.transport.handshake.tls import Tls
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity
from tests.transport.fleet import LOOPBACK, make_node, running, until

pytestmark = pytest.mark.trio


class Simulated:
    """A socket without a descriptor: only its methods work (`byte_stream.py`)."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._socket = stream.socket
        self._ready = TcpByteStream(stream)

    def fileno(self) -> int:
        return -1

    def read_ready(self, size: int) -> bytes:
        return self._ready.read_ready(size)

    def write_ready(self, data: memoryview) -> int:
        return self._ready.write_ready(data[:1000])

    async def wait_readable(self) -> None:
        await self._ready.wait_readable()

    async def wait_writable(self) -> None:
        await self._ready.wait_writable()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class SimulatedHost(RealHost):
    async def connect(self, address: str, port: int, *, source_port: int = 0) -> trio.SocketStream:
        stream = await super().connect(address, port, source_port=source_port)
        stream.socket = Simulated(stream)  # type: ignore[assignment]
        return stream


async def test_calls_of_every_size() -> None:
    a, b = make_node(1, host=SimulatedHost()), make_node(2)
    async with running(a, b) as nursery:
        link = await a.endpoint.dial(b.address, timeout=5)

        async def call(size: int) -> None:
            payload = bytes([size % 251]) * size
            reply = await link.call("echo", {"n": size}, payload, timeout=20)
            assert (reply.header, bytes(reply.payload)) == ({"n": size}, payload)

        for size in (0, 1, 100, 70_000, 3_000_000):
            nursery.start_soon(call, size)
        back = b.endpoint.link(a.endpoint.peer)
        assert back is not None
        assert (await back.call("echo", {"n": 2}, bytes(500_000), timeout=20)).header == {"n": 2}
        await until(lambda: len(b.calls) == 5)


async def test_both_ends_learn_why_it_ended() -> None:
    a, b = make_node(1, host=SimulatedHost()), make_node(2)
    async with running(a, b):
        link = await a.endpoint.dial(b.address, timeout=5)
        link.close("enough")
        await until(lambda: b.lost)
        assert b.lost == ["enough"]
        await a.endpoint.dial(b.address, timeout=5)
        b.scope.cancel()
        await until(lambda: len(a.lost) == 2)
        assert a.lost == ["enough", "closed"]


class Counted(TcpByteStream):
    """A byte stream that counts its writes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self.writes = 0
        self._write, self.write_ready = self.write_ready, self._count

    def _count(self, data: memoryview) -> int:
        self.writes += 1
        return self._write(data)


async def test_the_end_of_tls_leaves_with_the_hello() -> None:
    """Each new connection costs either side one packet less, and the peer its acknowledgement."""
    (listener,) = await trio.open_tcp_listeners(0, host=LOOPBACK)
    dialled = await trio.open_tcp_stream(LOOPBACK, listener.socket.getsockname()[1])
    near, far = Counted(dialled), Counted(await listener.accept())
    names = [Certificate.generate(Identity.from_seed(bytes([n]) * 32), RealHost()) for n in (1, 2)]
    client = SecureStream(near, Tls(names[0], server=False, expect=None))
    server = SecureStream(far, Tls(names[1], server=True, expect=None))

    async def dial() -> None:
        await client.handshake(hold=True)
        client.send(b"hello")
        assert bytes(await client.receive()) == b"answer"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dial)
        await server.handshake(hold=True)
        assert bytes(server.early() or await server.receive()) == b"hello"
        server.send(b"answer")
    assert (near.writes, far.writes) == (2, 2)
    client.close()
    server.close()
    await listener.aclose()

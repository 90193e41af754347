"""The dialler's hello: simultaneous dials, a dial that hangs, and a cancelled one."""

from collections.abc import Iterator

import pytest
import trio
import trio.testing

from shoal.transport import defaults
from shoal.transport.address import Address
from shoal.transport.bytestream import TcpByteStream
from shoal.transport.handshake.certificate import Certificate
from shoal.transport.handshake.secured import SecureStream
from shoal.transport.handshake.tls import Tls
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity
from tests.transport.fleet import (
    LOOPBACK,
    Node,
    clock,
    dial_code,
    make_node,
    running,
    until,
)

pytestmark = pytest.mark.trio


@pytest.fixture
def virtual_time() -> Iterator[trio.testing.MockClock]:
    yield clock()


@pytest.mark.parametrize("seed", range(5))
async def test_both_dial_at_once_and_one_link_stays(seed: int) -> None:
    a, b = make_node(1 + seed), make_node(50 + seed)
    async with running(a, b):
        links = {}

        async def dial(node: Node, other: Node) -> None:
            links[node.endpoint.peer] = await node.endpoint.dial(other.address, timeout=5)

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(dial, a, b)
                nursery.start_soon(dial, b, a)
        await trio.sleep(0.02)
        ours, theirs = links[a.endpoint.peer], links[b.endpoint.peer]
        assert ours.alive and theirs.alive
        assert ours.status.dialled != theirs.status.dialled
        assert (len(a.up), len(b.up), a.lost, b.lost) == (1, 1, [], [])
        assert (await ours.call("echo", {"n": 1}, timeout=5)).header == {"n": 1}
        assert (await theirs.call("echo", {"n": 2}, timeout=5)).header == {"n": 2}


@pytest.mark.parametrize("bounded", [True, False])
async def test_an_address_without_a_hello_delays_other_dials_only_briefly(
    virtual_time: object, monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    """In the twin they wait as long as the dial itself."""
    if not bounded:
        monkeypatch.setattr(defaults, "HELLO_S", 60.0)
    a, b = make_node(1), make_node(2)
    certificate = Certificate.generate(Identity.from_seed(bytes([2]) * 32), RealHost())

    async def say_nothing(stream: trio.SocketStream) -> None:
        await SecureStream(
            TcpByteStream(stream), Tls(certificate, server=True, expect=None)
        ).handshake()
        await trio.sleep_forever()

    async with running(a, b) as nursery:
        listener = await RealHost().listen(LOOPBACK, 0)
        nursery.start_soon(trio.serve_listeners, say_nothing, [listener])
        silent = Address(LOOPBACK, listener.socket.getsockname()[1], b.endpoint.peer)
        codes: list[str] = []

        async def dial_silent() -> None:
            codes.append(await dial_code(a, silent, timeout=10))

        nursery.start_soon(dial_silent)
        await until(lambda: a.endpoint._links._proving)
        began = trio.current_time()
        await a.endpoint.dial(b.address, timeout=20)
        assert (trio.current_time() - began < 4) is bounded
        await until(lambda: codes)
        assert codes == ["timeout"]


async def test_cancelling_a_dial_anywhere_leaves_nothing_behind() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        for delay in (0, 0.0003, 0.001, 0.002, 0.003, 0.004, 0.006):
            with trio.move_on_after(delay):
                await a.endpoint.dial(b.address, timeout=5)
        link = await a.endpoint.dial(b.address, timeout=5)
        assert (await link.call("echo", {"n": 1}, timeout=5)).header == {"n": 1}
        assert a.endpoint.links() == [link] and not a.endpoint._links._proving
        await until(lambda: b.endpoint.accepting.half_open.count == 0)

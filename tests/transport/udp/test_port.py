"""Tests of one UDP port: dispatch of datagrams, its sockets, closing it."""

from typing import Any

import pytest
import trio

from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World
from shoal.transport.errors import AddressInUse
from shoal.transport.host.datagrams import Datagrams, Place
from shoal.transport.host.real import RealHost
from shoal.transport.udp.port import UdpPort
from shoal.transport.udp.quic import QuicByteStream
from tests.transport.pipes import read, write
from tests.transport.udp.nodes import PORT, flow, joined, link, pair, running

LOOPBACK = "127.0.0.1"
STUN = b"\x00\x01\x00\x00\x21\x12\xa4\x42" + bytes(12)


async def test_stun_quic_and_the_rest(world: World) -> None:
    """RFC 9443: the first byte says."""
    async with running(*pair(world)) as (a, b):
        heard: list[tuple[bytes, Place, Datagrams]] = []
        b.port.on_stun(lambda *item: heard.append(item))
        for first in range(256):
            assert a.port.send(bytes([first]) + STUN[1:], b.place)
        await trio.sleep(0.1)
        assert [data[0] for data, _, _ in heard] == [0, 1, 2, 3]
        assert {place for _, place, _ in heard} == {a.place}
        assert all(socket is b.port.sockets[0] for _, _, socket in heard)
        assert b.port.dropped == 60
        assert b.port.connections.dropped == 192
        a.port.send(b"", b.place)
        await trio.sleep(0.1)
        assert b.port.dropped == 61


async def test_stun_without_a_listener_is_dropped(world: World) -> None:
    async with running(*pair(world)) as (a, b):
        a.port.send(STUN, b.place)
        await trio.sleep(0.1)
        assert b.port.dropped == 1


async def test_a_dial_without_an_answer_ends_in_time(world: World) -> None:
    async with running(*pair(world)) as (a, b):
        began = trio.current_time()
        with pytest.raises(ConnectionRefusedError):
            await a.dial((b.place[0], 9), timeout=3)
        assert trio.current_time() - began == pytest.approx(3, abs=0.01)
        with pytest.raises(ConnectionRefusedError):
            await a.dial(("2600::1", 9), timeout=3)  # there is no socket of that version
        await trio.sleep(5)
        assert len(a.port.connections) == 0


async def test_a_cancelled_dial_leaves_nothing(world: World) -> None:
    async with running(*pair(world)) as (a, b):
        with trio.move_on_after(0.5):
            await a.dial((b.place[0], 9), timeout=30)
        await trio.sleep(5)
        assert len(a.port.connections) == 0


async def test_an_added_socket_dials_and_is_answered(world: World) -> None:
    async with running(*pair(world)) as (a, b):
        extra = await a.host.run(a.world.datagrams, "0.0.0.0", 0)
        a.port.add(extra)
        near = await a.dial(b.place, socket=extra)
        near.write_ready(memoryview(b"hello"))
        far = await b.accept()
        assert far.remote == (a.place[0], extra.port)
        assert near.port == extra.port != PORT
        assert await read(far, 5) == b"hello"
        await write(far, b"answer")
        assert await read(near, 6) == b"answer"
        # And others may dial it.
        back = await b.dial((a.place[0], extra.port))
        back.write_ready(memoryview(b"!"))
        assert (await a.accept()).port == extra.port
        a.port.remove(extra)
        a.port.remove(extra)
        assert not a.port.send(b"x", b.place, extra)
        await joined(a, b)


async def test_the_end_of_a_port_is_told(world: World) -> None:
    async with running(*pair(world)) as (a, b):
        near, far = await joined(a, b)
        socket = a.port.sockets[0]
        a.scope.cancel()
        await a.stopped.wait()
        with pytest.raises(trio.ClosedResourceError):
            near.read_ready(1)
        with trio.fail_after(1):
            await far.wait_readable()
        with pytest.raises(ConnectionResetError):
            far.read_ready(1)
        assert not socket.send(b"x", b.place)
        with pytest.raises(OSError):
            await a.dial(b.place)
        with pytest.raises(trio.ClosedResourceError):
            a.port.add(socket)
        near.close()


@pytest.mark.parametrize("at", [n / 200 for n in range(0, 40, 3)])
async def test_cancelled_at_any_moment(world: World, at: float) -> None:
    """Nothing is left behind, whatever was under way."""
    async with running(*pair(world, link(10, 0.02))) as (a, b):
        with trio.move_on_after(at):
            await flow(a, b)
            await trio.sleep(1)
        a.scope.cancel()
        with trio.fail_after(1):
            await a.stopped.wait()
        assert len(a.port.connections) == 0
        await trio.sleep(15)
        assert len(b.port.connections) == 0
        assert b.port.connections.gate.half_open.count == 0


def _digest(seed: int) -> str:
    """The packets of a transfer over a lossy path."""
    trace = Trace()
    world = World(seed, trace=trace)
    hosts = pair(world, link(20, 0.04, loss=0.01))

    async def main() -> None:
        async with running(*hosts) as (a, b):
            near, far = await joined(a, b)
            a.host.start_soon(a.nursery, write, near, bytes(300_000))
            assert len(await read(far, 300_000)) == 300_000
            near.close()

    world.run(main)
    return trace.digest


def test_the_same_seed_gives_the_same_packets() -> None:
    assert _digest(3) == _digest(3) != _digest(4)


# Real sockets.


@pytest.mark.trio
async def test_on_loopback() -> None:
    ports = [UdpPort(RealHost()) for _ in range(2)]
    send, receive = trio.open_memory_channel[QuicByteStream](10)
    ports[1].on_byte_stream(send.send_nowait)
    async with trio.open_nursery() as nursery:
        numbers: list[int] = [await nursery.start(each.run, [LOOPBACK], 0) for each in ports]
        near = await ports[0].dial((LOOPBACK, numbers[1]), timeout=5)
        data = bytes(range(256)) * 4000
        nursery.start_soon(write, near, data)
        with trio.fail_after(10):
            far = await receive.receive()
            assert await read(far, len(data)) == data
            near.end()
            assert await read(far, 1) == b""
        assert far.remote == (LOOPBACK, numbers[0])
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_both_versions_have_one_number() -> None:
    port = UdpPort(RealHost())
    async with trio.open_nursery() as nursery:
        number: Any = await nursery.start(port.run, [LOOPBACK, "::1"], 0)
        assert [socket.port for socket in port.sockets] == [number, number]
        with pytest.raises(AddressInUse):
            await UdpPort(RealHost()).run(["::1", LOOPBACK], number)
        six = await port.dial(("::1", number), timeout=5)
        assert six.remote == ("::1", number)
        nursery.cancel_scope.cancel()

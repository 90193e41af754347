"""All connections of a port, under attack and by themselves."""

import gc
from contextlib import suppress
from functools import partial
from random import Random
from weakref import ref

import pytest
import trio
from aioquic.quic.connection import QuicConnectionError
from aioquic.quic.packet import QuicStreamFrame

from shoal.netsim.world import World
from shoal.transport.defaults import MIB
from shoal.transport.guard import Mishap
from shoal.transport.udp import connections as module
from shoal.transport.udp.connection import UdpConnection
from shoal.transport.udp.defaults import UdpLimits
from shoal.transport.udp.quic import QuicByteStream
from tests.transport.pipes import read, write
from tests.transport.udp.nodes import PORT, Node, joined, link, pair, running
from tests.transport.udp.test_gate import first_packet


async def test_many_connections_between_two_ports(world: World) -> None:
    """Ids tell them apart: all have the same addresses."""
    async with running(*pair(world)) as (a, b):
        pairs = [await joined(a, b) for _ in range(20)] + [
            (near, far) for far, near in [await joined(b, a) for _ in range(5)]
        ]
        for n, (near, _) in enumerate(pairs):
            await write(near, bytes([n]) * 100)
        for n, (_, far) in enumerate(pairs):
            assert await read(far, 100) == bytes([n]) * 100
        assert len(a.port.connections) == 25
        for near, far in pairs:
            near.close()
            far.close()
        await trio.sleep(3)
        assert len(a.port.connections) == len(b.port.connections) == 0
        for node in (a, b):
            assert not node.port.connections._by_cid
            assert node.port.connections.gate.half_open.count == 0
            assert node.port.connections.growth.used == 0


async def test_an_ended_connection_is_freed_at_once(world: World) -> None:
    """It has too many objects to wait for a full garbage collection."""
    async with running(*pair(world)) as (a, b):
        near, far = await joined(a, b)
        unanswered = trio.CancelScope()
        with unanswered, suppress(OSError, trio.TooSlowError):
            await a.dial(("11.0.99.99", 4001), timeout=0.5)
        ends = [ref(each.connection) for node in (a, b) for each in node.port.connections._entries]
        assert len(ends) >= 2
        gc.collect()
        gc.disable()
        try:
            near.close()
            far.close()
            await trio.sleep(30)
            del near, far
            assert [each() for each in ends] == [None] * len(ends)
        finally:
            gc.enable()


async def test_garbage_ends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invalid datagrams close neither the port nor another connection."""
    random = Random(7)
    hosts = [*pair(world), world.host("evil")]
    async with running(*hosts) as (a, b, evil):
        near, far = await joined(a, b)
        faults = _faults(monkeypatch)
        samples = _recorded(b)
        await write(near, b"recorded")
        assert await read(far, 8) == b"recorded"
        samples.append(first_packet())
        for _ in range(1500):
            data = bytearray(random.choice(samples))
            for _ in range(random.randrange(1, 4)):
                data[random.randrange(min(len(data), 60))] = random.randrange(256)
            if random.random() < 0.2:
                data = data[: random.randrange(1, len(data) + 1)]
            evil.port.send(bytes(data), b.place)
            if random.random() < 0.05:
                await trio.sleep(0.001)
        evil.port.send(random.randbytes(1400), b.place)
        await trio.sleep(1)
        await write(near, b"still there")
        with trio.fail_after(5):
            assert await read(far, 11) == b"still there"
        assert far.remote == a.place
        assert b.port.connections.dropped > 100
        assert len(b.port.connections) < 20
        assert not faults


def _faults(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Collect faults of connections from now on, except QuicConnectionError."""
    found: list[BaseException] = []

    def note(self: UdpConnection, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, QuicConnectionError):
            found.append(error)

    monkeypatch.setattr(UdpConnection, "fault", property(lambda self: None, note), raising=False)
    return found


def _recorded(node: Node) -> list[bytes]:
    """Datagrams that the node gets from now on."""
    found: list[bytes] = []
    receive = node.port.connections.receive

    def record(batch: list[tuple[bytes, tuple[str, int]]], socket: object) -> None:
        found.extend(data for data, _ in batch)
        receive(batch, socket)  # type: ignore[arg-type]

    node.port.connections.receive = record  # type: ignore[assignment, method-assign]
    return found


async def _flood(world: World, limits: UdpLimits, count: int) -> Node:
    """First packets from as many addresses; true ones, so that each would cost a handshake."""
    async with running(*pair(world), limits=limits) as (a, b):
        for n in range(count):
            item = first_packet(), (f"198.{n % 200}.{n // 200}.1", 4001)
            b.port.connections.receive([item], b.port.sockets[0])
        near, far = await joined(a, b)
        await write(near, b"let in")
        assert await read(far, 6) == b"let in"
        near.close()
        return b


async def test_a_flood_of_first_packets_costs_little(world: World) -> None:
    """A source without a proven address gets a short reply and costs no memory."""
    node = await _flood(world, UdpLimits(), 150)
    assert node.port.connections.gate.retries >= 150 - 8


async def test_without_proof_each_would_be_a_connection(world: World) -> None:
    node = await _flood(world, UdpLimits(retry_above=1 << 30, unproven_per_s=1e9), 30)
    assert node.port.connections.gate.retries == 0


async def test_half_open_connections_end_in_time(world: World) -> None:
    async with running(*pair(world), limits=UdpLimits(handshake_s=3)) as (a, b):
        connections = b.port.connections
        for n in range(5):
            connections.receive([(first_packet(), (f"198.51.{n}.1", 1))], b.port.sockets[0])
        byte_stream = await a.dial(b.place)  # says nothing
        assert len(connections) == 6 == connections.gate.half_open.count
        await trio.sleep(4)
        assert len(connections) == 0 == connections.gate.half_open.count
        with pytest.raises(OSError):
            byte_stream.read_ready(1)


async def _squat(world: World, trusting: bool) -> tuple[int, int]:
    """How many connections one address keeps by a byte on each; now, and after a while."""
    async with running(*pair(world)) as (a, b):
        b.trusting = trusting
        kept = []
        for _ in range(30):
            with suppress(OSError):
                kept.append(await a.dial(b.place, timeout=0.5))
                kept[-1].write_ready(memoryview(b"!"))
        await trio.sleep(0.1)
        now = len(b.port.connections)
        await trio.sleep(11)
        return now, len(b.port.connections)


async def test_an_unproven_connection_is_dropped(world: World) -> None:
    """Eight of one subnet at a time, each for ten seconds, whatever they say first."""
    now, later = await _squat(world, trusting=False)
    assert now <= 8
    assert later == 0


async def test_without_that_a_byte_would_be_enough(world: World) -> None:
    assert await _squat(world, trusting=True) == (30, 30)


def _far_byte(byte_stream: QuicByteStream, offset: int) -> None:
    """Have the next packet carry a byte of the stream that is far beyond the others."""
    sender = byte_stream.connection._streams[0].sender
    frames = [QuicStreamFrame(data=b"x", offset=offset)]
    usual = sender.get_frame

    def get_frame(size: int, limit: int | None = None) -> QuicStreamFrame | None:
        return usual(size, limit) or (frames.pop() if frames else None)

    sender.get_frame = get_frame  # type: ignore[method-assign, assignment]
    sender.buffer_is_empty = False
    byte_stream._flush()


async def _sparse(world: World, limits: UdpLimits) -> tuple[int, int]:
    """Connections that are left of ten, each with a byte at the end of its window; bytes kept."""
    async with running(*pair(world), limits=limits) as (a, b):
        both = [await joined(a, b) for _ in range(10)]
        await trio.sleep(1)
        for near, _ in both:
            _far_byte(near, limits.window_bytes - 1)
        await trio.sleep(1)
        left = [far for _, far in both if not far.connection.ended]
        return len(left), sum(far.kept for far in left)


async def test_all_together_keep_only_so_much(world: World) -> None:
    left, kept = await _sparse(world, UdpLimits(total_bytes=5 * MIB))
    assert left == 2
    assert kept <= 5 * MIB


async def test_without_that_bound_ten_bytes_cost_twenty_mib(world: World) -> None:
    left, kept = await _sparse(world, UdpLimits())
    assert left == 10
    assert kept > 19 * MIB


async def test_what_was_read_does_not_count(world: World) -> None:
    """Ten that brought a MiB each, one after the other, are within five."""
    async with running(*pair(world), limits=UdpLimits(total_bytes=5 * MIB)) as (a, b):
        for _ in range(10):
            near, far = await joined(a, b)
            b.host.start_soon(b.nursery, read, far, MIB)
            with trio.fail_after(10):
                await a.host.run(write, near, bytes(MIB))
            await trio.sleep(1)
            assert not far.connection.ended


async def test_there_are_only_so_many(world: World) -> None:
    async with running(*pair(world), limits=UdpLimits(connections=3)) as (a, b):
        kept = [await joined(a, b) for _ in range(3)]
        with pytest.raises(OSError):
            await a.dial(b.place)
        with pytest.raises(OSError):
            await b.dial(a.place)
        for near, far in kept:
            near.close()
            far.close()
        await trio.sleep(3)
        await joined(a, b)


async def test_an_unauthentic_first_packet_leaves_nothing(world: World) -> None:
    async with running(*pair(world)) as (_, b):
        data = bytearray(first_packet())
        data[100] ^= 1
        b.port.connections.receive([(bytes(data), ("198.51.100.1", 1))], b.port.sockets[0])
        assert len(b.port.connections) == 0
        assert b.port.connections.gate.half_open.count == 0


async def test_a_mistake_with_a_first_packet_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise such packets would use up the half-open places."""
    async with running(*pair(world)) as (_, b):
        told, connections = list[Mishap](), b.port.connections
        connections._guard.report = told.append
        monkeypatch.setattr(module, "UdpConnection", partial(UdpConnection, nonsense=b""))
        connections.receive([(first_packet(), ("198.51.100.1", 1))], b.port.sockets[0])
        assert [mishap.error for mishap in told] == ["TypeError"]
        assert len(connections) == connections.gate.half_open.count == 0


async def test_a_timer_in_the_past_does_not_spin(world: World) -> None:
    """The heap wakes a connection at most every half millisecond."""
    async with running(*pair(world, link(10, 0.02))) as (a, b):
        near, far = await joined(a, b)
        turns = 0
        timeout = a.port.connections.timeout

        def count() -> None:
            nonlocal turns
            turns += 1
            timeout()

        a.port.connections.timeout = count  # type: ignore[method-assign]
        near.connection.get_timer = lambda: 0.0  # type: ignore[method-assign]
        await write(near, b"x")
        await read(far, 1)
        await trio.sleep(1)
        assert turns <= 2200


async def test_a_deadline_a_rounding_error_away_does_not_spin(world: World) -> None:
    """A turn before the deadline would request the same instant again in an endless loop."""
    async with running(*pair(world)) as (a, b):
        near, _ = await joined(a, b)
        connections = a.port.connections
        (entry,) = connections._entries
        entry.deadline = entry.due = a.world.now() + module._EARLY_S / 2
        connections._arm(entry)
        turns = 0
        expire = entry.connection.expire

        def count(now: float) -> None:
            nonlocal turns
            turns += 1
            assert turns < 100
            expire(now)

        entry.connection.expire = count  # type: ignore[method-assign]
        connections.timeout()
        assert near.connection.ended


async def test_an_acknowledged_packet_needs_no_wake_up(world: World) -> None:
    """The timer for its loss moves. Each wake-up is for an acknowledgement that is due."""
    async with running(*pair(world)) as (a, b):
        near, far = await joined(a, b)
        await trio.sleep(5)
        with pytest.MonkeyPatch.context() as patch:
            wakes = _wakes(patch)
            for _ in range(20):
                await write(near, b"ping")
                assert await read(far, 4) == b"ping"
                await write(far, b"pong")
                assert await read(near, 4) == b"pong"
                await trio.sleep(2)
        assert len(wakes) <= 21
        assert all(wakes)


def _wakes(patch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that gets, for each wake-up of a port, whether a timer was due."""
    found: list[bool] = []
    timeout, expire = module.Connections.timeout, UdpConnection.expire

    def counted(connections: module.Connections) -> None:
        found.append(False)
        timeout(connections)

    def expired(connection: UdpConnection, now: float) -> None:
        found[-1] = True
        expire(connection, now)

    patch.setattr(module.Connections, "timeout", counted)
    patch.setattr(UdpConnection, "expire", expired)
    return found


async def test_a_pipe_that_is_not_accepted_is_closed(world: World) -> None:
    async with running(*pair(world)) as (a, b):
        b.port.on_byte_stream(lambda byte_stream: byte_stream.close())
        near = await a.dial(b.place)
        await write(near, b"anybody?")
        with trio.fail_after(2):
            await near.wait_readable()
        with pytest.raises(ConnectionResetError):
            near.read_ready(1)


def test_the_port_s_number_is_in_the_error() -> None:
    assert str(PORT) in str(module.unreachable(("192.0.2.1", PORT)))

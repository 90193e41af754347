"""A circuit as a byte stream; and relays that lie."""

import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest
import trio
import trio.testing

from shoal.transport.errors import CallRefused
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity
from shoal.transport.lane.frame import Priority
from shoal.transport.link.calls import Call, Refusal, Reply
from shoal.transport.link.serving import IncomingStream
from shoal.transport.link.stream import Stream
from shoal.transport.relay import client
from shoal.transport.relay.circuit import CircuitByteStream
from shoal.transport.relay.client import RelayClient
from shoal.transport.relay.defaults import (
    AHEAD_BYTES,
    ARRIVING,
    ARRIVING_PER_RELAY,
    ARRIVING_PER_SOURCE,
    LOW_BYTES,
    TTL_S,
    UNASKED_PER_RELAY,
)
from tests.transport.fleet import Node, clock, make_node, running, until
from tests.transport.pipes import receive, write
from tests.transport.relay.circuits import Arrived, relayed

pytestmark = pytest.mark.trio
OTHER = Identity.from_seed(bytes([7]) * 32).peer
PEERS = [Identity.from_seed(bytes([100 + n]) * 32).peer for n in range(25)]


@pytest.fixture
def virtual_time() -> Iterator[trio.testing.MockClock]:
    yield clock()


@dataclass
class Liar:
    """A node with a client, and a relay that says what it is told to."""

    victim: Node
    relay: Node
    client: RelayClient
    preface: bytes = b""
    reservation: dict[str, Any] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    arrived: list[Arrived] = field(default_factory=list)

    async def accept(self, header: dict[str, Any]) -> Stream:
        """Open `relay.accept` to the victim."""
        link = self.relay.endpoint.link(self.victim.endpoint.peer)
        assert link is not None
        return await link.open_stream("relay.accept", header)

    async def dial(self) -> CircuitByteStream:
        return await self.client.dial(self.relay.address, OTHER, timeout=5)


@asynccontextmanager
async def lied_to(*, reserve: bool = True) -> AsyncIterator[Liar]:
    victim, relay = make_node(1), make_node(2)
    client = RelayClient(RealHost(), victim.endpoint)
    liar = Liar(victim, relay, client)

    def on_reserve(call: Call) -> Reply | Refusal:
        return Reply(liar.reservation)

    async def on_connect(incoming: IncomingStream) -> None:
        liar.streams.append(incoming.stream)
        await incoming.stream.send(liar.preface)
        await trio.sleep_forever()

    relay.endpoint.handle("relay.info", lambda call: Reply({"free": 1 << 63}))
    relay.endpoint.handle("relay.reserve", on_reserve)
    relay.endpoint.handle("relay.release", lambda call: Reply())
    relay.endpoint.handle_stream("relay.connect", on_connect)
    client.on_circuit(lambda *item: liar.arrived.append(Arrived(*item)))
    async with running(victim, relay) as nursery:
        await nursery.start(client.run)
        if reserve:
            client.offer([(relay.endpoint.peer, relay.address)])
            await until(client.addresses)
        yield liar


def preface(head: bytes, size: int | None = None) -> bytes:
    return struct.pack(">H", len(head) if size is None else size) + head


SEEN = preface(msgpack.packb({"seen": ["127.0.0.1", 4001, 0]}))


@pytest.mark.parametrize("cut", [0, 1, 2, 5, len(SEEN) - 1, len(SEEN)])
async def test_the_preface_may_come_in_pieces(cut: int) -> None:
    async with lied_to() as liar:
        liar.preface = SEEN[:cut]
        byte_stream = await liar.dial()
        await until(lambda: liar.streams)
        await trio.testing.wait_all_tasks_blocked(0.01)
        with pytest.raises(BlockingIOError):
            byte_stream.read_ready(100)
        await liar.streams[0].send(SEEN[cut:] + b"and more")
        assert await receive(byte_stream, 3) == b"and"
        assert byte_stream.seen == ("127.0.0.1", 4001, 0, "")
        byte_stream.close()
        byte_stream.close()


@pytest.mark.parametrize(
    "lie",
    [
        preface(b"", 513),
        preface(b"", 65535),
        preface(b"\xc1"),
        preface(msgpack.packb([1])),
        preface(msgpack.packb({1: 2})),
        preface(msgpack.packb({"seen": []}) + b"x"),
        preface(msgpack.packb(msgpack.ExtType(5, b"x"))),
    ],
)
async def test_a_bad_preface_ends_the_circuit(lie: bytes) -> None:
    async with lied_to() as liar:
        liar.preface = lie
        byte_stream = await liar.dial()
        with pytest.raises(OSError):
            await receive(byte_stream)
        assert byte_stream.failure == "bad-preface"


async def test_an_end_in_the_preface() -> None:
    async with lied_to() as liar:
        liar.preface = SEEN[:4]
        byte_stream = await liar.dial()
        await until(lambda: liar.streams)
        liar.streams[0].end()
        with pytest.raises(OSError):
            await receive(byte_stream)


@pytest.mark.parametrize(
    "seen",
    [None, "8.8.8.8", ["169.254.169.254", 80, 80], ["8.8.8.8", -1, 0], ["224.0.0.1", 1, 1], 7],
)
async def test_a_lie_about_where_the_peer_is_seen_is_not_passed_on(seen: object) -> None:
    async with lied_to() as liar:
        liar.preface = preface(msgpack.packb({"seen": seen})) + b"x"
        byte_stream = await liar.dial()
        assert await receive(byte_stream) == b"x"
        assert byte_stream.seen is None
        await liar.accept({"peer": OTHER, "seen": seen})
        await until(lambda: liar.arrived)
        assert liar.arrived[0].seen is None


async def test_only_a_relay_that_was_asked_brings_more_than_a_few_circuits() -> None:
    async with lied_to(reserve=False) as liar:
        await liar.victim.endpoint.dial(liar.relay.address, timeout=5)
        for number in range(UNASKED_PER_RELAY):
            other = str(Identity.from_seed(bytes([20 + number]) * 32).peer)
            await liar.accept({"peer": other, "seen": ["127.0.0.1", 1, 1]})
        await until(lambda: len(liar.arrived) == UNASKED_PER_RELAY)
        stream = await liar.accept({"peer": OTHER, "seen": ["127.0.0.1", 1, 1]})
        with pytest.raises(CallRefused) as caught:
            await stream.receive(1)
        assert caught.value.code == "no-reservation"
        assert len(liar.arrived) == UNASKED_PER_RELAY
        liar.client.offer([(liar.relay.endpoint.peer, liar.relay.address)])  # the twin
        await until(liar.client.addresses)
        await liar.accept({"peer": OTHER, "seen": ["127.0.0.1", 1, 1]})
        await until(lambda: len(liar.arrived) > UNASKED_PER_RELAY)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ({}, "bad-request"),
        ({"peer": 1}, "bad-request"),
        ({"peer": b"12D3"}, "bad-request"),
        ({"peer": "12D3"}, "bad-peer-id"),
        ({"peer": str(Identity.from_seed(bytes([1]) * 32).peer)}, "bad-request"),
    ],
)
async def test_odd_circuits_are_refused(header: dict[str, Any], code: str) -> None:
    async with lied_to() as liar:
        stream = await liar.accept(header)
        with pytest.raises(CallRefused) as caught:
            await stream.receive(1)
        assert caught.value.code == code and not liar.arrived
        link = liar.victim.endpoint.link(liar.relay.endpoint.peer)
        assert link is not None and link.alive


async def test_a_flood_of_circuits_is_bounded() -> None:
    async with lied_to() as liar:
        relays = [make_node(seed) for seed in range(20, 23)]
        streams: list[Stream] = []
        async with running(*relays):
            for node in relays:
                link = await node.endpoint.dial(liar.victim.address, timeout=5)
                liar.client.reservations[node.endpoint.peer] = liar.client.relays[0]
                for number in range(50):
                    header = {"peer": PEERS[number % 25]}
                    streams.append(await link.open_stream("relay.accept", header))
            await until(lambda: sum(each.failed == "busy" for each in streams) == 150 - ARRIVING)
            assert len(liar.arrived) == ARRIVING
            by_relay = Counter(each.relay for each in liar.arrived)
            assert max(by_relay.values()) == ARRIVING_PER_RELAY
            for each in liar.arrived:
                each.byte_stream.close()
            await trio.sleep(0.05)
            await liar.accept({"peer": OTHER})
            await until(lambda: len(liar.arrived) == ARRIVING + 1)


UNBOUNDED = 1 << 30


@pytest.mark.parametrize(
    ("name", "arrived"), [("ARRIVING", 3 * ARRIVING_PER_RELAY), ("ARRIVING_PER_RELAY", ARRIVING)]
)
async def test_each_bound_of_the_flood_is_needed(
    monkeypatch: pytest.MonkeyPatch, name: str, arrived: int
) -> None:
    """Without the one three relays together bring more, without the other one alone as much."""
    monkeypatch.setattr(client, "ARRIVALS", (1000, 1000.0))
    monkeypatch.setattr(client, name, UNBOUNDED)
    async with lied_to() as liar:
        relays = [make_node(seed) for seed in range(20, 23)]
        async with running(*relays):
            streams = []
            for node in relays:
                link = await node.endpoint.dial(liar.victim.address, timeout=5)
                liar.client.reservations[node.endpoint.peer] = liar.client.relays[0]
                for number in range(60):
                    header = {"peer": PEERS[number % 25]}
                    streams.append(await link.open_stream("relay.accept", header))
            await until(lambda: sum(each.failed == "busy" for each in streams) == 180 - arrived)
            assert len(liar.arrived) == arrived
            by_relay = Counter(each.relay for each in liar.arrived)
            assert (max(by_relay.values()) > ARRIVING_PER_RELAY) == (arrived == ARRIVING)


async def _circuits(count: int, sources: int, pause: float = 0.0) -> int:
    """Open `count` circuits in turn, each closed at once; return how many were accepted."""
    async with lied_to() as liar:
        for number in range(count):
            stream = await liar.accept({"peer": PEERS[number % sources]})
            before = len(liar.arrived)
            with trio.fail_after(5):
                while not stream.failed and len(liar.arrived) == before:  # noqa: ASYNC110
                    await trio.sleep(0.001)
            if pause:
                liar.arrived[-1].byte_stream.close()
            await trio.sleep(pause)
        return len(liar.arrived)


async def test_one_peer_gets_four_of_them() -> None:
    assert await _circuits(12, 1) == ARRIVING_PER_SOURCE
    assert await _circuits(12, 2) == 2 * ARRIVING_PER_SOURCE
    assert await _circuits(12, 12) == 12


async def test_else_it_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ARRIVING_PER_SOURCE", UNBOUNDED)
    assert await _circuits(12, 1) == 12


async def test_a_relay_brings_so_many_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await _circuits(60, 25, 0.001) < 40
    monkeypatch.setattr(client, "ARRIVALS", (1000, 1000.0))
    assert await _circuits(60, 25, 0.001) == 60


@pytest.mark.parametrize(
    ("ttl", "life"),
    [
        (3600, 3600),
        (1 << 63, TTL_S[1]),
        (float("inf"), TTL_S[1]),
        (-1, TTL_S[0]),
        (0, TTL_S[0]),
        (float("nan"), TTL_S[0]),
        (True, TTL_S[0]),
        ("3600", TTL_S[0]),
        (None, TTL_S[0]),
        ([1], TTL_S[0]),
    ],
)
async def test_a_promise_counts_within_reason(ttl: object, life: float) -> None:
    async with lied_to(reserve=False) as liar:
        liar.reservation = {"ttl": ttl, "seen": [1, 2]}
        liar.client.offer([(liar.relay.endpoint.peer, liar.relay.address)])
        await until(liar.client.addresses)
        (held,) = liar.client.relays
        assert held.expires - trio.current_time() == pytest.approx(life, abs=1)
        assert held.seen is None


async def test_an_end_takes_little_ahead_of_its_link(virtual_time: object) -> None:
    async with relayed() as trio_:
        near, _ = await trio_.dial()
        taken = 0
        with trio.move_on_after(2):
            while True:
                try:
                    size = near.write_ready(memoryview(bytes(1 << 20)))
                    assert 0 < size <= AHEAD_BYTES
                    taken += size
                except BlockingIOError:
                    await near.wait_writable()
        assert near.stream._core.queued <= AHEAD_BYTES
        assert not near.stream.is_sendable(LOW_BYTES)


async def test_what_waits_for_a_closed_pipe_ends() -> None:
    async with relayed() as trio_:
        near, far = await trio_.dial()
        ended = []

        async def wait(byte_stream: CircuitByteStream, *, reading: bool) -> None:
            with pytest.raises(trio.ClosedResourceError):
                if reading:
                    await byte_stream.wait_readable()
                while not reading:
                    await byte_stream.wait_writable()
                    with pytest.raises(BlockingIOError):
                        while True:
                            byte_stream.write_ready(memoryview(bytes(1 << 16)))
            ended.append(reading)

        await write(far, b"x")
        await receive(near)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: wait(near, reading=True))
            nursery.start_soon(lambda: wait(near, reading=False))
            await trio.sleep(0.3)
            near.close()
        assert sorted(ended) == [False, True]
        for attempt in (
            lambda: near.read_ready(1),
            lambda: near.write_ready(memoryview(b"x")),
            near.end,
        ):
            with pytest.raises(OSError):
                attempt()


async def test_what_a_pipe_says_of_itself() -> None:
    async with relayed() as trio_:
        near, far = await trio_.dial()
        assert near.medium == far.medium == "circuit"
        assert near.remote == far.remote == ("", 0)
        assert near.relay == far.relay == trio_.r.endpoint.peer
        assert near.stream.priority == far.stream.priority == Priority.ACTIVATION

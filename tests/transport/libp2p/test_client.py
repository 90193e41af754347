"""Foreign relays: reservations, circuits, our TLS through them; and relays that lie."""

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from shoal.transport.address import Address
from shoal.transport.bytestream import ByteStream, TcpByteStream
from shoal.transport.errors import DialFailed
from shoal.transport.host.real import RealHost
from shoal.transport.identity import PeerId
from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p import Libp2pLimits, Libp2pResponder
from shoal.transport.libp2p import circuit as wire
from shoal.transport.libp2p.circuit import CircuitLimit, HopMessage, StopMessage
from shoal.transport.libp2p.client import CircuitClient
from shoal.transport.libp2p.connection import Libp2pConnection, ReadingCharges
from shoal.transport.libp2p.muxstream import MuxStream
from shoal.transport.libp2p.session import Libp2pSession
from shoal.transport.libp2p.varint import prefixed, uvarint
from shoal.transport.rates import MemoryBudget
from tests.transport.fleet import clock, until
from tests.transport.libp2p.pipes import OURS, InlineHost
from tests.transport.libp2p.secured import A, B, exchange, secured

pytestmark = pytest.mark.trio

LOOPBACK = "127.0.0.1"


@pytest.fixture
def virtual_time() -> Iterator[trio.testing.MockClock]:
    yield clock()


async def test_a_py_libp2p_relay_carries_our_tls() -> None:
    from libp2p import new_host
    from libp2p.relay.circuit_v2.protocol import CircuitV2Protocol
    from libp2p.tools.anyio_service import background_trio_service
    from multiaddr import Multiaddr

    relay = new_host()
    async with relay.run(listen_addrs=[Multiaddr(f"/ip4/{LOOPBACK}/tcp/0")]):
        service = CircuitV2Protocol(relay, allow_hop=True)
        async with background_trio_service(service):
            await service.event_started.wait()
            port = int(relay.get_addrs()[0].value_for_protocol("tcp"))
            address = Address(LOOPBACK, port, PeerId(str(relay.get_id())))
            async with clients() as (near, far):
                with trio.fail_after(20):
                    ends: list[ByteStream] = []
                    far.on_circuit(lambda byte_stream, source, relay: ends.append(byte_stream))
                    await far.reserve(address)
                    byte_stream = await near.dial(far.addresses()[0])
                    paths = await secured(byte_stream, ends[0], RealHost())
                    await exchange(*paths, 500_000)
                    for path in paths:
                        path.close()


@asynccontextmanager
async def clients() -> AsyncIterator[tuple[CircuitClient, CircuitClient]]:
    """Of A and B, running; they answer identify, which py-libp2p asks for."""
    made = []
    async with trio.open_nursery() as nursery:
        for identity in (A, B):
            base = Libp2pResponder(InlineHost(), identity, addresses=list)
            made.append(CircuitClient(InlineHost(), identity, protocols=base.protocols))
            await nursery.start(made[-1].run)
        yield made[0], made[1]
        nursery.cancel_scope.cancel()


# Through relays that do what a test says.


class Relay:
    """Answers HOP as `answer` says; `None` is silence. Opens STOP streams."""

    def __init__(self) -> None:
        self.answer: Callable[[HopMessage], bytes | None] = lambda message: GRANTED
        self.offers_hop = True
        self.asked: list[tuple[float, int]] = []
        self.connections: list[Libp2pConnection] = []
        self.address = Address(LOOPBACK, 1, OURS.peer)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listener = await RealHost().listen(LOOPBACK, 0)
        self.address = Address(LOOPBACK, listener.socket.getsockname()[1], OURS.peer)
        task_status.started()
        await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, stream: trio.SocketStream) -> None:
        limits = Libp2pLimits(idle_s=math.inf)
        connection = Libp2pConnection(
            TcpByteStream(stream),
            Libp2pSession(OURS, dialled=False, entropy=RealHost().entropy, limits=limits),
            host=RealHost(),
            protocols=lambda: {wire.HOP: self._hop} if self.offers_hop else {},
            charges=ReadingCharges(MemoryBudget(1 << 30)),
        )
        self.connections.append(connection)
        await connection.run()

    async def _hop(self, connection: Libp2pConnection, stream: MuxStream) -> None:
        message = HopMessage.decode(await stream.receive_message(4096))
        self.asked.append((trio.current_time(), message.kind))
        answer = self.answer(message)
        if answer is None:
            await trio.sleep_forever()
        else:
            await stream.send(answer)
        if message.kind == wire.CONNECT:
            await stream.wait_closed()

    async def stop(self, message: bytes) -> int | None:
        """The status that a STOP message gets."""
        stream = await self.connections[-1].open(wire.STOP)
        await stream.send(message)
        return StopMessage.decode(await stream.receive_message(4096)).status


GRANTED = wire.hop_status(wire.OK, reservation=wire.reservation(1 << 63, [], b""))


@asynccontextmanager
async def meeting() -> AsyncIterator[tuple[Relay, CircuitClient]]:
    relay, client = Relay(), CircuitClient(InlineHost(), A)
    async with trio.open_nursery() as nursery:
        await nursery.start(relay.run)
        await nursery.start(client.run)
        yield relay, client
        nursery.cancel_scope.cancel()


async def code_of(attempt: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(DialFailed) as caught:
        await attempt(*args)
    return caught.value.code


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (wire.hop_status(wire.RESERVATION_REFUSED), "reservation-refused"),
        (wire.hop_status(wire.RESOURCE_LIMIT_EXCEEDED), "relay-full"),
        (wire.hop_status(wire.PERMISSION_DENIED), "relay-denied"),
        (wire.hop_status(wire.CONNECTION_FAILED), "peer-unreachable"),
        (wire.hop_status(wire.NO_RESERVATION), "no-reservation"),
        (prefixed(b"\x08\x02\x28" + uvarint(1 << 60)), "bad-relay"),
        (wire.hop_request(wire.RESERVE), "bad-relay"),
        (prefixed(b"\xff\xff\xff"), "bad-relay"),
        (b"\xff\xff\xff\xff\x7f", "bad-relay"),
        (b"\xff" * 20, "bad-relay"),
        (b"\x00", "bad-relay"),
        (None, "timeout"),
    ],
)
async def test_what_a_relay_refuses_has_a_code(
    virtual_time: Any, answer: bytes | None, code: str
) -> None:
    async with meeting() as (relay, client):
        relay.answer = lambda message: answer
        assert await code_of(client.dial, relay.address.through(B.peer)) == code
        assert await code_of(client.reserve, relay.address) == code
        assert not client.addresses()


async def test_dials_that_fail_have_codes(virtual_time: Any) -> None:
    async with meeting() as (relay, client):
        wrong = Address(LOOPBACK, relay.address.port, B.peer)
        assert await code_of(client.reserve, wrong) == "wrong-peer"
        assert await code_of(client.reserve, Address(LOOPBACK, 1, OURS.peer)) == "refused"
        assert await code_of(client.reserve, Address(LOOPBACK, 1)) == "bad-address"
        assert await code_of(client.dial, relay.address) == "bad-address"
        relay.offers_hop = False
        assert await code_of(client.reserve, relay.address) == "relay-denied"
    assert await code_of(CircuitClient(InlineHost(), A).reserve, relay.address) == "not-running"


async def test_a_listener_that_says_nothing_times_out(virtual_time: Any) -> None:
    listener = await RealHost().listen(LOOPBACK, 0)
    client = CircuitClient(InlineHost(), A)
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        mute = Address(LOOPBACK, listener.socket.getsockname()[1], OURS.peer)
        began = trio.current_time()
        assert await code_of(client.reserve, mute) in ("timeout", "bad-relay")
        assert trio.current_time() - began <= 15.1
        nursery.cancel_scope.cancel()
    listener.socket.close()


async def test_a_reservation_is_renewed_at_half_its_life_and_left_when_refused(
    virtual_time: Any,
) -> None:
    async with meeting() as (relay, client):
        brief = wire.reservation(0, [], b"")  # long ago: a minute is believed
        relay.answer = lambda message: wire.hop_status(wire.OK, reservation=brief)
        changes: list[int] = []
        client.on_change(lambda: changes.append(len(client.addresses())))
        began = trio.current_time()
        await client.reserve(relay.address)
        assert client.addresses() == [relay.address.through(A.peer)]
        await trio.sleep(100)
        assert [round(at - began) for at, _ in relay.asked] == [0, 30, 60, 90]
        relay.answer = lambda message: wire.hop_status(wire.RESERVATION_REFUSED)
        await trio.sleep(21)
        assert not client.addresses()
        assert changes == [1, 0]


async def test_how_long_a_reservation_lasts_is_believed_within_bounds(virtual_time: Any) -> None:
    async with meeting() as (relay, client):
        for expires, life in ((0, 60), (1 << 63, 7200), ((1 << 64) - 1, 7200)):
            granted = wire.reservation(expires, [], b"")
            relay.answer = lambda message, granted=granted: wire.hop_status(  # type: ignore[misc]
                wire.OK, reservation=granted
            )
            await client.reserve(relay.address)
            (held,) = client._relays.values()
            assert await client._ask_reservation(held.connection) == life
            client.release(OURS.peer)
            await until(lambda: not client.addresses(), 5)


async def test_a_relay_that_is_lost_is_told(virtual_time: Any) -> None:
    async with meeting() as (relay, client):
        changes: list[int] = []
        client.on_change(lambda: changes.append(len(client.addresses())))
        await client.reserve(relay.address)
        relay.connections[0].close("closed")
        await until(lambda: changes == [1, 0], 5)
        await client.reserve(relay.address)  # it may be asked again
        client.release(OURS.peer)
        await until(lambda: changes == [1, 0, 1, 0], 5)


def come(peer: str) -> bytes:
    return wire.stop_connect(peer, CircuitLimit(120, 1 << 17))


async def test_circuits_that_we_did_not_ask_for_are_refused(virtual_time: Any) -> None:
    async with meeting() as (relay, client):
        came: list[PeerId] = []
        client.on_circuit(lambda byte_stream, source, relay: came.append(source))
        await code_of(client.dial, Address(LOOPBACK, 1, OURS.peer).through(B.peer))
        byte_stream = await client.dial(relay.address.through(B.peer))
        assert await relay.stop(come(B.peer)) == wire.PERMISSION_DENIED  # no reservation
        await client.reserve(relay.address)
        assert await relay.stop(come(B.peer)) == wire.OK
        assert came == [B.peer]
        byte_stream.close()


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (prefixed(b"\x08"), wire.MALFORMED_MESSAGE),
        (prefixed(b"\x08\x00\x12\x43\x0a\x41" + b"x" * 65), wire.MALFORMED_MESSAGE),
        (prefixed(b"\x08\x00"), wire.UNEXPECTED_MESSAGE),
        (wire.stop_status(wire.OK), wire.UNEXPECTED_MESSAGE),
        (prefixed(b"\x08\x00\x12\x04\x0a\x02ab"), wire.PERMISSION_DENIED),
    ],
)
async def test_stop_messages_that_make_no_sense(
    virtual_time: Any, message: bytes, status: int
) -> None:
    async with meeting() as (relay, client):
        client.on_circuit(lambda byte_stream, source, relay: byte_stream.close())
        await client.reserve(relay.address)
        assert await relay.stop(message) == status


async def test_a_flood_of_circuits_gives_eight(virtual_time: Any) -> None:
    async with meeting() as (relay, client):
        pipes: list[MuxStream] = []
        client.on_circuit(lambda byte_stream, source, relay: pipes.append(byte_stream))
        await client.reserve(relay.address)
        found = [await relay.stop(come(B.peer)) for _ in range(20)]
        assert found == [wire.OK] * 8 + [wire.RESOURCE_LIMIT_EXCEEDED] * 12
        for byte_stream in pipes:
            byte_stream.close()
        await trio.sleep(0.1)
        assert await relay.stop(come(B.peer)) == wire.OK


async def test_a_stop_message_may_not_be_long(virtual_time: Any) -> None:
    async with meeting() as (relay, client):
        await client.reserve(relay.address)
        with pytest.raises(Fault):
            await relay.stop(b"\xff\xff\xff\xff\x7f")


async def test_the_connection_lasts_as_long_as_a_circuit_over_it(virtual_time: Any) -> None:
    async with meeting() as (relay, client):
        byte_stream = await client.dial(relay.address.through(B.peer))
        await trio.sleep(600)
        assert relay.connections[0].alive
        again = await client.dial(relay.address.through(B.peer))
        assert len(relay.connections) == 1  # the same one
        byte_stream.close()
        again.close()
        await trio.sleep(120)
        assert not relay.connections[0].alive


async def test_two_dials_at_once_share_a_connection(virtual_time: Any) -> None:
    async with meeting() as (relay, client):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(client.dial, relay.address.through(B.peer))
        assert len(relay.connections) == 1


async def test_cancelling_leaves_nothing(virtual_time: Any) -> None:
    """A dial that is cancelled at any moment, and the client's end."""
    for delay in (0.0, 0.001, 0.003, 0.01, 0.03, 1.0):
        async with meeting() as (relay, client):
            relay.answer = lambda message: None
            with trio.move_on_after(delay):
                await client.dial(relay.address.through(B.peer))
            relay.answer = lambda message: GRANTED
            with trio.fail_after(5):
                (await client.dial(relay.address.through(B.peer))).close()

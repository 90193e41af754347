"""Circuit relay v2 for libp2p peers: what is granted, what passes, and where it is cut."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from shoal.transport.address import Address
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity
from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p import Libp2pLimits, Libp2pResponder
from shoal.transport.libp2p import circuit as wire
from shoal.transport.libp2p.circuit import HopMessage, StopMessage
from shoal.transport.libp2p.connection import Libp2pConnection, ReadingCharges
from shoal.transport.libp2p.muxstream import MuxStream
from shoal.transport.libp2p.session import Libp2pSession
from shoal.transport.libp2p.varint import prefixed
from shoal.transport.rates import MemoryBudget
from shoal.transport.relay.book import RelayBook
from shoal.transport.relay.defaults import RelayLimits
from tests.transport.libp2p.pipes import OURS, byte_stream_pair, connected, raw_peer, responder

pytestmark = pytest.mark.trio

SOURCE, TARGET = Identity.from_seed(b"s" * 32), Identity.from_seed(b"d" * 32)
LIMIT = 128 << 10
PLENTY = Libp2pLimits(
    peer_rate=1 << 40, rate=1 << 40, connections=5000, connections_per_subnet=5000
)


def relay(limits: Libp2pLimits = PLENTY, **lent: Any) -> tuple[Libp2pResponder, RelayBook]:
    book = RelayBook(RelayLimits(volunteer=True, **lent), trio.current_time())
    listening = [Address("192.0.2.7", 4001, OURS.peer)]
    return responder(limits, relay=book, addresses=lambda: listening), book


class Target:
    """Answers STOP and keeps the streams."""

    def __init__(self, status: int | None = wire.OK) -> None:
        self.status = status
        self.came: list[str | None] = []
        self.streams: list[MuxStream] = []

    def protocols(self) -> dict[str, Any]:
        return {wire.STOP: self.serve}

    async def serve(self, connection: Libp2pConnection, stream: MuxStream) -> None:
        message = StopMessage.decode(await stream.receive_message(4096))
        self.came.append(message.peer)
        if self.status is not None:
            await stream.send(wire.stop_status(self.status))
            self.streams.append(stream)
        await stream.wait_closed()


async def ask(connection: Libp2pConnection, request: bytes) -> tuple[MuxStream, HopMessage]:
    stream = await connection.open(wire.HOP)
    await stream.send(request)
    return stream, HopMessage.decode(await stream.receive_message(4096))


async def reserve(connection: Libp2pConnection) -> int | None:
    stream, answer = await ask(connection, wire.hop_request(wire.RESERVE))
    stream.close()
    return answer.status


@asynccontextmanager
async def circuit(
    ours: Libp2pResponder, target: Target
) -> AsyncIterator[tuple[MuxStream, MuxStream]]:
    """Both ends of a circuit through `ours`."""
    async with (
        connected(ours, TARGET, ip="198.51.100.1", protocols=target.protocols) as far,
        connected(ours, SOURCE) as near,
    ):
        assert await reserve(far) == wire.OK
        stream, answer = await ask(near, wire.hop_request(wire.CONNECT, TARGET.peer))
        assert answer.status == wire.OK
        assert target.came == [SOURCE.peer]
        yield stream, target.streams[0]


async def everything(stream: MuxStream) -> bytes:
    """All that comes, up to the end or the reset."""
    data = b""
    try:
        while piece := await stream.receive(1 << 16):
            data += piece
    except Fault:
        return data + b"RESET"
    return data


async def test_bytes_pass_both_ways_and_ends_too(autojump_clock: Any) -> None:
    ours, book = relay()
    async with circuit(ours, Target()) as (near, far):
        await near.send(b"hello")
        assert await far.receive_exactly(5) == b"hello"
        await far.send(b"back" * 5000)
        assert await near.receive_exactly(20_000) == b"back" * 5000
        near.end()
        assert await far.receive(10) == b""
        await far.send(b"still")
        assert await near.receive_exactly(5) == b"still"
        far.end()
        assert await near.receive(10) == b""
        await trio.sleep(1)
        assert book.figures().circuits == 0
        assert book.figures().relayed == 20_010


async def test_a_reservation_says_until_when_where_and_is_signed(autojump_clock: Any) -> None:
    from libp2p.peer.envelope import consume_envelope, make_unsigned, unmarshal_envelope
    from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage as Theirs
    from libp2p.relay.circuit_v2.pb.circuit_pb2 import Voucher
    from multiaddr import Multiaddr

    assert consume_envelope
    ours, _ = relay()
    async with connected(ours, TARGET) as peer:
        stream = await peer.open(wire.HOP)
        await stream.send(wire.hop_request(wire.RESERVE))
        answer = Theirs.FromString(await stream.receive_message(4096))
        assert (answer.type, answer.status) == (Theirs.STATUS, 100)
        assert (answer.limit.duration, answer.limit.data) == (120, LIMIT)
        listed = [str(Multiaddr(address)) for address in answer.reservation.addrs]
        assert listed == [f"/ip4/192.0.2.7/tcp/4001/p2p/{OURS.peer}"]
        envelope = unmarshal_envelope(answer.reservation.voucher)
        unsigned = make_unsigned("libp2p-relay-rsvp", b"\x03\x02", envelope.raw_payload)
        assert envelope.public_key.verify(unsigned, envelope.signature)
        assert envelope.public_key.to_bytes() == OURS.public_key
        voucher = Voucher.FromString(envelope.raw_payload)
        assert voucher.expiration == answer.reservation.expire > 1_700_000_000


async def test_it_is_off_unless_the_owner_volunteers(autojump_clock: Any) -> None:
    for volunteer in (False, True):
        book = RelayBook(RelayLimits(volunteer=volunteer))
        async with connected(responder(PLENTY, relay=book)) as peer:
            if volunteer:
                assert await reserve(peer) == wire.OK
            else:
                with pytest.raises(Fault, match="no-protocol"):
                    await peer.open(wire.HOP)


async def test_a_relay_of_relays_is_refused(autojump_clock: Any) -> None:
    for relayed, granted in ((True, wire.PERMISSION_DENIED), (False, wire.OK)):
        ours, _ = relay()
        async with connected(ours, TARGET, relayed=relayed) as peer:
            assert await reserve(peer) == granted
        async with connected(ours, SOURCE, relayed=relayed) as peer:
            _, answer = await ask(peer, wire.hop_request(wire.CONNECT, TARGET.peer))
            assert answer.status == (wire.PERMISSION_DENIED if relayed else wire.NO_RESERVATION)


async def grant_of(ours: Libp2pResponder, count: int, ip: Callable[[int], str]) -> int:
    """How many of `count` peers get a reservation."""
    granted = 0
    async with AsyncExitStack() as stack:
        for number in range(count):
            identity = Identity.from_seed(number.to_bytes(32))
            peer = await stack.enter_async_context(connected(ours, identity, ip=ip(number)))
            granted += await reserve(peer) == wire.OK
    return granted


@pytest.mark.long
async def test_a_thousand_reservations_of_one_network_give_eight(autojump_clock: Any) -> None:
    ours, _ = relay()
    assert await grant_of(ours, 1000, lambda number: f"192.0.2.{number % 250}") == 8


async def test_reservations_are_bounded_by_network_and_in_all(autojump_clock: Any) -> None:
    ours, _ = relay(reservations=16)
    assert await grant_of(ours, 30, lambda number: f"192.0.2.{number}") == 8
    assert await grant_of(ours, 30, lambda number: f"{60 + number}.0.2.1") == 16


@pytest.mark.parametrize("size", [LIMIT - 1, LIMIT, LIMIT + 1, 4 * LIMIT])
async def test_a_circuit_is_cut_at_its_limit_of_bytes(autojump_clock: Any, size: int) -> None:
    ours, book = relay()
    async with circuit(ours, Target()) as (near, far):
        got = []

        async def listen() -> None:
            got.append(await everything(far))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            try:
                await near.send(bytes(size))
                near.end()
            except Fault:
                pass
        passed = min(size, LIMIT)
        assert len(got[0].removesuffix(b"RESET")) <= passed
        assert got[0].endswith(b"RESET") == (size > LIMIT)
        if size <= LIMIT:
            assert got[0] == bytes(size)
        else:
            assert await everything(near) == b"RESET"
        assert book.figures().relayed == passed


async def test_a_circuit_is_cut_at_its_limit_of_time(autojump_clock: Any) -> None:
    for seconds in (120.0, 300.0):
        ours, book = relay(stranger_s=seconds)
        async with circuit(ours, Target()) as (near, far):
            began = trio.current_time()
            with trio.fail_after(2 * seconds):
                assert await everything(near) == b"RESET"
                assert await everything(far) == b"RESET"
            assert trio.current_time() - began == pytest.approx(seconds, abs=0.1)
            assert book.figures().circuits == 0


async def test_a_reader_that_stands_still_holds_the_sender(autojump_clock: Any) -> None:
    ours, book = relay(replace(PLENTY, circuit_bytes=8 << 20), rate=100 << 20, stranger_s=1e6)
    async with circuit(ours, Target()) as (near, far):
        sent = 0
        with trio.move_on_after(20):
            while True:
                await near.send(bytes(10_000))
                sent += 10_000
        assert sent < 1_500_000
        assert book.figures().relayed < 700_000
        data = 0
        with trio.move_on_after(20):
            while data < sent:
                data += len(await far.receive(1 << 16))
        assert data >= sent


@pytest.mark.parametrize(
    ("status", "seconds"),
    [(wire.PERMISSION_DENIED, 0), (wire.RESOURCE_LIMIT_EXCEEDED, 0), (None, 15)],
)
async def test_a_target_that_does_not_take_it_is_unreachable(
    autojump_clock: Any, status: int | None, seconds: float
) -> None:
    ours, book = relay()
    async with (
        connected(ours, TARGET, protocols=Target(status).protocols) as far,
        connected(ours, SOURCE) as near,
    ):
        await reserve(far)
        began = trio.current_time()
        _, answer = await ask(near, wire.hop_request(wire.CONNECT, TARGET.peer))
        assert answer.status == wire.CONNECTION_FAILED
        assert trio.current_time() - began == pytest.approx(seconds, abs=0.1)
        assert book.figures().circuits == 0


async def test_no_peer_is_reached_without_a_reservation(autojump_clock: Any) -> None:
    ours, book = relay()
    async with connected(ours, SOURCE) as near:
        for peer, status in ((TARGET.peer, wire.NO_RESERVATION), (SOURCE.peer, 202)):
            _, answer = await ask(near, wire.hop_request(wire.CONNECT, peer))
            assert answer.status == (status if peer != SOURCE.peer else wire.PERMISSION_DENIED)
        async with connected(ours, TARGET, protocols=Target().protocols) as far:
            await reserve(far)
            assert book.figures().reservations == 1
        await trio.sleep(1)
        assert book.figures().reservations == 0  # it went with the connection
        _, answer = await ask(near, wire.hop_request(wire.CONNECT, TARGET.peer))
        assert answer.status == wire.NO_RESERVATION


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (prefixed(b""), wire.MALFORMED_MESSAGE),
        (prefixed(b"\x08"), wire.MALFORMED_MESSAGE),
        (prefixed(b"\x08\x07"), wire.MALFORMED_MESSAGE),
        (wire.hop_request(wire.CONNECT), wire.MALFORMED_MESSAGE),
        (prefixed(b"\x08\x01\x12\x42\x0a\x40" + b"x" * 64), wire.NO_RESERVATION),
        (prefixed(b"\x08\x01\x12\x43\x0a\x41" + b"x" * 65), wire.MALFORMED_MESSAGE),
        (wire.hop_status(wire.OK), wire.UNEXPECTED_MESSAGE),
    ],
)
async def test_messages_that_make_no_sense_are_told_so(
    autojump_clock: Any, request_: bytes, status: int
) -> None:
    ours, _ = relay()
    async with connected(ours, SOURCE) as near:
        _, answer = await ask(near, request_)
        assert answer.status == status


async def test_a_message_may_not_be_long(autojump_clock: Any) -> None:
    ours, _ = relay()
    async with connected(ours, SOURCE) as near:
        with pytest.raises(Fault, match="stream-lost"):
            await ask(near, b"\xff\xff\xff\xff\x7f")
        assert await reserve(near) == wire.OK


async def test_a_reservation_keeps_the_connection_while_the_peer_answers(
    autojump_clock: Any,
) -> None:
    ours, book = relay()
    async with connected(ours, TARGET) as peer:
        await reserve(peer)
        await trio.sleep(1800)
        assert peer.alive and book.figures().reservations == 1
        await trio.sleep(2000)
        assert not peer.alive and book.figures().reservations == 0


async def test_a_peer_that_has_fallen_silent_loses_its_reservation(autojump_clock: Any) -> None:
    ours, book = relay()
    async with raw_peer(ours) as peer:
        await peer.open(1, wire.HOP, wire.hop_request(wire.RESERVE))
        await trio.sleep(20)
        assert book.figures().reservations == 1
        await peer.ended.wait()
        assert peer.why == ["silent"] and book.figures().reservations == 0


async def test_circuits_of_a_stranger_are_counted(autojump_clock: Any) -> None:
    ours, book = relay(stranger_circuits_per_subnet=3)
    target = Target()
    async with (
        connected(ours, TARGET, ip="198.51.100.1", protocols=target.protocols) as far,
        connected(ours, SOURCE) as near,
    ):
        await reserve(far)
        found = []
        for _ in range(5):
            _, answer = await ask(near, wire.hop_request(wire.CONNECT, TARGET.peer))
            found.append(answer.status)
        assert found == [wire.OK] * 3 + [wire.RESOURCE_LIMIT_EXCEEDED] * 2
        assert book.figures().circuits == 3
    await trio.sleep(1)
    assert book.figures().circuits == 0


async def test_nothing_of_it_outlives_the_connection(autojump_clock: Any) -> None:
    ours, book = relay()
    async with trio.open_nursery() as nursery:
        near, far = byte_stream_pair()
        nursery.start_soon(lambda: ours.serve_byte_stream(far, b""))
        await trio.sleep(1)
        near.close()
    assert book.figures().reservations == 0


async def test_libp2p_runs_through_a_circuit_and_no_further(autojump_clock: Any) -> None:
    """A libp2p program reaches us through a relay: it is answered, and may not use us as one."""
    ours, _ = relay()
    behind, _ = relay()  # of the target, which speaks libp2p to every peer
    limits = Libp2pLimits()
    async with circuit(ours, Target()) as (near, far), trio.open_nursery() as nursery:
        session = Libp2pSession(SOURCE, dialled=True, entropy=RealHost().entropy, limits=limits)
        connection = Libp2pConnection(
            near,
            session,
            host=RealHost(),
            protocols=dict,
            charges=ReadingCharges(MemoryBudget(1 << 30)),
        )
        up = trio.Event()
        nursery.start_soon(lambda: behind.serve_byte_stream(far, b"", relayed=True))
        nursery.start_soon(lambda: connection.run(up=up.set))
        with trio.fail_after(10):
            await up.wait()
        ping = await connection.open("/ipfs/ping/1.0.0")
        await ping.send(bytes(32))
        assert await ping.receive_exactly(32) == bytes(32)
        assert await reserve(connection) == wire.PERMISSION_DENIED
        nursery.cancel_scope.cancel()

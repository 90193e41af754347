"""Two punchers over real sockets of this machine."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgpack
import pytest
import trio
import trio.testing

from shoal.transport.bytestream import ByteStream, PathKind, TcpByteStream
from shoal.transport.host.datagrams import Datagrams, Place
from shoal.transport.host.real import RealHost
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Call, Refusal, Reply
from shoal.transport.nat.punch.budget import PunchBudget
from shoal.transport.nat.punch.candidates import CandidateTransport, SeenAddresses, gather
from shoal.transport.nat.punch.defaults import PunchLimits
from shoal.transport.nat.punch.needs import OwnNat, Tools
from shoal.transport.nat.punch.puncher import METHOD, Puncher
from shoal.transport.udp.port import UdpPort
from shoal.transport.udp.quic import QuicByteStream
from tests.transport.fleet import LOOPBACK, clock, until
from tests.transport.nat.punch.street import NATS, FakeEndpoint

pytestmark = pytest.mark.trio


@pytest.fixture
def loopback_clock() -> trio.testing.MockClock:
    return clock()


class Node:
    """A node on loopback. `transport` selects the candidates that it names."""

    def __init__(self, name: str, transport: CandidateTransport) -> None:
        self.endpoint = FakeEndpoint(name)
        self.transport = transport
        self.host = RealHost()
        self.udp = UdpPort(self.host)
        self.got: list[tuple[ByteStream, bool]] = []
        self.words: list[bytes] = []
        self.other: Node
        limits, endpoint = PunchLimits(), self.endpoint
        tools = Tools(
            self.host,
            self.udp,
            lambda: endpoint.port,
            PunchBudget(limits),
            limits,
            self.on_byte_stream,
            bind=LOOPBACK,
        )
        self.puncher = Puncher(endpoint, tools, self)
        self.udp.on_stun(self.on_stun)
        self.udp.on_byte_stream(self.on_quic)
        self.nursery: trio.Nursery

    @property
    def peer(self) -> PeerId:
        """The peer, as for a link to the other node."""
        return self.other.endpoint.peer

    async def call(
        self, method: str, header: Mapping[str, Any] | None = None, payload: bytes = b"", *,
        timeout: float,
    ) -> Reply:  # fmt: skip
        sent = msgpack.unpackb(msgpack.packb(header))
        answer = await self.other.puncher.offered(Call(self.endpoint.peer, sent, b""))
        assert method == METHOD and isinstance(answer, Reply), answer
        return answer

    def own(self, peer: PeerId) -> OwnNat:
        port = self.udp.port if self.transport is CandidateTransport.UDP else self.endpoint.port
        place = LOOPBACK, port
        return OwnNat(NATS["public"], gather(self.transport, port, [LOOPBACK], observed=[place]))

    def seen(self, peer: PeerId) -> SeenAddresses:
        return SeenAddresses([LOOPBACK])

    def rtt(self, peer: PeerId) -> float:
        return 0.0

    async def start(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        await nursery.start(self.udp.run, [LOOPBACK], 0)
        listener = await self.host.listen(LOOPBACK, 0)
        self.endpoint.port = listener.socket.getsockname()[1]
        nursery.start_soon(self.accept, listener)
        await nursery.start(self.puncher.run)

    async def accept(self, listener: trio.SocketListener) -> None:
        async with listener:
            while True:
                byte_stream = TcpByteStream(await listener.accept())
                self.take(byte_stream, await self.puncher.is_client(byte_stream))

    def on_stun(self, data: bytes, source: Place, socket: Datagrams) -> None:
        self.puncher.on_stun(data, source, socket)

    def on_quic(self, byte_stream: QuicByteStream) -> None:
        assert self.puncher.arrived(byte_stream) == self.peer
        self.take(byte_stream, False)

    def on_byte_stream(
        self, byte_stream: ByteStream, peer: PeerId, client: bool, path_kind: PathKind
    ) -> None:
        assert (peer, path_kind) == (self.peer, PathKind.LAN)
        self.take(byte_stream, client)

    def take(self, byte_stream: ByteStream, client: bool) -> None:
        self.got.append((byte_stream, client))
        self.nursery.start_soon(self.talk, byte_stream, client)

    async def talk(self, byte_stream: ByteStream, client: bool) -> None:
        with suppress(OSError, trio.ClosedResourceError):
            if client:
                byte_stream.write_ready(memoryview(b"ping"))
            while True:
                try:
                    self.words.append(byte_stream.read_ready(100))
                    break
                except BlockingIOError:
                    await byte_stream.wait_readable()
            if not client:
                byte_stream.write_ready(memoryview(b"pong"))


@pytest.mark.parametrize("transport", list(CandidateTransport))
async def test_two_punchers_meet(
    transport: CandidateTransport, loopback_clock: trio.testing.MockClock
) -> None:
    a, b = Node("anna", transport), Node("bert", transport)
    a.other, b.other = b, a
    async with trio.open_nursery() as nursery:
        await a.start(nursery)
        await b.start(nursery)
        outcome = await a.puncher.punch(a)
        assert outcome.worked and outcome.rounds == 1
        await until(lambda: b"pong" in a.words and b"ping" in b.words)
        assert {client for _, client in a.got} == {True}
        assert {client for _, client in b.got} == {False}
        for byte_stream, _ in a.got + b.got:
            byte_stream.close()
        nursery.cancel_scope.cancel()


async def test_a_malformed_offer_over_a_real_link_is_refused(
    loopback_clock: trio.testing.MockClock,
) -> None:
    node = Node("anna", CandidateTransport.UDP)
    answer = await node.puncher.offered(Call(PeerId("bert"), {"a": 1}, b""))
    assert isinstance(answer, Refusal) and answer.code == "bad-offer"

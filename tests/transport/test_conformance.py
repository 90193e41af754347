"""Conformance of the wire format, checked by other programs.

A py-libp2p host with default configuration (which talks to go and rust peers) uses our libp2p
services; we share its keys and message classes, but no connection or stream. And a lane of a
hundred lines, written from docs/spec/lane.md alone, links to an endpoint.
"""

import datetime
import logging
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from OpenSSL import SSL

from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity
from shoal.transport.libp2p.responder import answer_libp2p
from shoal.transport.link.calls import Call, Reply
from shoal.transport.link.serving import IncomingStream
from shoal.transport.relay.book import RelayBook
from shoal.transport.relay.defaults import RelayLimits
from tests.transport.fleet import clock

pytestmark = pytest.mark.trio

OURS = Identity.from_seed(b"o" * 32)
LOOPBACK = "127.0.0.1"


def echo(call: Call) -> Reply:
    return Reply({"n": call.header.get("n"), "from": call.peer}, call.payload)


@asynccontextmanager
async def endpoint() -> AsyncIterator[Endpoint]:
    """Run one of our endpoints, which relays for strangers and lets them call `echo`."""
    host = RealHost()
    ours = Endpoint(host, OURS, admission=OpenSwarm())
    ours.handle("echo", echo)
    book = RelayBook(RelayLimits(volunteer=True), trio.current_time())
    answer_libp2p(host, ours, book, published=["echo"])
    async with trio.open_nursery() as nursery:
        await nursery.start(ours.run, LOOPBACK, 0)
        yield ours
        nursery.cancel_scope.cancel()


# libp2p.


@pytest.fixture
def quiet() -> Iterator[None]:
    """Silence py-libp2p, which logs the ordinary end of a stream as an error."""
    logger = logging.getLogger("libp2p")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@asynccontextmanager
async def default_host(ours: Endpoint) -> AsyncIterator[tuple[Any, Any]]:
    """Yield a host made by `new_host()` and connected to ours, and our peer info as it sees it."""
    from libp2p import new_host
    from libp2p.peer.peerinfo import info_from_p2p_addr
    from multiaddr import Multiaddr

    host = new_host()
    async with host.run(listen_addrs=[]):
        text = f"/ip4/{LOOPBACK}/tcp/{ours.port}/p2p/{OURS.peer}"
        info = info_from_p2p_addr(Multiaddr(text))
        with trio.fail_after(15):
            await host.connect(info)
        yield host, info.peer_id
        for connected in host.get_connected_peers():  # it leaves sockets open otherwise
            await host.disconnect(connected)


async def test_a_default_libp2p_host_identifies_us_and_pings(quiet: None) -> None:
    from libp2p.host.ping import PingService
    from libp2p.identity.identify.identify import parse_identify_response

    async with endpoint() as ours, default_host(ours) as (host, peer):
        with trio.fail_after(15):
            connection = host.get_network().connections[peer][0].muxed_conn
            assert str(connection.peer_id) == OURS.peer
            stream = await host.new_stream(peer, ["/ipfs/id/1.0.0"])
            answer = parse_identify_response(await stream.read(4096))
            assert answer.public_key == b"\x08\x01\x12\x20" + OURS.public_key
            assert "/shoal/call/1.0.0" in answer.protocols
            assert "/libp2p/circuit/relay/0.2.0/hop" in answer.protocols
            assert len(await PingService(host).ping(peer, ping_amt=3)) == 3
            with pytest.raises(Exception, match="failed to open a stream"):
                await host.new_stream(peer, ["/ipfs/kad/1.0.0"])


async def test_a_default_libp2p_host_calls_published_methods(quiet: None) -> None:
    from libp2p.utils.varint import encode_varint_prefixed, read_varint_prefixed_bytes

    async with endpoint() as ours, default_host(ours) as (host, peer):
        with trio.fail_after(15):
            for size in (5, 300_000):
                stream = await host.new_stream(peer, ["/shoal/call/1.0.0"])
                asked = {"method": "echo", "header": {"n": size}, "payload": bytes(size)}
                await stream.write(encode_varint_prefixed(msgpack.packb(asked)))
                answer = msgpack.unpackb(await read_varint_prefixed_bytes(stream))
                assert answer["header"] == {"n": size, "from": str(host.get_id())}
                assert answer["payload"] == bytes(size)
                await stream.close()
            stream = await host.new_stream(peer, ["/shoal/call/1.0.0"])
            await stream.write(encode_varint_prefixed(msgpack.packb({"method": "secret"})))
            answer = msgpack.unpackb(await read_varint_prefixed_bytes(stream))
            assert answer["code"] == "unknown-method"


async def test_two_default_libp2p_hosts_meet_at_our_relay(quiet: None) -> None:
    from libp2p.relay.circuit_v2.config import RelayConfig
    from libp2p.relay.circuit_v2.protocol import PROTOCOL_ID, CircuitV2Protocol
    from libp2p.relay.circuit_v2.transport import CircuitV2Transport
    from libp2p.tools.anyio_service import background_trio_service
    from multiaddr import Multiaddr

    async def shout(stream: Any) -> None:
        await stream.write((await stream.read(100)).upper())
        await stream.close()

    async with (
        endpoint() as ours,
        default_host(ours) as (a, peer),
        default_host(ours) as (b, _),
        trio.open_nursery() as nursery,
    ):
        sides = [CircuitV2Protocol(host, allow_hop=False) for host in (a, b)]
        async with background_trio_service(sides[0]), background_trio_service(sides[1]):
            for side in sides:
                await side.event_started.wait()
            dialler, target = (
                CircuitV2Transport(host, side, RelayConfig())
                for host, side in zip((a, b), sides, strict=True)
            )
            with trio.fail_after(20):
                stream = await b.new_stream(peer, [PROTOCOL_ID])
                assert await target.reserve(stream, peer, nursery)
                b.set_stream_handler("/shout/1", shout)
                relay = f"/ip4/{LOOPBACK}/tcp/{ours.port}/p2p/{OURS.peer}"
                await dialler.dial(Multiaddr(f"{relay}/p2p-circuit/p2p/{b.get_id()}"))
                stream = await a.new_stream(b.get_id(), ["/shout/1"])
                await stream.write(b"hello")
                assert await stream.read(100) == b"HELLO"
            nursery.cancel_scope.cancel()


@pytest.fixture
def virtual_time() -> Iterator[trio.testing.MockClock]:
    yield clock()


# The lane, from docs/spec/lane.md. Nothing of transport/ is used below this line.

HELLO, GOAWAY, PING, PONG, ACK = 1, 2, 3, 4, 5
CALL, REPLY, REFUSAL, PART = 0x10, 0x12, 0x13, 0x14
OPEN, DATA, CREDIT = 0x20, 0x21, 0x22
MORE, FIN = 0x04, 0x10


@dataclass
class Frame:
    kind: int
    flags: int
    received: int
    id: int
    offset: int
    head: bytes
    payload: bytes


def certificate(seed: bytes) -> tuple[x509.Certificate, Ed25519PrivateKey]:
    """Self-signed by a key of one use; the extension ties it to the identity (libp2p TLS)."""
    key, identity = Ed25519PrivateKey.generate(), Ed25519PrivateKey.from_private_bytes(seed)
    spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    public = b"\x08\x01\x12\x20" + identity.public_key().public_bytes_raw()
    signature = identity.sign(b"libp2p-tls-handshake:" + spki)
    body = b"\x04" + bytes([len(public)]) + public + b"\x04" + bytes([len(signature)]) + signature
    extension = x509.UnrecognizedExtension(
        x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1"), b"\x30" + bytes([len(body)]) + body
    )
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(extension, critical=False)
        .sign(key, None)
    )
    return made, key


class PlainLane:
    """A dialler. Answers pings by itself, counts the frames that are counted."""

    def __init__(self, connection: trio.socket.SocketType, seed: bytes) -> None:
        context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        context.set_min_proto_version(SSL.TLS1_3_VERSION)
        made, key = certificate(seed)
        context.use_certificate(made)
        context.use_privatekey(key)
        context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
        context.set_alpn_protos([b"shoal/1"])
        self.tls = SSL.Connection(context, None)
        self.tls.set_connect_state()
        self.socket = connection
        self.buffer = b""
        self.received = 0
        self.pings = 0
        self.acknowledged = 0

    async def _flush(self) -> None:
        try:
            while True:
                data = self.tls.bio_read(1 << 16)
                while data:
                    data = data[await self.socket.send(data) :]
        except SSL.WantReadError:
            pass

    async def _pull(self) -> None:
        data = await self.socket.recv(1 << 16)
        if not data:
            raise EOFError
        self.tls.bio_write(data)

    async def handshake(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
                break
            except SSL.WantReadError:
                await self._flush()
                await self._pull()
        await self._flush()
        assert self.tls.get_alpn_proto_negotiated() == b"shoal/1"

    async def send(
        self, kind: int, flags: int = 0, id: int = 0, offset: int = 0, head: bytes = b"",
        payload: bytes = b"",
    ) -> None:  # fmt: skip
        size = len(head) + len(payload)
        prefix = struct.pack(
            ">IBBHIQQ", size, kind, flags, len(head), self.received % (1 << 32), id, offset
        )
        self.tls.sendall(prefix + head + payload)
        await self._flush()

    async def receive(self) -> Frame:
        """Return the next frame that is neither PING nor ACK."""
        while True:
            data = await self._exactly(28)
            size, kind, flags, head, received, ident, offset = struct.unpack(">IBBHIQQ", data)
            body = await self._exactly(size)
            self.acknowledged = received
            if kind >= CALL:
                self.received += 1
            if kind == PING:
                self.pings += 1
                await self.send(PONG, offset=offset)
            elif kind != ACK:
                return Frame(kind, flags, received, ident, offset, body[:head], body[head:])

    async def _exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            try:
                self.buffer += self.tls.recv(1 << 16)
            except SSL.WantReadError:
                await self._pull()
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    async def hello(self, **changes: Any) -> dict[str, Any]:
        said = {
            "v": [1, 1],
            "i": b"incarnation-0016",
            "w": [1 << 20, 1 << 24, 64],
            "s": b"open",
            "f": [],
            "r": None,
            "p": 0,
            "t": None,
        }
        await self.send(HELLO, head=msgpack.packb({**said, **changes}))
        frame = await self.receive()
        assert frame.kind == HELLO and not frame.payload
        heard: dict[str, Any] = msgpack.unpackb(frame.head)
        return heard


@asynccontextmanager
async def plain_lane(port: int) -> AsyncIterator[PlainLane]:
    connection = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with connection:
        # The listener is silent until HELLO, so Nagle's algorithm would hold it back for 40 ms.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await connection.connect((LOOPBACK, port))
        lane = PlainLane(connection, b"p" * 32)
        with trio.fail_after(10):
            await lane.handshake()
            yield lane


def request(method: str, header: dict[str, Any]) -> bytes:
    return bytes([len(method)]) + method.encode() + bytes(msgpack.packb(header))


async def test_a_lane_written_from_the_specification_links_and_calls() -> None:
    async with endpoint() as ours, plain_lane(ours.port) as lane:
        heard = await lane.hello()
        assert heard["v"] == [1, 1] and len(heard["i"]) == 16
        assert heard["s"] == b"open" and heard["r"] is None
        await lane.send(CALL, id=1, offset=4, head=request("echo", {"n": 1}), payload=b"data")
        reply = await lane.receive()
        assert (reply.kind, reply.id, reply.offset, reply.payload) == (REPLY, 1, 4, b"data")
        peer = Identity.from_seed(b"p" * 32).peer
        assert msgpack.unpackb(reply.head) == {"n": 1, "from": peer}
        assert lane.acknowledged == 1  # the call, by the reply's own prefix
        (link,) = ours.links()
        assert link.peer == peer


async def test_a_payload_in_parts_both_ways() -> None:
    payload = bytes(range(256)) * 800  # 204,800 bytes: four frames each way
    async with endpoint() as ours, plain_lane(ours.port) as lane:
        await lane.hello()
        for at in range(0, len(payload), 1 << 16):
            piece = payload[at : at + (1 << 16)]
            more = MORE if at + len(piece) < len(payload) else 0
            if not at:
                head = request("echo", {"n": 2})
                await lane.send(CALL, 2 | more, 1, len(payload), head, piece)
            else:
                await lane.send(PART, 2 | more, 1, at, payload=piece)
        reply = await lane.receive()
        assert (reply.kind, reply.offset) == (REPLY, len(payload))
        got, flags = reply.payload, reply.flags
        while flags & MORE:
            part = await lane.receive()
            assert (part.kind, part.id, part.offset) == (PART, 1, len(got))
            got, flags = got + part.payload, part.flags
        assert got == payload


async def test_pings_go_both_ways(virtual_time: Any) -> None:
    async with endpoint() as ours, plain_lane(ours.port) as lane:
        await lane.hello()
        await lane.send(PING, offset=0x1122334455667788)
        pong = await lane.receive()
        assert (pong.kind, pong.offset) == (PONG, 0x1122334455667788)
        await lane.send(CALL, id=1, head=request("none", {}))
        refusal = await lane.receive()
        size = refusal.head[0]
        assert (refusal.kind, refusal.head[1 : 1 + size]) == (REFUSAL, b"unknown-method")
        with trio.move_on_after(3.5):
            await lane.receive()
        assert lane.pings >= 1  # and each was answered, or this link would be dead
        await lane.send(CALL, id=2, head=request("echo", {}))
        assert (await lane.receive()).id == 2


async def test_a_stream_carries_bytes_and_credit() -> None:
    async def reverse(stream: IncomingStream) -> None:
        data = b""
        while piece := await stream.stream.receive(1 << 16):
            data += piece
        await stream.stream.send(data[::-1])
        await stream.stream.finish()

    async with endpoint() as ours, plain_lane(ours.port) as lane:
        ours.handle_stream("reverse", reverse)
        await lane.hello()
        await lane.send(OPEN, 2, id=2, head=request("reverse", {}))
        for at in range(0, 540_000, 60_000):
            await lane.send(DATA, 2, 2, at, payload=bytes([at // 60_000]) * 60_000)
        credit = await lane.receive()  # half of the window was read
        assert (credit.kind, credit.id) == (CREDIT, 2) and credit.offset > 1 << 20
        await lane.send(DATA, 2 | FIN, 2, 540_000, payload=b"\x09" * 60_000)
        got, ended = b"", False
        while not ended:
            frame = await lane.receive()
            assert (frame.kind, frame.id, frame.offset) == (DATA, 2, len(got))
            got, ended = got + frame.payload, bool(frame.flags & FIN)
        assert got == b"".join(bytes([n]) * 60_000 for n in range(9, -1, -1))


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"s": b"other"}, b"wrong-swarm"), ({"v": [9, 9]}, b"no-common-version"),
     ({"i": b"short"}, b"bad-hello"), ({"r": b"incarnation-0000"}, b"unknown-link")],
)  # fmt: skip
async def test_a_hello_is_refused_with_a_code(changes: dict[str, Any], code: bytes) -> None:
    async with endpoint() as ours, plain_lane(ours.port) as lane:
        with pytest.raises(AssertionError):
            await lane.hello(**changes)
        assert not ours.links()
    async with endpoint() as ours, plain_lane(ours.port) as lane:
        said = {"v": [1, 1], "i": b"incarnation-0016", "w": [1, 1, 1], "s": b"open"}
        await lane.send(HELLO, head=msgpack.packb({**said, **changes}))
        answer = await lane.receive()
        assert (answer.kind, answer.head[1 : 1 + answer.head[0]]) == (GOAWAY, code)


async def test_the_listener_ends_links_that_break_the_rules() -> None:
    async with endpoint() as ours, plain_lane(ours.port) as lane:
        await lane.hello()
        await lane.send(0x7F)
        goodbye = await lane.receive()
        assert goodbye.kind == GOAWAY
        assert goodbye.head[1 : 1 + goodbye.head[0]] == b"bad-kind"
        with pytest.raises((EOFError, SSL.ZeroReturnError)):
            await lane.receive()

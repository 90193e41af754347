"""One QUIC connection: what aioquic asks of ours, what a peer can make us keep, and moving."""

from time import process_time
from typing import Any

import pytest
import trio
from aioquic._buffer import Buffer
from aioquic.buffer import encode_uint_var
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    QuicPacketType,
    QuicPreferredAddress,
    pull_quic_transport_parameters,
    push_quic_transport_parameters,
)
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.tls import Epoch
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from shoal.netsim.world import World
from shoal.transport.host.real import RealHost
from shoal.transport.rates import ByteBudget
from shoal.transport.udp import defaults
from shoal.transport.udp.certificate import QuicCertificate
from shoal.transport.udp.connection import UdpConnection, Via, configuration
from shoal.transport.udp.defaults import GAP_BYTES, UdpLimits
from tests.transport.handshake.test_certificate import HUGE, rsa_certificate
from tests.transport.pipes import read, write
from tests.transport.udp.nodes import PORT, joined, link, pair, running

A, B, THIRD = ("192.0.2.1", 4001), ("192.0.2.2", 4001), ("203.0.113.9", 53)


class Socket:
    """A socket that sends nothing: connections do not send by themselves."""

    port = 4001

    def send(self, data: bytes, to: tuple[str, int]) -> bool:
        return True

    async def receive(self) -> list[Any]:
        raise NotImplementedError

    def close(self) -> None: ...


SOCKET = Socket()


class Two:
    """A client and a server without a network: `pump` carries what they have to say."""

    def __init__(
        self,
        limits: UdpLimits | None = None,
        server: type[UdpConnection] = UdpConnection,
        pumped: bool = True,
    ) -> None:
        limits = limits or UdpLimits()
        host = RealHost()
        extra = ByteBudget(limits.extra_bytes)
        self.now = 1.0
        self.client = UdpConnection(configuration(None, limits), limits, extra)
        self.client.begin(B, SOCKET, self.now)
        first = self.client.transmit(self.now)[0][0]
        self.server = server(
            configuration(QuicCertificate.generate(host), limits),
            limits,
            extra,
            original_destination_connection_id=first[6:14],
        )
        self.first = first
        if pumped:
            self.server.receive(first, A, SOCKET, self.now)
            self.pump()

    def pump(self, rounds: int = 6) -> None:
        for _ in range(rounds):
            self.now += 0.01
            for data, _via in self.server.transmit(self.now):
                self.client.receive(data, B, SOCKET, self.now)
            for data, _via in self.client.transmit(self.now):
                self.server.receive(data, A, SOCKET, self.now)

    def inject(self, frames: bytes) -> None:
        """The client sends frames of the attacker's choice."""
        client = self.client
        builder = QuicPacketBuilder(
            host_cid=client.host_cid,
            is_client=True,
            max_datagram_size=1400,
            packet_number=client._packet_number,
            peer_cid=client._peer_cid.cid,
            version=client._version or 0,
        )
        builder.start_packet(QuicPacketType.ONE_RTT, client._cryptos[Epoch.ONE_RTT])
        buffer = builder.start_frame(frames[0])
        buffer.push_bytes(frames[1:])
        sent = client._flush_builder(
            builder=builder,
            network_path=client._network_paths[0],
            peer_cid=client._peer_cid.cid,
            now=self.now,
        )
        for data, _ in sent:
            self.server.receive(data, A, SOCKET, self.now)


def stream_frame(stream: int, offset: int, data: bytes) -> bytes:
    return bytes([0x0E]) + b"".join(
        [encode_uint_var(stream), encode_uint_var(offset), encode_uint_var(len(data)), data]
    )


def test_a_handshake_and_bytes() -> None:
    two = Two()
    two.client.send_stream_data(0, b"hello")
    two.pump()
    assert two.server._handshake_confirmed and two.client._handshake_confirmed
    assert two.server.tls.alpn_negotiated == "shoal-udp/1"
    assert not two.client.ended and not two.server.ended
    assert two.client.fault is None and two.server.fault is None


def test_aioquic_asks_for_every_part_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that renames one of them would silently use its own again."""
    asked: set[str] = set()
    ours = [
        "_write_connection_limits", "_write_stream_limits", "_get_or_create_stream",
        "_initialize", "_parse_transport_parameters", "_confirm_handshake",
    ]  # fmt: skip
    for name in ours:
        assert name in vars(UdpConnection) and hasattr(QuicConnection, name)
        real = getattr(UdpConnection, name)

        def spy(self: Any, *args: Any, _name: str = name, _real: Any = real, **more: Any) -> Any:
            asked.add(_name)
            return _real(self, *args, **more)

        monkeypatch.setattr(UdpConnection, name, spy)
    two = Two()
    two.client.send_stream_data(0, b"hello")
    two.pump()
    assert asked == set(ours)
    assert two.client._loss._cc is two.client.control
    assert two.client.control.rate or two.client.control.base_rtt


def test_ids_name_a_connection() -> None:
    two = Two()
    assert all(len(cid) == 8 for cid in two.client.cids)
    assert not set(two.client.cids) & set(two.server.cids)


def test_no_tickets_no_datagrams_no_other_streams_are_offered() -> None:
    two = Two()
    client = two.client
    assert client._remote_max_datagram_frame_size is None
    assert (client._remote_max_streams_bidi, client._remote_max_streams_uni) == (1, 0)
    server = two.server
    assert (server._remote_max_streams_bidi, server._remote_max_streams_uni) == (0, 0)
    assert client.tls._new_session_ticket is None


@pytest.mark.parametrize("stream", [4, 8, 1, 2, 3, 6, 400])
def test_another_stream_ends_the_connection(stream: int) -> None:
    two = Two()
    two.inject(stream_frame(stream, 0, b"x"))
    assert two.server.ended
    assert not [each for each in two.server._streams if each != 0]


def test_the_one_stream_does_not() -> None:
    two = Two()
    two.inject(stream_frame(0, 0, b"x"))
    assert not two.server.ended


def test_more_than_the_window_ends_it() -> None:
    for offset, ends in ((99_999, False), (100_000, True)):
        two = Two(UdpLimits(stranger_window_bytes=100_000))
        two.inject(stream_frame(0, offset, b"x"))
        assert two.server.ended is ends


def gaps(limits: UdpLimits, count: int = 300, grown: int = 0) -> UdpConnection:
    """A server that got every second byte of the stream; its window has grown by so much."""
    two = Two(limits)
    if grown:
        two.server.window.bytes = limits.window_bytes + grown
    for start in range(0, count, 50):
        frames = b"".join(stream_frame(0, 2 * n + 1, b"x") for n in range(start, start + 50))
        two.inject(frames)
    return two.server


def test_a_stream_in_too_many_pieces_ends_it() -> None:
    assert gaps(UdpLimits(gaps=100)).ended


def test_a_window_that_has_grown_may_have_more() -> None:
    """On a long and fast path a queue that overflows makes a thousand gaps at once."""
    assert not gaps(UdpLimits(gaps=100), grown=201 * GAP_BYTES).ended
    assert gaps(UdpLimits(gaps=100), grown=150 * GAP_BYTES).ended


def test_without_that_limit_pieces_pile_up() -> None:
    server = gaps(UdpLimits(gaps=10_000))
    assert not server.ended
    assert len(server._streams[0].receiver._ranges) == 300


def test_endless_tls_messages_end_it() -> None:
    """A message of TLS may announce 16 MiB, and aioquic waits for all of it."""
    frame = b"\x0b\xff\xff\xff" + bytes(996)
    for limit, ends in ((4000, True), (1 << 30, False)):
        two = Two(UdpLimits(crypto_bytes=limit))
        for n in range(8):
            offset = encode_uint_var(1000 * n)
            body = frame if n == 0 else bytes(1000)
            two.inject(b"\x06" + offset + encode_uint_var(1000) + body)
        assert two.server.ended is ends


def test_unreadable_frames_end_it() -> None:
    for frames in (b"\x21", b"\x1c", b"\x31\x04abcd", b"\x02" + b"\xff" * 8, b"\x18\x00\x05\x09"):
        two = Two()
        two.inject(frames)
        assert two.server.ended, frames


class Sending(UdpConnection):
    """A server that names another address, to which its clients are to go."""

    def _serialize_transport_parameters(self) -> bytes:
        data = super()._serialize_transport_parameters()
        parameters = pull_quic_transport_parameters(Buffer(data=data))
        parameters.preferred_address = QuicPreferredAddress(
            ipv4_address=THIRD, ipv6_address=None, connection_id=bytes(8),
            stateless_reset_token=bytes(16),
        )  # fmt: skip
        buffer = Buffer(capacity=2000)
        push_quic_transport_parameters(buffer, parameters)
        return buffer.data


def sent_to_third(monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the client sends there, if aioquic could make sense of our addresses."""
    monkeypatch.setattr(
        UdpConnection, "_find_preferred_address", lambda _: Via(THIRD, SOCKET), raising=False
    )
    two = Two(server=Sending)
    assert two.client._handshake_confirmed
    return any(path.addr.place != B for path in two.client._network_paths)


def test_a_peer_cannot_redirect_us_to_third_parties(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's preferred address would have every client of it send there."""
    assert not sent_to_third(monkeypatch)


def test_aioquic_alone_would_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(UdpConnection, "_parse_transport_parameters")
    assert sent_to_third(monkeypatch)


def test_a_spoofed_source_moves_nothing() -> None:
    """Neither end takes an address from a packet that is not authentic."""
    two = Two()
    two.client.send_stream_data(0, b"hello")
    packets = [data for data, _ in two.client.transmit(two.now)]
    forged = bytearray(packets[-1])
    forged[-1] ^= 1
    two.server.receive(bytes(forged), THIRD, SOCKET, two.now)
    answer = [data for data, _ in two.server.transmit(two.now + 1)]
    assert two.server.via.place == A
    forged = bytearray(answer[-1] if answer else packets[-1])
    forged[-1] ^= 1
    two.client.receive(bytes(forged), THIRD, SOCKET, two.now)
    assert two.client.via.place == B


def test_a_replayed_packet_moves_nothing() -> None:
    two = Two()
    two.client.send_stream_data(0, b"hello")
    two.pump()
    two.client.send_stream_data(0, b"again")
    packets = [data for data, _ in two.client.transmit(two.now)]
    for data in packets:
        two.server.receive(data, A, SOCKET, two.now)
    two.now += 0.01
    answers = [data for data, _ in two.server.transmit(two.now)]
    for data in answers:
        two.client.receive(data, B, SOCKET, two.now)
    for data in answers:
        two.client.receive(data, THIRD, SOCKET, two.now)
    assert two.client.via.place == B


def test_keys_are_changed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "KEY_PACKETS", 20)
    two = Two()
    before = two.client._cryptos[Epoch.ONE_RTT].send.secret
    for _ in range(30):
        two.client.send_stream_data(0, b"hello")
        two.pump(2)
    assert two.client._cryptos[Epoch.ONE_RTT].send.secret != before
    assert not two.client.ended and not two.server.ended
    assert two.server._streams[0].receiver.highest_offset == 150


def test_the_peer_closes_by_code() -> None:
    two = Two()
    two.client.close(QuicErrorCode.NO_ERROR, QuicFrameType.PADDING)
    two.pump(2)
    assert two.server.ended


# On a network: either end may move.


async def test_the_dialler_s_nat_forgets(world: World) -> None:
    """Its packets come from another port; the connection goes on."""
    home = world.gateway("home", "linux-fully-random", link=link(20, 0.04))
    async with running(world.host("a", behind=home), world.host("b")) as (a, b):
        near, far = await joined(a, b)
        before = far.remote
        data = bytes(range(250)) * 8000
        a.host.start_soon(a.nursery, write, near, data)
        got = await read(far, 500_000)
        home.reboot()
        with trio.fail_after(10):
            got += await read(far, len(data) - len(got))
        assert got == data
        assert far.remote != before
        await write(far, b"and back")
        with trio.fail_after(2):
            assert await read(near, 8) == b"and back"


async def test_the_dialler_s_address_changes(world: World) -> None:
    home = world.gateway("home", "linux-drop")
    async with running(world.host("a", behind=home), world.host("b")) as (a, b):
        near, far = await joined(a, b)
        home.redial(world.public_address(again=True))
        await write(near, b"from elsewhere")
        with trio.fail_after(5):
            assert await read(far, 14) == b"from elsewhere"
        assert far.remote[0] == home.wan.addresses[0]


async def test_the_dialled_end_s_address_changes(world: World) -> None:
    """QUIC lets only clients move; here both ends sit behind NATs, and either may."""
    home = world.gateway("home", "full-cone")
    async with running(world.host("a"), world.host("b", behind=home)) as (a, b):
        b.port.send(bytes(20), a.place)  # opens the NAT
        await trio.sleep(0.1)
        near = await a.dial((home.wan.addresses[0], PORT))
        await write(near, b"!")
        far = await b.accept()
        assert await read(far, 1) == b"!"
        home.redial(world.public_address(again=True))
        await write(far, b"from elsewhere")
        with trio.fail_after(5):
            assert await read(near, 14) == b"from elsewhere"
        assert near.remote[0] == home.wan.addresses[0]
        await write(near, b"and back")
        with trio.fail_after(2):
            assert await read(far, 8) == b"and back"
        assert near.connection.fault is None


async def test_a_server_that_moved_is_lost_without_migration(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UdpConnection, "_receive_from_elsewhere", lambda *args: None)
    with pytest.raises((trio.TooSlowError, BaseExceptionGroup)):
        await test_the_dialled_end_s_address_changes(world)


async def test_packets_grow_as_the_path_allows(world: World) -> None:
    async with running(*pair(world, link(50, 0.02))) as (a, b):
        near, far = await joined(a, b)
        a.host.start_soon(a.nursery, write, near, bytes(1_000_000))
        assert len(await read(far, 1_000_000)) == 1_000_000
        assert near.connection._max_datagram_size == 1452


class Forged:
    """A certificate that goes over the wire as other bytes."""

    def __init__(self, real: x509.Certificate, der: bytes) -> None:
        self._der, self._real = der, real

    def public_bytes(self, encoding: Encoding) -> bytes:
        return self._der

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


VERSION_AT = 9  # of the byte that says which version of X.509 it is


@pytest.mark.parametrize("version", [1, 5, 127])
async def test_a_listener_s_certificate_of_no_known_version_ends_its_connection(
    world: World, version: int
) -> None:
    """What `cryptography` raises then (InvalidVersion) is no ValueError, and aioquic lets it
    through: it ended the node that had dialled."""
    async with running(*pair(world)) as (a, b):
        server = b.port.connections._server
        real = server.certificate
        der = bytearray(real.public_bytes(Encoding.DER))
        assert der[VERSION_AT - 4 : VERSION_AT] == b"\xa0\x03\x02\x01"
        der[VERSION_AT] = version
        with pytest.raises(x509.InvalidVersion):
            x509.load_der_x509_certificate(bytes(der))
        server.certificate = Forged(real, bytes(der))
        with pytest.raises(ConnectionRefusedError):
            await a.dial(b.place)
        server.certificate = real
        near, _ = await joined(a, b)
        assert not near.connection.ended


def test_no_key_but_ours_is_verified_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """A huge exponent of RSA costs a dialler less than an ordinary listener does."""

    def cost(der: bytes | None) -> tuple[float, bool]:
        best, fine = 1.0, True
        for _ in range(5):
            two = Two(pumped=False)
            settings = two.server._configuration
            if der is not None:
                settings.certificate = Forged(settings.certificate, der)
            two.server.receive(two.first, A, SOCKET, two.now)
            flight = two.server.transmit(two.now)
            began = process_time()
            for data, _via in flight:
                two.client.receive(data, B, SOCKET, two.now)
            best, fine = min(best, process_time() - began), not two.client.ended
            presented = two.client.tls._peer_certificate
            assert presented is not None
            assert isinstance(presented.public_key(), RSAPublicKey) is (der is not None)
        return best, fine

    ordinary, fine = cost(None)
    assert fine
    expensive, fine = cost(rsa_certificate(HUGE))
    assert not fine and expensive < 1.5 * ordinary

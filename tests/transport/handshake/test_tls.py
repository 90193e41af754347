"""The TLS class against itself and against deviant peers, without sockets."""

import ctypes
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import process_time
from typing import ClassVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from OpenSSL import SSL
from OpenSSL._util import no_zero_allocator

from shoal.transport.defaults import ALPN, CERTIFICATE_BYTES, TLS_HANDSHAKE_BYTES
from shoal.transport.errors import TransportError
from shoal.transport.handshake import certificate, tls
from shoal.transport.handshake.certificate import Certificate
from shoal.transport.handshake.tls import Tls
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId

ALICE = Identity.from_seed(bytes(range(32)))
BOB = Identity.from_seed(bytes(32))
ALICES = Certificate.generate(ALICE, RealHost())
BOBS = Certificate.generate(BOB, RealHost())


def exchange(client: Tls, server: Tls) -> None:
    """Carry bytes both ways until neither side has any."""
    while True:
        to_server, to_client = client.outgoing(), server.outgoing()
        if not to_server and not to_client:
            return
        server.feed(to_server)
        client.feed(to_client)


def pair(expect: PeerId | None = BOB.peer) -> tuple[Tls, Tls]:
    """Alice as client, Bob as server, connected."""
    client, server = Tls(ALICES, server=False, expect=expect), Tls(BOBS, server=True)
    exchange(client, server)
    assert client.read() == server.read() == b""
    return client, server


@contextmanager
def fails(code: str, text: str | None = None) -> Iterator[None]:
    with pytest.raises(TransportError, match=text) as caught:
        yield
    assert caught.value.code == code, caught.value.message


def test_both_ends_learn_the_peer_id() -> None:
    client, server = pair()
    assert client.established and server.established
    assert (client.peer, server.peer) == (BOB.peer, ALICE.peer)


def test_messages_of_every_size_both_ways() -> None:
    client, server = pair()
    for size in (1, 2, 128, 16383, 16384, 16385, 70000, 1 << 20):
        for sender, receiver in ((client, server), (server, client)):
            data = bytes(range(251)) * (size // 251 + 1)
            sender.write(memoryview(data)[:size])
            receiver.feed(sender.outgoing())
            assert receiver.read() == data[:size]
            assert receiver.read() == receiver.outgoing() == sender.outgoing() == b""


def test_tiny_records_need_little_more_memory_than_their_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, server = pair()
    for _ in range(4000):
        client.write(b"x")
    stream = client.outgoing()
    server.feed(stream)
    sizes: list[int] = []
    real = no_zero_allocator

    def allocate(kind: str, size: int) -> object:
        sizes.append(size)
        return real(kind, size)

    monkeypatch.setattr(tls, "allocate", allocate)
    assert server.read() == b"x" * 4000
    assert sizes[0] < len(stream) + 20_000


@pytest.mark.parametrize("size", [1, 100, 1000, 5000, 20_000, 100_000])
def test_plaintext_pins_at_most_twice_its_size(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    client, server = pair()
    buffers: list[int] = []
    real = no_zero_allocator

    def allocate(kind: str, room: int) -> object:
        buffers.append(room)
        return real(kind, room)

    client.write(bytes(size))
    server.feed(client.outgoing())
    monkeypatch.setattr(tls, "allocate", allocate)
    plaintext = server.read()
    assert plaintext == bytes(size)
    assert isinstance(plaintext, bytes) or (plaintext.readonly and buffers[0] <= 2 * size)


class _Mallinfo2(ctypes.Structure):
    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost",
    )]  # fmt: skip


def bytes_in_use() -> int:
    """Return the bytes that the C library has allocated."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        pytest.skip("this C library has no mallinfo2")
    mallinfo2.restype = _Mallinfo2
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


def used_by_pairs(count: int, *, release: bool) -> float:
    """Return the memory in bytes of a pair that has carried a batch both ways."""
    pairs = [pair() for _ in range(count)]
    before = bytes_in_use()
    for client, server in pairs:
        for sender, receiver in ((client, server), (server, client)):
            sender.write(bytes(1 << 18))
            receiver.feed(sender.outgoing())
            assert len(receiver.read()) == 1 << 18
        if release:
            client.release()
            server.release()
    return (bytes_in_use() - before) / count


def test_memory_of_a_batch_is_released() -> None:
    assert used_by_pairs(20, release=True) < 100_000


def test_without_release_it_is_kept() -> None:
    assert used_by_pairs(20, release=False) > 800_000


def test_release_between_any_two_steps_changes_nothing() -> None:
    client, server = pair()
    client.release()  # nothing to give back yet
    for size in (100, 70_000):
        data = bytes(range(250)) * (size // 250)
        client.write(data)
        client.release()
        stream = bytes(client.outgoing())
        client.release()
        got = b""
        for at in range(0, len(stream), 7001):
            server.feed(stream[at : at + 7001])
            server.release()
            got += server.read()
            server.release()
        assert got == data
    client.write(b"after")
    server.feed(client.outgoing())
    assert server.read() == b"after"


def test_an_end_is_noticed_after_a_release() -> None:
    client, server = pair()
    client.write(bytes(50_000))
    client.close()
    stream = client.outgoing()
    server.feed(stream)
    server.release()
    assert len(server.read()) == 50_000
    server.release()
    assert server.closed
    server.write(b"still")
    client.feed(server.outgoing())
    assert client.read() == b"still"


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6, 7, 21, 150, 151, 1000])
def test_any_cut_of_the_stream(step: int) -> None:
    client, server = pair()
    for size in (0, 1, 128, 3, 20000, 129):
        client.write(bytes([size & 255]) * size)
    stream = client.outgoing()
    got = []
    for at in range(0, len(stream), step):
        server.feed(stream[at : at + step])
        got.append(server.read())
    plain = b"".join(bytes([size & 255]) * size for size in (0, 1, 128, 3, 20000, 129))
    assert b"".join(got) == plain


def test_a_handshake_one_byte_at_a_time() -> None:
    client, server = Tls(ALICES, server=False), Tls(BOBS, server=True)
    for _ in range(3):
        for sender, receiver in ((client, server), (server, client)):
            for byte in sender.outgoing():
                receiver.feed(bytes([byte]))
    client.write(b"hello")
    server.feed(client.outgoing())
    assert server.read() == b"hello"
    assert client.read() == b""


def test_data_right_behind_the_clients_handshake() -> None:
    client, server = Tls(ALICES, server=False), Tls(BOBS, server=True)
    server.feed(client.outgoing())
    client.feed(server.outgoing())
    client.write(b"early bird" * 10000)
    server.feed(client.outgoing())
    assert server.established
    assert server.read() == b"early bird" * 10000


def test_writes_gather_into_one_outgoing() -> None:
    client, server = pair()
    for number in range(50):
        client.write(bytes([number]))
    server.feed(client.outgoing())
    assert client.outgoing() == b""
    assert server.read() == bytes(range(50))


def test_wrong_peer() -> None:
    client, server = Tls(ALICES, server=False, expect=ALICE.peer), Tls(BOBS, server=True)
    with fails("wrong-peer", BOB.peer):
        exchange(client, server)
    with fails("tls-failed"):
        server.feed(client.outgoing())  # the alert says so to the other end
    assert not client.established and not server.established
    with fails("tls-failed"):
        _ = client.peer


def test_a_server_can_expect_a_peer_too() -> None:
    client, server = Tls(ALICES, server=False), Tls(BOBS, server=True, expect=BOB.peer)
    with fails("wrong-peer", ALICE.peer):
        exchange(client, server)
    assert client.established  # a TLS 1.3 client is done before it is judged
    client.feed(server.outgoing())
    with fails("tls-failed"):
        client.read()


def test_exporter_is_shared_and_differs_by_label_and_connection() -> None:
    client, server = pair()
    secret = client.exporter(b"EXPORTER-shoal", 32)
    assert secret == server.exporter(b"EXPORTER-shoal", 32) and len(secret) == 32
    assert secret != client.exporter(b"EXPORTER-other", 32)
    assert secret != pair()[0].exporter(b"EXPORTER-shoal", 32)


def test_close() -> None:
    client, server = pair()
    client.write(b"last")
    client.close()
    server.feed(client.outgoing())
    assert not server.closed
    assert server.read() == b"last"
    assert server.closed and not client.closed
    server.write(b"still open this way")
    client.feed(server.outgoing())
    assert client.read() == b"still open this way"


def test_nothing_works_before_the_handshake() -> None:
    client = Tls(ALICES, server=False)
    assert client.read() == b""
    with fails("tls-failed"):
        client.write(b"x")
    with fails("tls-failed"):
        client.exporter(b"label", 32)
    client.close()


def test_a_changed_byte_is_noticed() -> None:
    client, server = pair()
    client.write(b"x" * 100)
    record = bytearray(client.outgoing())
    record[50] ^= 1
    server.feed(bytes(record))
    with fails("tls-failed"):
        server.read()
    client.feed(server.outgoing())
    with fails("tls-failed"):
        client.read()


def test_a_replayed_record_is_noticed() -> None:
    client, server = pair()
    client.write(b"pay 1")
    record = client.outgoing()
    server.feed(record)
    assert server.read() == b"pay 1"
    server.feed(record)
    with fails("tls-failed"):
        server.read()


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x13/multistream/1.0.0\n", b"\0" * 99]
)
@pytest.mark.parametrize("server", [True, False])
def test_garbage_instead_of_a_handshake(garbage: bytes, server: bool) -> None:
    with fails("tls-failed"):
        Tls(BOBS, server=server).feed(garbage)


def test_garbage_after_the_handshake() -> None:
    _, server = pair()
    server.feed(b"\x17\x03\x03\x00\x05hello")
    with fails("tls-failed"):
        server.read()


def test_an_oversized_record_is_refused_before_it_is_complete() -> None:
    _, server = pair()
    server.feed(b"\x17\x03\x03\xff\xff" + bytes(40000))
    assert server.read() == b""  # counted as incomplete; the link's own limits end it
    server.feed(bytes(40000))
    with fails("tls-failed"):
        server.read()


def test_an_endless_handshake_is_cut() -> None:
    """A client hello that never ends, in well-formed records."""
    server = Tls(BOBS, server=True)
    record = b"\x16\x03\x01\x40\x00" + b"\x01\x01\xff\xff\x03\x03" + bytes(16378)
    with fails("tls-failed"):
        for _ in range(10):
            server.feed(record)
            record = b"\x16\x03\x03\x40\x00" + bytes(16384)


def test_the_handshake_limit_is_ours() -> None:
    """Plain bytes of one record that never completes: only our own count ends it."""
    server = Tls(BOBS, server=True)
    fed = 0
    with fails("tls-failed", "too long"):
        while fed < 10 * TLS_HANDSHAKE_BYTES:
            server.feed(b"\x16\x03\x01\x00\x01\x01" if fed == 0 else _dribble(fed))
            fed += 6
    assert fed <= TLS_HANDSHAKE_BYTES + 6


def _dribble(fed: int) -> bytes:
    """One-byte handshake records: a client hello of 65535 bytes, slowly."""
    body = 0x00 if fed == 6 else 0xFF if fed in (12, 18) else 0x03 if fed in (24, 30) else 0
    return b"\x16\x03\x03\x00\x01" + bytes([body])


# A peer made of bare pyOpenSSL that deviates in one respect.


def bare(
    *,
    server: bool,
    certificate: x509.Certificate | None = ALICES.x509,
    key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey = ALICES.key,
    alpn: bytes | None = ALPN,
    change: Callable[[SSL.Context], object] = lambda context: None,
) -> SSL.Connection:
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
    if certificate is not None:
        context.use_privatekey(key)
        context.use_certificate(certificate)
    if alpn is not None and server:
        context.set_alpn_select_callback(lambda connection, offered: alpn)
    elif alpn is not None:
        context.set_alpn_protos([alpn])
    change(context)
    connection = SSL.Connection(context, None)
    if server:
        connection.set_accept_state()
    else:
        connection.set_connect_state()
    return connection


def meet(ours: Tls, theirs: SSL.Connection) -> None:
    """Carry bytes until silence. Ignore errors of the deviant peer."""
    for _ in range(6):
        with suppress(SSL.Error):
            theirs.do_handshake()
        try:
            ours.feed(theirs.bio_read(100000))
            ours.read()
        except SSL.WantReadError:
            pass
        if data := ours.outgoing():
            theirs.bio_write(data)


@pytest.mark.parametrize("server", [True, False])
def test_an_ordinary_bare_peer_is_accepted(server: bool) -> None:
    ours = Tls(BOBS, server=not server)
    meet(ours, bare(server=server))
    assert ours.peer == ALICE.peer


@pytest.mark.parametrize("server", [True, False])
@pytest.mark.parametrize("alpn", [None, b"libp2p", b"h2"])
def test_alpn_is_required(server: bool, alpn: bytes | None) -> None:
    ours = Tls(BOBS, server=not server)
    with fails("tls-failed", None if server else "does not speak `shoal/1`"):
        meet(ours, bare(server=server, alpn=alpn))
    assert not ours.established


@pytest.mark.parametrize("server", [True, False])
def test_older_tls_is_refused(server: bool) -> None:
    def old(context: SSL.Context) -> None:
        context.set_max_proto_version(SSL.TLS1_2_VERSION)

    with fails("tls-failed"):
        meet(Tls(BOBS, server=not server), bare(server=server, change=old))


def test_a_client_without_a_certificate_is_refused() -> None:
    ours = Tls(BOBS, server=True)
    with fails("tls-failed"):
        meet(ours, bare(server=False, certificate=None))
    assert not ours.established


def plain_certificate(extra: x509.ExtensionType | None = None) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder(x509.Name([]), x509.Name([]), ALICES.key.public_key(), 5)
        .not_valid_before(ALICES.x509.not_valid_before_utc)
        .not_valid_after(ALICES.x509.not_valid_after_utc)
    )
    if extra is not None:
        builder = builder.add_extension(extra, critical=False)
    return builder.sign(ALICES.key, None)


@pytest.mark.parametrize("server", [True, False])
def test_a_certificate_without_the_extension_is_refused(server: bool) -> None:
    with fails("bad-certificate", "no libp2p extension"):
        meet(Tls(BOBS, server=not server), bare(server=server, certificate=plain_certificate()))


@pytest.mark.parametrize("server", [True, False])
def test_a_stolen_extension_is_refused(server: bool) -> None:
    """Bob's extension, seen on the wire, in Alice's certificate."""
    stolen = BOBS.x509.extensions[0].value
    certificate = plain_certificate(stolen)
    with fails("bad-certificate", "signature"):
        meet(Tls(BOBS, server=not server), bare(server=server, certificate=certificate))


@pytest.mark.parametrize("server", [True, False])
def test_a_big_certificate_is_refused(server: bool) -> None:
    big = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), bytes(CERTIFICATE_BYTES))
    with fails("bad-certificate", "more than"):
        meet(Tls(BOBS, server=not server), bare(server=server, certificate=plain_certificate(big)))


@pytest.mark.parametrize("server", [True, False])
def test_a_chain_is_refused(server: bool) -> None:
    def chain(context: SSL.Context) -> None:
        context.add_extra_chain_cert(BOBS.x509)

    ours = Tls(BOBS, server=not server)
    with fails("bad-certificate", "more than one"):
        meet(ours, bare(server=server, change=chain))
    assert not ours.established


def test_an_identity_of_another_key_type_is_refused() -> None:
    """A good libp2p certificate, but our peer ids are Ed25519 ones."""
    key = ec.derive_private_key(7, ec.SECP256K1())
    spki = ALICES.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    point = key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    signature = key.sign(b"libp2p-tls-handshake:" + spki, ec.ECDSA(hashes.SHA256()))
    encoded = b"\x08\x02\x12\x21" + point
    body = b"\x04" + bytes([len(encoded)]) + encoded + b"\x04" + bytes([len(signature)]) + signature
    extension = x509.UnrecognizedExtension(
        x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1"), b"\x30" + bytes([len(body)]) + body
    )
    with fails("bad-certificate", "not an Ed25519 key"):
        meet(Tls(BOBS, server=True), bare(server=False, certificate=plain_certificate(extension)))


def test_no_session_is_resumed() -> None:
    """Whatever a client kept of a first connection, a second one is a full handshake."""
    first = bare(server=False)
    meet(Tls(BOBS, server=True), first)
    with pytest.raises(SSL.WantReadError):
        first.recv(1)  # takes in the tickets, if any
    session = first.get_session()
    assert session is not None
    second = SSL.Connection(first.get_context(), None)
    second.set_connect_state()
    second.set_session(session)
    ours = Tls(BOBS, server=True)
    meet(ours, second)
    assert ours.established
    assert second.get_finished() != first.get_finished()
    assert ours.peer == ALICE.peer
    assert ours._ssl.get_peer_certificate() is not None  # sent again: a resumption sends none


def test_contexts_are_made_once() -> None:
    certificate = Certificate.generate(ALICE, RealHost())
    first, second = Tls(certificate, server=False), Tls(certificate, server=False)
    assert first._ssl.get_context() is second._ssl.get_context()
    assert Tls(certificate, server=True)._ssl.get_context() is not first._ssl.get_context()


def test_the_standard_librarys_client_is_refused_without_a_certificate() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([ALPN.decode()])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing)
    ours = Tls(BOBS, server=True)
    with fails("tls-failed"):
        for _ in range(3):
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            ours.feed(outgoing.read())
            incoming.write(ours.outgoing())


def with_huge_exponent() -> Certificate:
    """Return a certificate of Alice on an RSA key with swapped exponents, which is cheap to sign
    with and expensive to verify."""
    key = rsa.generate_private_key(65537, 2048).private_numbers()
    d, e = key.public_numbers.e, key.d
    numbers = rsa.RSAPrivateNumbers(
        key.p,
        key.q,
        d,
        rsa.rsa_crt_dmp1(d, key.p),
        rsa.rsa_crt_dmq1(d, key.q),
        key.iqmp,
        rsa.RSAPublicNumbers(e, key.public_numbers.n),
    )
    private = numbers.private_key(unsafe_skip_rsa_key_validation=True)
    spki = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    extension = ALICES.x509.extensions[0]
    signed = x509.UnrecognizedExtension(extension.oid, certificate._signed_key(ALICE, spki))
    made = (
        x509.CertificateBuilder(x509.Name([]), x509.Name([]), private.public_key(), 5)
        .not_valid_before(ALICES.x509.not_valid_before_utc)
        .not_valid_after(ALICES.x509.not_valid_after_utc)
        .add_extension(signed, critical=False)
        .sign(private, hashes.SHA256())
    )
    return Certificate(made, private)  # type: ignore[arg-type]


def cost_of_proof(theirs: Certificate, attempts: int = 8) -> tuple[float, str]:
    """Return the listener's CPU seconds for the dialler's last flight, and its refusal."""
    best, code = 1.0, ""
    for _ in range(attempts):
        client, server = Tls(theirs, server=False), Tls(BOBS, server=True)
        server.feed(client.outgoing())
        client.feed(server.outgoing())
        flight = client.outgoing()
        began = process_time()
        try:
            server.feed(flight)
        except TransportError as error:
            code = error.code
        best = min(best, process_time() - began)
    return best, code


def test_a_huge_exponent_costs_no_more_than_an_ordinary_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    huge = with_huge_exponent()
    ordinary, code = cost_of_proof(ALICES)
    assert not code
    seconds, code = cost_of_proof(huge)
    assert code == "bad-certificate" and seconds < 2 * ordinary
    monkeypatch.setattr(certificate, "_check_carrier", lambda key: None)
    seconds, code = cost_of_proof(huge)
    assert not code and seconds > 4 * ordinary, "it would be expensive"


def used_by_handshakes(*, release: bool) -> float:
    """Return the memory in bytes of a pair that has exchanged hellos."""
    before = bytes_in_use()
    pairs = [pair() for _ in range(100)]
    for client, server in pairs:
        for sender, receiver in ((client, server), (server, client)):
            sender.write(b"hello")
            receiver.feed(sender.outgoing())
            assert receiver.read() == b"hello"
        if release:
            client.release()
            server.release()
    return (bytes_in_use() - before) / len(pairs)


def test_memory_of_a_handshake_is_released() -> None:
    pair()
    assert used_by_handshakes(release=True) < used_by_handshakes(release=False) - 6000


def test_a_client_hello_fits_in_one_packet() -> None:
    """Also within a tunnel with an MTU of 1,480, with 40 bytes of IPv6 and 32 of TCP."""
    hello = Tls(ALICES, server=False).outgoing()
    assert 1216 < len(hello) <= 1480 - 40 - 32, "with the key share of the post-quantum hybrid"


@pytest.mark.parametrize("old_is_server", [False, True])
def test_a_peer_without_the_post_quantum_hybrid(
    old_is_server: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate_of_old = Certificate.generate(ALICE, RealHost())
    with monkeypatch.context() as patch:
        patch.setattr(tls, "_GROUPS", b"X25519")
        old = Tls(certificate_of_old, server=old_is_server)
    new = Tls(BOBS, server=not old_is_server)
    exchange(*((new, old) if old_is_server else (old, new)))
    assert old.established and new.established
    assert group_of(new) == "x25519"
    assert group_of(pair()[0]) == "X25519MLKEM768"


def group_of(connection: Tls) -> str:
    """Return the name of the key exchange that was used."""
    name: str | None = connection._ssl.get_group_name()
    assert name is not None
    return name

"""The certificate against the libp2p TLS specification's test certificates, and hostile ones."""

import datetime
from collections.abc import Callable
from contextlib import suppress
from time import process_time
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from shoal.transport import identity
from shoal.transport.defaults import CERTIFICATE_BYTES, MIB
from shoal.transport.errors import TransportError
from shoal.transport.handshake import certificate
from shoal.transport.handshake.certificate import LIBP2P_EXTENSION, Certificate, peer_of_certificate
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity

# The test vectors of the libp2p specification (github.com/libp2p/specs, tls/tls.md,
# "Test vectors" 1 to 4).
ED25519 = bytes.fromhex(
    "308201ae30820156a0030201020204499602d2300a06082a8648ce3d040302302031123010060355040a13096c"
    "69627032702e696f310a300806035504051301313020170d3735303130313133303030305a180f343039363031"
    "30313133303030305a302031123010060355040a13096c69627032702e696f310a300806035504051301313059"
    "301306072a8648ce3d020106082a8648ce3d030107034200040c901d423c831ca85e27c73c263ba132721bb9d7"
    "a84c4f0380b2a6756fd601331c8870234dec878504c174144fa4b14b66a651691606d8173e55bd37e381569ea3"
    "7c307a3078060a2b0601040183a25a0101046a3068042408011220a77f1d92fedb59dddaea5a1c4abd1ac2fbde"
    "7d7b879ed364501809923d7c11b90440d90d2769db992d5e6195dbb08e706b6651e024fda6cfb8846694a43551"
    "9941cac215a8207792e42849cccc6cd8136c6e4bde92a58c5e08cfd4206eb5fe0bf909300a06082a8648ce3d04"
    "03020346003043021f50f6b6c52711a881778718238f650c9fb48943ae6ee6d28427dc6071ae55e702203625f1"
    "16a7a454db9c56986c82a25682f7248ea1cb764d322ea983ed36a31b77"
)
ECDSA = bytes.fromhex(
    "308201f63082019da0030201020204499602d2300a06082a8648ce3d040302302031123010060355040a13096c"
    "69627032702e696f310a300806035504051301313020170d3735303130313133303030305a180f343039363031"
    "30313133303030305a302031123010060355040a13096c69627032702e696f310a300806035504051301313059"
    "301306072a8648ce3d020106082a8648ce3d030107034200040c901d423c831ca85e27c73c263ba132721bb9d7"
    "a84c4f0380b2a6756fd601331c8870234dec878504c174144fa4b14b66a651691606d8173e55bd37e381569ea3"
    "81c23081bf3081bc060a2b0601040183a25a01010481ad3081aa045f0803125b3059301306072a8648ce3d0201"
    "06082a8648ce3d03010703420004bf30511f909414ebdd3242178fd290f093a551cf75c973155de0bb5a96fedf"
    "6cb5d52da7563e794b512f66e60c7f55ba8a3acf3dd72a801980d205e8a1ad29f2044730450220064ea8124774"
    "caf8f50e57f436aa62350ce652418c019df5d98a3ac666c9386a022100aa59d704a931b5f72fb9222cb6cc51f9"
    "54d04a4e2e5450f8805fe8918f71eaae300a06082a8648ce3d04030203470030440220799395b0b6c1e940a7e4"
    "484705f610ab51ed376f19ff9d7c16757cfbf61b8d4302206205c03fbb0f95205c779be86581d3e31c01871ad5"
    "d1f3435bcf375cb0e5088a"
)
SECP256K1 = bytes.fromhex(
    "308201ba3082015fa0030201020204499602d2300a06082a8648ce3d040302302031123010060355040a13096c"
    "69627032702e696f310a300806035504051301313020170d3735303130313133303030305a180f343039363031"
    "30313133303030305a302031123010060355040a13096c69627032702e696f310a300806035504051301313059"
    "301306072a8648ce3d020106082a8648ce3d030107034200040c901d423c831ca85e27c73c263ba132721bb9d7"
    "a84c4f0380b2a6756fd601331c8870234dec878504c174144fa4b14b66a651691606d8173e55bd37e381569ea3"
    "8184308181307f060a2b0601040183a25a01010471306f0425080212210206dc6968726765b820f050263ececf"
    "7f71e4955892776c0970542efd689d2382044630440220145e15a991961f0d08cd15425bb95ec93f6ffa03c5a3"
    "85eedc34ecf464c7a8ab022026b3109b8a3f40ef833169777eb2aa337cfb6282f188de0666d1bcec2a4690dd30"
    "0a06082a8648ce3d0403020349003046022100e1a217eeef9ec9204b3f774a08b70849646b6a1e6b8b27f93dc0"
    "0ed58545d9fe022100b00dafa549d0f03547878338c7b15e7502888f6d45db387e5ae6b5d46899cef0"
)
MISMATCHED = bytes.fromhex(
    "308201f73082019da0030201020204499602d2300a06082a8648ce3d040302302031123010060355040a13096c"
    "69627032702e696f310a300806035504051301313020170d3735303130313133303030305a180f343039363031"
    "30313133303030305a302031123010060355040a13096c69627032702e696f310a300806035504051301313059"
    "301306072a8648ce3d020106082a8648ce3d030107034200040c901d423c831ca85e27c73c263ba132721bb9d7"
    "a84c4f0380b2a6756fd601331c8870234dec878504c174144fa4b14b66a651691606d8173e55bd37e381569ea3"
    "81c23081bf3081bc060a2b0601040183a25a01010481ad3081aa045f0803125b3059301306072a8648ce3d0201"
    "06082a8648ce3d03010703420004bf30511f909414ebdd3242178fd290f093a551cf75c973155de0bb5a96fedf"
    "6cb5d52da7563e794b512f66e60c7f55ba8a3acf3dd72a801980d205e8a1ad29f204473045022100bb6e03577b"
    "7cc7a3cd1558df0da2b117dfdcc0399bc2504ebe7de6f65cade72802206de96e2a5be9b6202adba24ee0362e49"
    "0641ac45c240db71fe955f2c5cf8df6e300a06082a8648ce3d0403020348003045022100e847f267f43717358f"
    "850355bdcabbefb2cfbf8a3c043b203a14788a092fe8db022027c1d04a2d41fd6b57a7e8b3989e470325de4406"
    "e52e084e34a3fd56eef0d0df"
)

ALICE = Identity.from_seed(bytes(range(32)))
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
SPKI = KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
SIGNED = b"libp2p-tls-handshake:" + SPKI


def element(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    return bytes([tag, 0x82]) + size.to_bytes(2) + content


def public_key(kind: int, data: bytes) -> bytes:
    size = len(data)
    length = bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])
    return bytes([8, kind, 0x12]) + length + data


ALICE_KEY = public_key(1, ALICE.public_key)


def signed_key(encoded: bytes = ALICE_KEY, signature: bytes | None = None) -> bytes:
    signature = ALICE.sign_for_libp2p(SIGNED) if signature is None else signature
    return element(0x30, element(4, encoded) + element(4, signature))


def build(
    content: bytes | None,
    *,
    critical: bool = False,
    change: Callable[[x509.CertificateBuilder], x509.CertificateBuilder] = lambda builder: builder,
    signer: Ed25519PrivateKey = KEY,
    issuer: str | None = None,
) -> bytes:
    """Return a certificate with `content` in the libp2p extension, varied by other arguments."""
    day = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    name = [] if issuer is None else [x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]
    builder = (
        x509.CertificateBuilder(x509.Name(name), x509.Name([]), KEY.public_key(), 5)
        .not_valid_before(day)
        .not_valid_after(day + datetime.timedelta(days=1))
    )
    if content is not None:
        extension = x509.UnrecognizedExtension(LIBP2P_EXTENSION, content)
        builder = builder.add_extension(extension, critical=critical)
    return change(builder).sign(signer, None).public_bytes(Encoding.DER)


def refused(der: bytes) -> str:
    with pytest.raises(TransportError) as caught:
        peer_of_certificate(der)
    assert caught.value.code == "bad-certificate"
    return caught.value.message


def test_the_specification_s_certificate() -> None:
    assert peer_of_certificate(ED25519) == "12D3KooWM6CgA9iBFZmcYAHA6A2qvbAxqfkmrYiRQuz3XEsk4Ksv"


@pytest.mark.parametrize("der", [ECDSA, SECP256K1, MISMATCHED])
def test_the_specification_s_certificates_of_other_identities_are_refused(der: bytes) -> None:
    assert "Ed25519" in refused(der)


def test_our_certificate_proves_our_peer_id() -> None:
    ours = Certificate.generate(ALICE, RealHost())
    assert peer_of_certificate(ours.der) == ALICE.peer
    assert len(ours.der) == len(Certificate.generate(ALICE, RealHost()).der)
    assert ours.der != Certificate.generate(ALICE, RealHost()).der


def test_the_builder_of_these_tests_makes_valid_certificates() -> None:
    assert (
        peer_of_certificate(build(signed_key())) == ALICE.peer
    )  # long expired: dates mean nothing
    assert peer_of_certificate(build(signed_key(), critical=True)) == ALICE.peer


def test_a_certificate_without_extension_is_refused() -> None:
    assert "no libp2p extension" in refused(build(None))


def test_the_extension_signs_this_certificates_key() -> None:
    other = ALICE.sign_for_libp2p(SIGNED[:-1] + b"x")
    assert "signature" in refused(build(signed_key(signature=other)))
    bare = ALICE.sign_for_libp2p(SPKI)
    assert "signature" in refused(build(signed_key(signature=bare)))


def test_another_peer_id_cannot_be_claimed() -> None:
    bob = public_key(1, Identity.from_seed(bytes(32)).public_key)
    assert "signature" in refused(build(signed_key(bob)))


def test_the_self_signature_is_checked() -> None:
    stranger = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
    assert "signature" in refused(build(signed_key(), signer=stranger))
    refused(build(signed_key(), issuer="somebody else"))


def test_an_unknown_critical_extension_is_refused() -> None:
    unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"x")

    def add(critical: bool) -> Callable[[x509.CertificateBuilder], x509.CertificateBuilder]:
        return lambda builder: builder.add_extension(unknown, critical=critical)

    assert "critical extension 1.2.3.4" in refused(build(signed_key(), change=add(True)))
    assert peer_of_certificate(build(signed_key(), change=add(False))) == ALICE.peer


def test_parser_warnings_are_refusals() -> None:
    """A negative serial number, otherwise well signed."""
    signed = x509.load_der_x509_certificate(build(signed_key())).tbs_certificate_bytes
    at = signed.index(b"\x02\x01\x05")
    bent = signed[:at] + b"\x02\x01\x85" + signed[at + 3 :]
    algorithm = b"\x30\x05\x06\x03\x2b\x65\x70"
    der = element(0x30, bent + algorithm + b"\x03\x41\x00" + KEY.sign(bent))
    assert "serial number" in refused(der)


def test_the_size_is_limited() -> None:
    filler = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), bytes(CERTIFICATE_BYTES))
    big = build(signed_key(), change=lambda builder: builder.add_extension(filler, False))
    assert "more than" in refused(big)


GOOD = ALICE.sign_for_libp2p(SIGNED)
P256 = ec.derive_private_key(5, ec.SECP256R1()).public_key()
P256_SPKI = P256.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x30",
        b"\x30\x00",
        b"\x30\x84\xff\xff\xff\xff",
        b"\x30\x80\x00\x00",
        signed_key() + b"\x00",
        signed_key()[:-1],
        element(0x31, signed_key()[2:]),
        element(0x30, element(4, ALICE_KEY) + element(4, GOOD) + b"\x05\x00"),
        element(0x30, element(4, ALICE_KEY) + element(3, GOOD)),
        element(0x30, element(4, ALICE_KEY)),
        signed_key(b""),
        signed_key(ALICE_KEY + b"\x00"),
        signed_key(public_key(1, ALICE.public_key[:-1])),
        signed_key(b"\x08\x07" + ALICE_KEY[2:]),
        signed_key(b"\x12\x20" + ALICE.public_key + b"\x08\x01"),
        signed_key(public_key(2, ALICE.public_key)),
        signed_key(public_key(2, b"\x02" + b"\xff" * 32)),
        signed_key(public_key(3, ALICE.public_key)),
        signed_key(public_key(3, SPKI)),
        signed_key(public_key(3, P256_SPKI)),
        signed_key(public_key(0, P256_SPKI)),
        signed_key(signature=b""),
    ],
)
def test_malformed_extensions_are_refused(content: bytes) -> None:
    refused(build(content))


HUGE = 2**3071 + 1  # the largest kind of exponent that a 3072-bit key can have
MODULUS = 2**3072 - 1  # not a real key: the cost of verifying depends on its size alone
RSA_IDENTITY = public_key(
    0,
    rsa.RSAPublicNumbers(HUGE, MODULUS)
    .public_key()
    .public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
)


def rsa_certificate(exponent: int, identity: bytes = ALICE_KEY) -> bytes:
    """Return a certificate on an RSA key of 3072 bits, with an invalid signature of 384 bytes."""
    key = rsa.RSAPublicNumbers(exponent, MODULUS).public_key()
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    template = x509.load_der_x509_certificate(build(signed_key(identity))).tbs_certificate_bytes
    algorithm = bytes.fromhex("300d06092a864886f70d01010b0500")
    body = template[2 + (template[1] & 0x7F) :].replace(SPKI, spki)
    body = body.replace(bytes.fromhex("300506032b6570"), algorithm, 1)
    return element(0x30, element(0x30, body) + algorithm + element(3, bytes(1) + bytes(384)))


@pytest.fixture
def verifications(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the signatures that are verified, valid or not."""
    done = list[str]()
    real = identity.verify_raw

    def verify(key: bytes, data: bytes, signature: bytes) -> bool:
        done.append("identity")
        return real(key, data, signature)

    class Loaded:
        def __init__(self, der: bytes) -> None:
            self._real = x509.load_der_x509_certificate(der)

        def verify_directly_issued_by(self, issuer: "Loaded") -> None:
            done.append("certificate")
            self._real.verify_directly_issued_by(issuer._real)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    monkeypatch.setattr(certificate, "verify_raw", verify)
    monkeypatch.setattr(certificate, "_load", Loaded)
    certificate._check_once.cache_clear()
    return done


def test_ordinary_certificates_are_verified(verifications: list[str]) -> None:
    assert peer_of_certificate(build(signed_key())) == ALICE.peer
    assert verifications == ["certificate", "identity"]
    verifications.clear()
    refused(rsa_certificate(65537))
    assert verifications == ["certificate"]


def test_a_valid_certificate_is_verified_once(verifications: list[str]) -> None:
    valid, invalid = build(signed_key()), rsa_certificate(65537)
    for _ in range(3):
        assert peer_of_certificate(valid) == ALICE.peer
        refused(invalid)
    assert verifications == ["certificate", "identity", *3 * ["certificate"]]


def test_few_certificates_are_remembered() -> None:
    remembered = certificate._check_once.cache_parameters()["maxsize"]
    assert remembered is not None and remembered * CERTIFICATE_BYTES <= MIB


@pytest.mark.parametrize(
    "der",
    [
        rsa_certificate(HUGE),
        rsa_certificate(2**31 + 1),
        rsa_certificate(65537, RSA_IDENTITY),
        build(signed_key(RSA_IDENTITY)),
        ECDSA,
        SECP256K1,
    ],
)
def test_expensive_certificates_are_refused_before_verification(
    der: bytes, verifications: list[str]
) -> None:
    assert "key" in refused(der)
    assert verifications == []


def test_a_huge_exponent_costs_no_more_than_an_ordinary_certificate() -> None:
    ordinary, huge = build(signed_key()), rsa_certificate(HUGE)

    def cost(function: Callable[[], object]) -> float:
        best = 1.0
        for _ in range(5):
            began = process_time()
            for _ in range(4):
                function()
            best = min(best, process_time() - began)
        return best

    ours = cost(lambda: certificate._check(ordinary))
    assert "expensive" in refused(huge)
    assert cost(lambda: refused(huge)) < 3 * ours
    key = rsa.RSAPublicNumbers(HUGE, MODULUS).public_key()

    def verify() -> None:
        with suppress(InvalidSignature):
            key.verify(bytes(384), b"", padding.PKCS1v15(), hashes.SHA256())

    assert cost(verify) > 10 * ours, "it would be expensive"


def test_flipped_bytes_never_pass_and_raise_only_transport_errors() -> None:
    der = Certificate.generate(ALICE, RealHost()).der
    unsigned = len(der) - 65  # count of the signature's unused bits: covered by nothing
    for at in set(range(len(der))) - {unsigned}:
        for flip in (0x01, 0x80, 0xFF):
            bent = der[:at] + bytes([der[at] ^ flip]) + der[at + 1 :]
            refused(bent)
        refused(der[:at])
    refused(der + b"\x00")

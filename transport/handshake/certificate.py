"""Certificates that prove a libp2p identity (libp2p specification, `tls/tls.md`).

A temporary key signs its own certificate. An extension contains the identity's public key, and its
signature over the temporary key, which ties the TLS session to the peer id. Dates are ignored,
because the clocks of nodes are often wrong and the signature does not expire.
"""

import datetime
import hashlib
import warnings
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.utils import CryptographyDeprecationWarning
from OpenSSL import SSL

from ..defaults import CERTIFICATE_BYTES, CERTIFICATES
from ..errors import TransportError
from ..host.seam import Host
from ..identity import Identity, PeerId, base58_encode, verify_raw

LIBP2P_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
_HANDSHAKE_WORD = b"libp2p-tls-handshake:"
_ED25519_PREFIX = b"\x08\x01\x12\x20"  # key type and length in the libp2p PublicKey protobuf
_KEY_BYTES = 32
_RSA_BITS = 8192  # go-libp2p accepts the same maximum
_RSA_EXPONENT = 2**31
_CURVES = ec.SECP256R1, ec.SECP384R1, ec.SECP521R1
_SEQUENCE, _OCTETS = 0x30, 0x04
# The dates of the specification's test certificates. They have no meaning here.
_NOT_BEFORE = datetime.datetime(1975, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(4096, 1, 1, tzinfo=datetime.UTC)
UNREADABLE = (  # errors that the parser raises for malformed bytes
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    CryptographyDeprecationWarning,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its temporary key, for any number of connections.

    The key is an Ed25519 key, so that every certificate and every handshake has the same size.
    `contexts` caches the TLS contexts that `tls.py` creates from the certificate: under True for a
    server, and under False for a client.
    """

    x509: x509.Certificate
    key: Ed25519PrivateKey = field(repr=False)
    contexts: dict[bool, SSL.Context] = field(default_factory=dict, repr=False, compare=False)

    @property
    def tie(self) -> bytes:
        """16 hex digits that identify this certificate without revealing anything else about it."""
        return hashlib.sha256(b"shoal/tie/1\0" + _spki(self.key)).hexdigest()[:16].encode()

    @classmethod
    def generate(cls, identity: Identity, host: Host) -> "Certificate":
        """Create a certificate for `identity`. Its key is made from the host's entropy."""
        key = Ed25519PrivateKey.from_private_bytes(host.entropy(32))
        extension = x509.UnrecognizedExtension(LIBP2P_EXTENSION, _signed_key(identity, _spki(key)))
        serial = 0x40 << 56 | int.from_bytes(hashlib.sha256(_spki(key)).digest()[:7])  # 8 bytes
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(x509.Name([]))
            .public_key(key.public_key())
            .serial_number(serial)
            .not_valid_before(_NOT_BEFORE)
            .not_valid_after(_NOT_AFTER)
            .add_extension(extension, critical=False)
            .sign(key, None)
        )
        return cls(certificate, key)

    @property
    def der(self) -> bytes:
        """The DER encoding, as sent to the peer."""
        return self.x509.public_bytes(Encoding.DER)


def peer_of_certificate(der: bytes) -> PeerId:
    """Check a certificate (DER), and return the peer id that it proves.

    A node presents the same certificate on every connection until it ends. So a process remembers
    the certificates that it has found valid lately.

    Only Ed25519 identities are accepted. Raises TransportError with code `bad-certificate` if the
    certificate is invalid. One that would be expensive to verify is refused before any signature is
    checked.
    """
    if len(der) > CERTIFICATE_BYTES:
        raise _bad(f"it has more than {CERTIFICATE_BYTES} bytes")
    return _check_once(der)


def _check(der: bytes) -> PeerId:
    try:
        certificate = _load(der)
        public_key, signature = _read_signed_key(_libp2p_extension(certificate))
        identity_key(public_key)
        _check_carrier(certificate.public_key())  # before the first signature is verified
        certificate.verify_directly_issued_by(certificate)
        return check_signature(public_key, _HANDSHAKE_WORD + _spki(certificate), signature)
    except InvalidSignature:
        raise _bad("it has a wrong signature") from None
    except UNREADABLE as error:
        raise _bad(f"it cannot be read ({str(error)[:80]})") from None


# Checking takes 0.3 ms. The result depends only on the bytes. Refusals are not remembered. The
# handshake proves in every connection that the peer has the certificate's key.
_check_once = lru_cache(maxsize=CERTIFICATES)(_check)


def _load(der: bytes) -> x509.Certificate:
    """Parse a certificate. Raises an error also for faults about which the parser only warns, such
    as a negative serial number."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CryptographyDeprecationWarning)
        return x509.load_der_x509_certificate(der)


def _bad(reason: str) -> TransportError:
    """Return the error with which the peer's certificate is refused."""
    return TransportError("bad-certificate", f"the peer's certificate is refused: {reason}")


def _spki(holder: Ed25519PrivateKey | x509.Certificate) -> bytes:
    """Return the public key in the form that is signed (SubjectPublicKeyInfo, DER)."""
    return holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _libp2p_extension(certificate: x509.Certificate) -> bytes:
    """Return the content of the libp2p extension.

    Raises TransportError if there is none, or if there is an unknown critical extension.
    """
    found = None
    for extension in certificate.extensions:
        if extension.oid == LIBP2P_EXTENSION:
            found = extension.value
        elif extension.critical:
            raise _bad(f"it has the critical extension {extension.oid.dotted_string}")
    if not isinstance(found, x509.UnrecognizedExtension):
        raise _bad("it has no libp2p extension")
    return found.value


def _signed_key(identity: Identity, spki: bytes) -> bytes:
    """Encode the content of the libp2p extension in DER.

    SignedKey ::= SEQUENCE { publicKey OCTET STRING, signature OCTET STRING }. With an Ed25519 key,
    each length fits in one byte.
    """
    encoded = _ED25519_PREFIX + identity.public_key
    signature = identity.sign_for_libp2p(_HANDSHAKE_WORD + spki)
    body = bytes([_OCTETS, len(encoded)]) + encoded + bytes([_OCTETS, len(signature)]) + signature
    return bytes([_SEQUENCE, len(body)]) + body


def _read_signed_key(data: bytes) -> tuple[bytes, bytes]:
    """Decode the content of the libp2p extension. Return (public key, signature).

    Raises ValueError if it is malformed.
    """
    body, rest = _read_der(_SEQUENCE, data)
    public_key, after_key = _read_der(_OCTETS, body)
    signature, after = _read_der(_OCTETS, after_key)
    if rest or after:
        raise ValueError("bytes after the libp2p extension's content")
    return public_key, signature


def _read_der(tag: int, data: bytes) -> tuple[bytes, bytes]:
    """Return (content of one DER element of up to 65535 bytes, bytes that follow it).

    Raises ValueError if the element is malformed or has another tag.
    """
    if len(data) < 2 or data[0] != tag:
        raise ValueError("the libp2p extension is not a SignedKey")
    start, size = 2, data[1]
    if size > 0x80:
        start = 2 + (size & 0x7F)
        size = int.from_bytes(data[2:start])
    if start > 4 or len(data) < start + size:
        raise ValueError("a length in the libp2p extension is wrong")
    return data[start : start + size], data[start + size :]


def identity_key(encoded: bytes) -> bytes:
    """Return the raw Ed25519 key in a libp2p PublicKey protobuf.

    Raises ValueError for other kinds of keys, and for any encoding but the canonical one. Peers of
    this project have only Ed25519 keys, and with other kinds an attacker could choose how expensive
    it is to verify a signature (ADR 0023).
    """
    if len(encoded) != len(_ED25519_PREFIX) + _KEY_BYTES or encoded[:4] != _ED25519_PREFIX:
        raise ValueError("the identity key is not an Ed25519 key")
    return encoded[len(_ED25519_PREFIX) :]


def _check_carrier(key: object) -> None:
    """Check that a certificate's own key is of a kind that TLS 1.3 signs with, and is cheap to
    verify.

    For example, RSA with a huge exponent costs 16 ms. Raises ValueError if the key is not accepted.
    """
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size > _RSA_BITS or key.public_numbers().e > _RSA_EXPONENT:
            raise ValueError("its key is an RSA key that is expensive to verify with")
    elif isinstance(key, ec.EllipticCurvePublicKey):
        if not isinstance(key.curve, _CURVES):
            raise ValueError("its key is on a curve that TLS 1.3 does not sign with")
    elif not isinstance(key, Ed25519PublicKey):
        raise ValueError("its key is neither an Ed25519, an ECDSA, nor an RSA key")


def check_signature(encoded: bytes, data: bytes, signature: bytes) -> PeerId:
    """Check a signature by an encoded identity key, and return the peer id of that key.

    Raises ValueError if the key is malformed, and InvalidSignature if the signature is wrong.
    """
    if not verify_raw(identity_key(encoded), data, signature):
        raise InvalidSignature
    return PeerId(base58_encode(bytes([0, len(encoded)]) + encoded))

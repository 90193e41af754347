"""Server certificate that QUIC requires. It authenticates nothing: the link's own TLS inside of the
stream does."""

import datetime
import hashlib
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..host.seam import Host

# Constant dates and a serial number of 8 bytes give all certificates the same size.
_NOT_BEFORE = datetime.datetime(1975, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(4096, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate and its disposable key."""

    x509: x509.Certificate
    key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def generate(cls, host: Host) -> "Certificate":
        """Generate a certificate with a key from the host's entropy."""
        key = Ed25519PrivateKey.from_private_bytes(host.entropy(32))
        digest = hashlib.sha256(key.public_key().public_bytes_raw()).digest()
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(x509.Name([]))
            .public_key(key.public_key())
            .serial_number(0x40 << 56 | int.from_bytes(digest[:7]))
            .not_valid_before(_NOT_BEFORE)
            .not_valid_after(_NOT_AFTER)
            .sign(key, None)
        )
        return cls(made, key)

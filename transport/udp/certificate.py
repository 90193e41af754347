"""Server certificate that QUIC requires. It authenticates nothing, because the TLS of the link,
inside the QUIC stream, authenticates the peer."""

import datetime
import hashlib
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..host.seam import Host

# The dates are constant and the serial number always has 8 bytes, so that all certificates have the
# same size.
_NOT_BEFORE = datetime.datetime(1975, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(4096, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class QuicCertificate:
    """A self-signed certificate, and its private key, which is used for nothing else."""

    x509: x509.Certificate
    key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def generate(cls, host: Host) -> "QuicCertificate":
        """Return a new certificate, with a key created from the host's entropy."""
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

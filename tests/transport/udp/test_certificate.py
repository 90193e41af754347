"""The certificate that proves nothing."""

from cryptography.hazmat.primitives.serialization import Encoding

from shoal.transport.host.real import RealHost
from shoal.transport.udp.certificate import QuicCertificate


class Fixed(RealHost):
    """A host whose entropy repeats."""

    def entropy(self, size: int) -> bytes:
        return bytes(size)


def test_its_key_is_the_host_s_entropy_and_its_size_never_changes() -> None:
    one, two = (QuicCertificate.generate(RealHost()) for _ in range(2))
    assert one.key.private_bytes_raw() != two.key.private_bytes_raw()
    assert len(one.x509.public_bytes(Encoding.DER)) == len(two.x509.public_bytes(Encoding.DER))
    assert QuicCertificate.generate(Fixed()).key.private_bytes_raw() == bytes(32)
    one.x509.verify_directly_issued_by(one.x509)

"""py-libp2p itself: what we understand of it, and that starting does not import it."""

import subprocess
import sys

from cryptography.hazmat.primitives.serialization import Encoding

from shoal.transport.handshake.certificate import peer_of_certificate
from tests.transport.libp2p.pipes import OURS


def test_certificates_of_py_libp2p_are_understood() -> None:
    """(Its own check, in 0.8.1, fails on any certificate with an Ed25519 key, such as ours.)"""
    from cryptography import x509
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.security.tls.certificate import create_cert_template, generate_certificate

    pair = create_new_key_pair(OURS.seed)
    pem, _ = generate_certificate(pair.private_key, create_cert_template())
    theirs = x509.load_pem_x509_certificate(pem.encode())
    assert peer_of_certificate(theirs.public_bytes(Encoding.DER)) == OURS.peer


def test_our_modules_do_not_import_py_libp2p() -> None:
    code = (
        "import sys, shoal.transport.libp2p, shoal.transport.libp2p.client;"
        "assert 'libp2p' not in sys.modules and 'noise' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

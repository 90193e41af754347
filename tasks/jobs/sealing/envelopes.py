"""Encryption of one message, for a public key or under a secret that several nodes share. No I/O.

Each envelope has a key of its own, so the nonce is constant: an ephemeral X25519 key, or a random
salt, goes into HKDF-SHA256. The cipher is ChaCha20-Poly1305. The context is authenticated and says
what the message is, so an envelope cannot be opened in another place. HPKE (RFC 9180) would do the
same, but the `cryptography` package takes its ephemeral key from the operating system, and a
simulation could not be repeated. Spec: docs/spec/sealing.md.
"""

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SEED_BYTES: Final = 32  # of the entropy for one envelope
OVERHEAD: Final = SEED_BYTES + 16 + 1
"""Bytes that an envelope has more than its padded message: key or salt, tag, end of the message."""
LEAST: Final = 256  # bytes to which the shortest messages are padded
_NONCE: Final = bytes(12)  # each key is used once
_END: Final = b"\x80"


class Unopened(Exception):
    """An envelope was made with another key or for another place, or was changed."""


def padded_size(size: int, most: int) -> int:
    """Return the size to which a message of `size` bytes is padded, with its end: at most 12 %
    more, and not over `most`.

    The padded size has as many significant bits as its exponent has digits in binary (Padmé,
    Nikitin et al. 2019).
    """
    size = max(size + 1, LEAST)
    exponent = size.bit_length() - 1
    free = exponent - exponent.bit_length()
    padded = (size + (1 << free) - 1) >> free << free
    return max(min(padded, most), size)


def seal_for(public: bytes, data: bytes, context: bytes, seed: bytes, most: int) -> bytes:
    """Encrypt a message for the owner of an X25519 key. `seed` has 32 fresh random bytes.

    Raises ValueError if `public` is not a valid key.
    """
    ephemeral = X25519PrivateKey.from_private_bytes(seed)
    shown = ephemeral.public_key().public_bytes_raw()
    shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(public))
    key = derived(shared, b"", context + shown + public)
    return shown + _encrypted(key, data, context, most)


def open_for(private: X25519PrivateKey, envelope: bytes, context: bytes) -> bytes:
    """Decrypt a message that was sealed for this key. Raises Unopened if that fails."""
    shown = envelope[:SEED_BYTES]
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(shown))
    except ValueError:
        raise Unopened from None
    public = private.public_key().public_bytes_raw()
    return _decrypted(derived(shared, b"", context + shown + public), envelope, context)


def seal_under(secret: bytes, data: bytes, context: bytes, salt: bytes, most: int) -> bytes:
    """Encrypt a message for all that know a secret. `salt` has 32 fresh random bytes."""
    return salt + _encrypted(derived(secret, salt, context), data, context, most)


def open_under(secret: bytes, envelope: bytes, context: bytes) -> bytes:
    """Decrypt a message that was sealed under a secret. Raises Unopened if that fails."""
    return _decrypted(derived(secret, envelope[:SEED_BYTES], context), envelope, context)


def private_key(secret: bytes, context: bytes) -> X25519PrivateKey:
    """Return the X25519 key that follows from a secret and a context."""
    return X25519PrivateKey.from_private_bytes(derived(secret, b"", context))


def _encrypted(key: bytes, data: bytes, context: bytes, most: int) -> bytes:
    """Encrypt a padded message, so that the whole envelope has at most `most` bytes if it can."""
    size = padded_size(len(data), most - OVERHEAD + 1)
    padded = (data + _END).ljust(size, b"\0")
    return ChaCha20Poly1305(key).encrypt(_NONCE, padded, context)


def _decrypted(key: bytes, envelope: bytes, context: bytes) -> bytes:
    try:
        padded = ChaCha20Poly1305(key).decrypt(_NONCE, envelope[SEED_BYTES:], context)
    except InvalidTag:
        raise Unopened from None
    data, end, _ = padded.rpartition(_END)
    if not end:
        raise Unopened
    return data


def derived(secret: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=salt or None, info=info).derive(secret)

"""Noise XX with libp2p's payload, without I/O.

Implements Noise_XX_25519_ChaChaPoly_SHA256 (The Noise Protocol Framework, revision 34, sections 5
and 7.5) in frames with a length prefix of 2 bytes. The payload of the handshake ties the static key
to the peer id (libp2p specification, `noise/README.md`). Keys come from the host's entropy. Early
data is neither sent nor used.
"""

import hmac
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from ..identity import Identity
from ..lane.frame import Fault
from . import defaults
from .package import decode, encode_key, package, proven_peer

_NAME: Final = b"Noise_XX_25519_ChaChaPoly_SHA256"  # 32 bytes, so it is itself the first hash
_STATIC_KEY_WORD: Final = b"noise-libp2p-static-key:"
_KEY_BYTES: Final = 32
_TAG_BYTES: Final = 16
_LENGTH_BYTES: Final = 2
_PLAINTEXT_BYTES: Final = defaults.NOISE_MESSAGE_BYTES - _TAG_BYTES
_NONCES: Final = 1 << 64


class Cipher:
    """Cipher of one direction: a key, and a counter that never repeats (Noise framework, section
    5.1)."""

    def __init__(self, key: bytes) -> None:
        self._aead = ChaCha20Poly1305(key)
        self._count = 0

    def encrypt(self, plaintext: bytes, associated: bytes = b"") -> bytes:
        """Encrypt a message. `associated` is authenticated but not encrypted."""
        return self._aead.encrypt(self._nonce(), plaintext, associated)

    def decrypt(self, ciphertext: bytes, associated: bytes = b"") -> bytes:
        """Decrypt a message. Raises Fault (`bad-noise`) if it was changed."""
        try:
            return self._aead.decrypt(self._nonce(), ciphertext, associated)
        except InvalidTag:
            raise Fault("bad-noise") from None

    def _nonce(self) -> bytes:
        """Return the next nonce. Raises Fault when all have been used."""
        count = self._count
        self._count += 1
        if self._count >= _NONCES:
            raise Fault("bad-noise")
        return bytes(4) + count.to_bytes(8, "little")


def _derive(chaining: bytes, material: bytes) -> tuple[bytes, bytes]:
    """Apply HKDF with two outputs (Noise framework, section 4.3)."""
    secret = hmac.digest(chaining, material, "sha256")
    first = hmac.digest(secret, b"\x01", "sha256")
    return first, hmac.digest(secret, first + b"\x02", "sha256")


class Handshake:
    """Symmetric state and the three messages of the pattern XX (Noise framework, section 7.5).

    The `initiator` writes the first message. Calls of `write` and `read` alternate. After the third
    message, `split` returns the ciphers.
    """

    def __init__(self, *, initiator: bool, static: bytes, ephemeral: bytes) -> None:
        self._initiator = initiator
        self._static = X25519PrivateKey.from_private_bytes(static)
        self._ephemeral = X25519PrivateKey.from_private_bytes(ephemeral)
        self._hash = self._chaining = _NAME
        self._cipher: Cipher | None = None
        self._their_ephemeral: X25519PublicKey | None = None
        self.their_static: X25519PublicKey | None = None
        self._mix_hash(b"")  # no prologue

    @property
    def static_key(self) -> bytes:
        """The public static key of this side."""
        return self._static.public_key().public_bytes_raw()

    def write(self, step: int, payload: bytes = b"") -> bytes:
        """Encode a message of this side (`step` is 0, 1 or 2) with its payload."""
        out = b""
        if step < 2:
            key = self._ephemeral.public_key().public_bytes_raw()
            self._mix_hash(key)
            out += key
        if step == 1:
            self._mix_key(self._ephemeral, self._their_ephemeral)
        if step > 0:
            out += self._encrypt(self.static_key)
            self._mix_key(self._static, self._their_ephemeral)
        return out + self._encrypt(payload)

    def read(self, step: int, message: bytes) -> bytes:
        """Decode a message of the other side (`step` is 0, 1 or 2), and return its payload.

        Raises Fault (`bad-noise`) if it is malformed.
        """
        if step < 2:
            key, message = message[:_KEY_BYTES], message[_KEY_BYTES:]
            if len(key) != _KEY_BYTES:
                raise Fault("bad-noise")
            self._mix_hash(key)
            self._their_ephemeral = X25519PublicKey.from_public_bytes(key)
        if step == 1:
            self._mix_key(self._ephemeral, self._their_ephemeral)
        if step > 0:
            sealed = message[: _KEY_BYTES + _TAG_BYTES]
            message = message[_KEY_BYTES + _TAG_BYTES :]
            if len(sealed) != _KEY_BYTES + _TAG_BYTES:
                raise Fault("bad-noise")
            self.their_static = X25519PublicKey.from_public_bytes(self._decrypt(sealed))
            self._mix_key(self._ephemeral, self.their_static)
        return self._decrypt(message)

    def split(self) -> tuple[Cipher, Cipher]:
        """Return (cipher for sending, cipher for receiving) (Noise framework, section 5.2)."""
        first, second = map(Cipher, _derive(self._chaining, b""))
        return (first, second) if self._initiator else (second, first)

    def _mix_hash(self, data: bytes) -> None:
        """Add data to the handshake hash."""
        self._hash = sha256(self._hash + data).digest()

    def _mix_key(self, ours: X25519PrivateKey, theirs: X25519PublicKey | None) -> None:
        """Add the result of a key exchange to the chaining key, and create the next cipher."""
        assert theirs is not None
        try:
            shared = ours.exchange(theirs)
        except ValueError:  # a point of small order
            raise Fault("bad-noise") from None
        self._chaining, key = _derive(self._chaining, shared)
        self._cipher = Cipher(key)

    def _encrypt(self, data: bytes) -> bytes:
        """Encrypt data, if there is a cipher already, and add the result to the handshake hash."""
        sealed = data if self._cipher is None else self._cipher.encrypt(data, self._hash)
        self._mix_hash(sealed)
        return sealed

    def _decrypt(self, sealed: bytes) -> bytes:
        """Decrypt data, if there is a cipher already, and add the ciphertext to the handshake
        hash."""
        data = sealed
        if self._cipher is not None:
            if len(sealed) < _TAG_BYTES:
                raise Fault("bad-noise")
            data = self._cipher.decrypt(sealed, self._hash)
        self._mix_hash(sealed)
        return data


class Noise:
    """A secured connection. Pass what arrives to `receive`, and send what `outgoing` returns.

    `peer` is the libp2p peer id of the other end (of an Ed25519 key); None until it is
    authenticated. `expect` is the peer id that the other end must have; None accepts any. Methods
    raise Fault with code `bad-noise` for a malformed or changed message, `bad-identity` if the
    other end does not prove its identity, and `wrong-peer` if that is not the expected one.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        initiator: bool,
        entropy: Callable[[int], bytes],
        expect: str | None = None,
    ) -> None:
        self.peer: str | None = None
        self._identity = identity
        self._expect = expect
        self._initiator = initiator
        self._handshake: Handshake | None = Handshake(
            initiator=initiator, static=entropy(_KEY_BYTES), ephemeral=entropy(_KEY_BYTES)
        )
        self._step = 0
        self._ciphers: tuple[Cipher, Cipher] | None = None
        self._buffer = bytearray()
        self._out = bytearray()
        if initiator:
            self._send(self._handshake.write(0) if self._handshake else b"")
            self._step = 1

    @property
    def established(self) -> bool:
        """Whether both ends are authenticated."""
        return self._ciphers is not None

    def receive(self, data: bytes) -> bytes:
        """Process received bytes, and return the plaintext in them."""
        self._buffer += data
        pieces = []
        while (message := self._next()) is not None:
            if self._ciphers is not None:
                pieces.append(self._ciphers[1].decrypt(message))
            elif self._handshake is not None:
                self._advance(self._handshake, message)
        return b"".join(pieces)

    def send(self, plaintext: bytes) -> None:
        """Encrypt bytes for the peer. Allowed only once both ends are authenticated."""
        assert self._ciphers is not None
        for start in range(0, len(plaintext), _PLAINTEXT_BYTES):
            piece = plaintext[start : start + _PLAINTEXT_BYTES]
            self._send(self._ciphers[0].encrypt(piece))

    def outgoing(self) -> bytes:
        """Return the bytes to send, and remove them from the buffer."""
        data = bytes(self._out)
        self._out.clear()
        return data

    def _next(self) -> bytes | None:
        """Return the next complete message, or None."""
        if len(self._buffer) < _LENGTH_BYTES:
            return None
        size = int.from_bytes(self._buffer[:_LENGTH_BYTES])
        if self._ciphers is None and size > defaults.NOISE_HANDSHAKE_BYTES:
            raise Fault("bad-noise")
        if len(self._buffer) < _LENGTH_BYTES + size:
            return None
        message = bytes(self._buffer[_LENGTH_BYTES : _LENGTH_BYTES + size])
        del self._buffer[: _LENGTH_BYTES + size]
        return message

    def _send(self, message: bytes) -> None:
        """Append a message with its length to the bytes to send."""
        self._out += len(message).to_bytes(_LENGTH_BYTES) + message

    def _advance(self, handshake: Handshake, message: bytes) -> None:
        """Process a handshake message, and queue the reply."""
        payload = handshake.read(self._step, message)
        if self._step:
            self._prove(payload, handshake)
        self._step += 1
        if self._step < 3:
            self._send(handshake.write(self._step, self._payload(handshake.static_key)))
            self._step += 1
        if self._step == 3:
            self._ciphers = handshake.split()
            self._handshake = None

    def _payload(self, static_key: bytes) -> bytes:
        """Encode NoiseHandshakePayload{identity_key, identity_sig}."""
        message = package().NoiseHandshakePayload(
            identity_key=encode_key(self._identity.public_key),
            identity_sig=self._identity.sign_for_libp2p(_STATIC_KEY_WORD + static_key),
        )
        return message.SerializeToString()

    def _prove(self, payload: bytes, handshake: Handshake) -> None:
        """Check that the other end's payload proves its identity, and set `peer`."""
        if handshake.their_static is None:
            raise Fault("bad-identity")
        message = decode(package().NoiseHandshakePayload, payload)
        signed = _STATIC_KEY_WORD + handshake.their_static.public_bytes_raw()
        peer = proven_peer(message.identity_key, signed, message.identity_sig)
        if self._expect is not None and peer != self._expect:
            raise Fault("wrong-peer")
        self.peer = peer

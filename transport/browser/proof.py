"""Proof of the peer ids of both ends of a data channel, by one signed message in each direction.

A browser cannot use the lane's TLS, whose certificates contain peer ids. DTLS uses certificates
without peer ids, whose fingerprints the ends exchange over HTTP. Each end therefore signs both
fingerprints, both nonces and both public keys with the key of its peer id (docs/spec/browser.md,
section 3). A man in the middle would have another fingerprint, so that the proof would fail.
Because of the nonces, the proof for one connection is not valid for another.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from ..identity import KEY_BYTES, SIGNATURE_BYTES, Identity, PeerId, peer_id_of, verify
from . import defaults

DIALLER: Final = "shoal/browser/dialler/1"
LISTENER: Final = "shoal/browser/listener/1"
_EXPORTER: Final = b"shoal/browser/exporter/1\0"
PROOF_BYTES: Final = 1 + KEY_BYTES + SIGNATURE_BYTES


@dataclass(frozen=True, slots=True)
class Meeting:
    """The values that both ends of a channel know. The dialler is the browser, the listener this
    node. Nonces and fingerprints have 32 bytes."""

    dialler_nonce: bytes
    listener_nonce: bytes
    dialler_fingerprint: bytes
    listener_fingerprint: bytes

    def transcript(self, dialler_key: bytes, listener_key: bytes) -> bytes:
        """Return the bytes to sign: 192 bytes, which are six parts of 32 bytes each.

        Raises ValueError if a part has another size.
        """
        parts = (
            self.dialler_nonce,
            self.listener_nonce,
            self.dialler_fingerprint,
            self.listener_fingerprint,
            dialler_key,
            listener_key,
        )
        if any(len(part) != defaults.NONCE_BYTES for part in parts):
            raise ValueError("a part of a transcript has 32 bytes")
        return b"".join(parts)

    def exporter(self, dialler_key: bytes, listener_key: bytes) -> bytes:
        """Return 32 bytes that identify this channel. Unlike the exporter of TLS they are not
        secret, and their users do not rely on secrecy."""
        return sha256(_EXPORTER + self.transcript(dialler_key, listener_key)).digest()


def prove(identity: Identity, role: str, transcript: bytes) -> bytes:
    """Return the message by which one end proves its peer id: the version, its public key, and its
    signature. `role` is `DIALLER` or `LISTENER`."""
    signature = identity.sign(role, transcript)
    return bytes([defaults.VERSION]) + identity.public_key + signature


def dialler_of(message: bytes, meeting: Meeting, listener_key: bytes) -> PeerId | None:
    """Return the browser's peer id that a message proves, or None if the proof is not valid."""
    key = _key_in(message)
    if key is None or key == listener_key:
        return None
    return _checked(message, DIALLER, key, meeting.transcript(key, listener_key))


def listener_of(message: bytes, meeting: Meeting, dialler_key: bytes) -> PeerId | None:
    """Return the node's peer id that a message proves, or None if the proof is not valid."""
    key = _key_in(message)
    if key is None or key == dialler_key:
        return None
    return _checked(message, LISTENER, key, meeting.transcript(dialler_key, key))


def _key_in(message: bytes) -> bytes | None:
    if len(message) != PROOF_BYTES or message[0] != defaults.VERSION:
        return None
    return message[1 : 1 + KEY_BYTES]


def _checked(message: bytes, role: str, key: bytes, transcript: bytes) -> PeerId | None:
    peer = peer_id_of(key)
    return peer if verify(peer, role, transcript, message[1 + KEY_BYTES :]) else None

"""Who is at each end of a data channel: one signed message each way, before anything else.

A browser cannot do the lane's TLS, whose certificates carry peer ids. DTLS joins two
certificates that mean nothing; each end tells the other their fingerprints by way of HTTP. So
each end signs, with the key of its peer id, what it saw: both fingerprints, both nonces, both
keys (docs/spec/browser.md, section 3). Whoever stands in between has another fingerprint, and
a proof for one connection is worth nothing on another.
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
    """What both ends of one channel know of it; the dialler is the browser. Nonces and
    fingerprints have 32 bytes."""

    dialler_nonce: bytes
    listener_nonce: bytes
    dialler_fingerprint: bytes
    listener_fingerprint: bytes

    def transcript(self, dialler_key: bytes, listener_key: bytes) -> bytes:
        """What is signed: 192 bytes, every part of fixed size."""
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
        """32 bytes that name this channel and no other. Unlike TLS's they are no secret; a mac
        over them needs none."""
        return sha256(_EXPORTER + self.transcript(dialler_key, listener_key)).digest()


def prove(identity: Identity, role: str, transcript: bytes) -> bytes:
    """The message of one end: the version, its key, its signature."""
    signature = identity.sign(role, transcript)
    return bytes([defaults.VERSION]) + identity.public_key + signature


def dialler_of(message: bytes, meeting: Meeting, listener_key: bytes) -> PeerId | None:
    """The browser that this message proves, None where it proves nobody."""
    key = _key_in(message)
    if key is None or key == listener_key:
        return None
    return _checked(message, DIALLER, key, meeting.transcript(key, listener_key))


def listener_of(message: bytes, meeting: Meeting, dialler_key: bytes) -> PeerId | None:
    """The node that this message proves, None where it proves nobody."""
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

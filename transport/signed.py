"""Signed envelopes, which prove the author of some bytes and the purpose that they were signed for.

An envelope is a MessagePack array [public key (32 bytes), signature (64), body]. The signature
covers the domain string and the exact bytes of the body, never a re-encoding. So an envelope can be
forwarded, and a signature for one protocol never counts in another.
"""

from typing import Annotated

from msgspec import Meta

from .decoding import read
from .errors import TransportError, Undecodable
from .identity import KEY_BYTES, SIGNATURE_BYTES, Identity, PeerId, peer_id_of, verify
from .message import PublicKey, Row, pack

ENVELOPE_OVERHEAD = 1 + 2 + KEY_BYTES + 2 + SIGNATURE_BYTES + 5  # bytes around a body, at most


class _Envelope(Row, frozen=True, forbid_unknown_fields=True):
    key: PublicKey
    signature: Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
    body: bytes


def seal(identity: Identity, domain: str, body: bytes) -> bytes:
    """Sign `body` for `domain` (a fixed string with one purpose, such as `shoal/member/1`)."""
    signature = identity.sign(domain, body)
    return pack(_Envelope(identity.public_key, signature, body))


def unseal(domain: str, data: bytes, *, limit: int) -> tuple[PeerId, bytes]:
    """Return the signer and the body of an envelope. `limit` bounds the body, in bytes.

    Raises `TransportError("too-large" | "bad-envelope" | "bad-signature")`.
    """
    if len(data) > limit + ENVELOPE_OVERHEAD:
        raise TransportError("too-large", f"a signed envelope holds more than {limit} bytes")
    public_key, signature, body = split(data, limit)
    peer = peer_id_of(public_key)
    if not verify(peer, domain, body, signature):
        raise TransportError("bad-signature", f"a signature by `{peer}` is wrong")
    return peer, body


def split(data: bytes, limit: int) -> tuple[bytes, bytes, bytes]:
    """Return the public key, signature and body of an envelope, without checking the signature.

    Raises `TransportError("bad-envelope")`.
    """
    try:
        envelope = read(_Envelope, data, limit=limit + ENVELOPE_OVERHEAD)
    except Undecodable:
        raise TransportError("bad-envelope", "a signed envelope is not readable") from None
    if len(envelope.body) > limit:
        raise TransportError("bad-envelope", "the body of a signed envelope is too large")
    return envelope.key, envelope.signature, envelope.body

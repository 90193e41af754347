"""Signed envelopes, which prove the signer of some bytes and the purpose.

An envelope is a MessagePack array [public key (32 bytes), signature (64 bytes), body]. The
signature covers the domain string, which names the purpose, and the exact bytes of the body. The
body is never re-encoded, so an envelope can be forwarded. A signature for one domain is not valid
in another.
"""

from typing import Annotated

from msgspec import Meta

from .decoding import read
from .errors import TransportError, Undecodable
from .identity import KEY_BYTES, SIGNATURE_BYTES, Identity, PeerId, peer_id_of, verify
from .message import PublicKey, Row, pack

# The most bytes that an envelope adds to its body.
ENVELOPE_OVERHEAD = 1 + 2 + KEY_BYTES + 2 + SIGNATURE_BYTES + 5


class _Envelope(Row, frozen=True, forbid_unknown_fields=True):
    key: PublicKey
    signature: Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
    body: bytes


def seal(identity: Identity, domain: str, body: bytes) -> bytes:
    """Return an envelope with `body`, signed for `domain`. A domain is a fixed string for one
    purpose, such as `shoal/member/1`."""
    signature = identity.sign(domain, body)
    return pack(_Envelope(identity.public_key, signature, body))


def unseal(domain: str, data: bytes, *, limit: int) -> tuple[PeerId, bytes]:
    """Check an envelope for `domain` and return (signer, body). `limit` bounds the size of the
    body, in bytes.

    Raises TransportError with code `too-large`, `bad-envelope` (not an envelope), or
    `bad-signature`.
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

"""Signed envelopes, which prove the author of some bytes and the purpose that they were signed for.

An envelope is a MessagePack array [public key (32 bytes), signature (64), body]. The signature
covers the domain string and the exact bytes of the body, never a re-encoding. So an envelope can be
forwarded, and a signature for one protocol never counts in another.
"""

import msgpack

from .decoding import decode
from .errors import TransportError, Undecodable
from .identity import KEY_BYTES, SIGNATURE_BYTES, Identity, PeerId, peer_id_of, verify

ENVELOPE_OVERHEAD = 1 + 2 + KEY_BYTES + 2 + SIGNATURE_BYTES + 5  # bytes around a body, at most


def seal(identity: Identity, domain: str, body: bytes) -> bytes:
    """Sign `body` for `domain` (a fixed string with one purpose, such as `shoal/member/1`)."""
    signature = identity.sign(domain, body)
    envelope: bytes = msgpack.packb([identity.public_key, signature, body])
    return envelope


def unseal(domain: str, data: bytes, *, limit: int) -> tuple[PeerId, bytes]:
    """Return the signer and the body of an envelope. `limit` bounds the body, in bytes.

    Raises `TransportError("too-large" | "bad-envelope" | "bad-signature")`.
    """
    if len(data) > limit + ENVELOPE_OVERHEAD:
        raise TransportError("too-large", f"a signed envelope holds more than {limit} bytes")
    public_key, signature, body = _decode(data, limit)
    peer = peer_id_of(public_key)
    if not verify(peer, domain, body, signature):
        raise TransportError("bad-signature", f"a signature by `{peer}` is wrong")
    return peer, body


def _decode(data: bytes, limit: int) -> tuple[bytes, bytes, bytes]:
    try:
        fields = decode(data, limit=limit + ENVELOPE_OVERHEAD, depth=1, items=3)
    except Undecodable:
        fields = None
    if not isinstance(fields, list) or [type(field) for field in fields] != [bytes] * 3:
        raise TransportError("bad-envelope", "a signed envelope is not readable")
    public_key, signature, body = fields
    if len(public_key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES or len(body) > limit:
        raise TransportError("bad-envelope", "a part of a signed envelope has a wrong size")
    return public_key, signature, body

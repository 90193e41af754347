"""Signed envelopes, which prove who signed some bytes and for which purpose.

An envelope is a MessagePack array [public key (32 bytes), signature (64 bytes), body]. The
signature covers the domain string, which names the purpose, and the exact bytes of the body. The
body is never re-encoded, so an envelope can be forwarded. A signature for one domain is not valid
in another.
"""

import msgpack

from .decoding import decode
from .errors import TransportError, Undecodable
from .identity import KEY_BYTES, SIGNATURE_BYTES, Identity, PeerId, peer_id_of, verify

# The most bytes that an envelope adds to its body.
ENVELOPE_OVERHEAD = 1 + 2 + KEY_BYTES + 2 + SIGNATURE_BYTES + 5


def seal(identity: Identity, domain: str, body: bytes) -> bytes:
    """Return an envelope with `body`, signed for `domain`. A domain is a fixed string for one
    purpose, such as `shoal/member/1`."""
    signature = identity.sign(domain, body)
    envelope: bytes = msgpack.packb([identity.public_key, signature, body])
    return envelope


def unseal(domain: str, data: bytes, *, limit: int) -> tuple[PeerId, bytes]:
    """Check an envelope for `domain` and return (signer, body). `limit` bounds the size of the
    body, in bytes.

    Raises TransportError with code `too-large`, `bad-envelope` (not an envelope), or
    `bad-signature`.
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

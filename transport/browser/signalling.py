"""The two JSON documents by which a browser and a node agree on a data channel. No I/O.

The documents are JSON because a page can parse it without a library. This module checks and bounds
each field.
"""

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass

from . import defaults
from .sdp import BadOffer, SdpOffer, parse_offer


class BadRequest(ValueError):
    """Raised if a document is not valid. The text names the fault."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A browser's request to join: its offer, and a nonce (32 bytes) for the proof of its peer
    id."""

    offer: SdpOffer
    nonce: bytes


def parse_join(body: bytes) -> JoinRequest:
    """Parse a posted document. Raises BadRequest if it is not valid or has more than BODY_BYTES."""
    if len(body) > defaults.BODY_BYTES:
        raise BadRequest("the document is too long")
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest("the document is not JSON") from None
    if not isinstance(found, dict) or found.get("v") != defaults.VERSION:
        raise BadRequest(f"not version {defaults.VERSION}")
    offer = found.get("offer")
    if not isinstance(offer, str):
        raise BadRequest("no offer")
    try:
        return JoinRequest(parse_offer(offer), _nonce(found.get("nonce")))
    except BadOffer as error:
        raise BadRequest(f"the offer: {error}") from None


def _nonce(value: object) -> bytes:
    try:
        nonce = b64decode(value, validate=True) if isinstance(value, str) else b""
    except ValueError:
        nonce = b""
    if len(nonce) != defaults.NONCE_BYTES:
        raise BadRequest(f"the nonce has {defaults.NONCE_BYTES} bytes in base64")
    return nonce


def encode_answer(answer: str, nonce: bytes, key: bytes) -> bytes:
    """Return the encoded answer of the node: its SDP, its nonce, and its public key (32 bytes)."""
    document = {
        "v": defaults.VERSION,
        "answer": answer,
        "nonce": b64encode(nonce).decode(),
        "key": b64encode(key).decode(),
    }
    return json.dumps(document).encode()

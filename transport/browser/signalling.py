"""The two JSON documents by which a browser and a node agree on a channel. No I/O.

They are JSON because a page can parse that without a library; this module checks and bounds every
field.
"""

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass

from . import defaults
from .sdp import BadOffer, Offer, parse_offer


class BadRequest(ValueError):
    """The document is not valid; the text names the fault."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A browser's request to join: its offer, and the nonce (32 bytes) for its proof."""

    offer: Offer
    nonce: bytes


def parse_join(body: bytes) -> JoinRequest:
    """Read a posted document of at most BODY_BYTES. Raises BadRequest."""
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
    """Encode the node's answer: its SDP, its nonce, its public key (32 bytes)."""
    document = {
        "v": defaults.VERSION,
        "answer": answer,
        "nonce": b64encode(nonce).decode(),
        "key": b64encode(key).decode(),
    }
    return json.dumps(document).encode()

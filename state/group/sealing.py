"""Encryption of a group's secret for each of its members.

A member's box is an X25519 key derived from its identity. A rotation encrypts ("seals") the new
secret for each member's box with an ephemeral key (ECDH, HKDF-SHA256, ChaCha20-Poly1305). The
sealed secret is bound to the group, the rotation's number and the member, and cannot be decrypted
in another context. Spec: docs/spec/group.md, Keys.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ...transport.identity import Identity, PeerId, public_key_of
from .. import defaults
from .facts import MARK_BYTES, Sealed

SECRET_BYTES: Final = 32
_TAG_BYTES: Final = 8
_BOX_BYTES: Final = _TAG_BYTES + SECRET_BYTES + 16
_NONCE: Final = bytes(12)  # each key is used once


def mark_of(secret: bytes) -> bytes:
    """Return the 8 bytes that identify a secret without revealing it."""
    return hashlib.sha256(b"shoal/group/key/1\0" + secret).digest()[:MARK_BYTES]


def box_key(identity: Identity) -> X25519PrivateKey:
    """Return the private key of this node's box, which decrypts the secrets that are sealed for
    this node."""
    return X25519PrivateKey.from_private_bytes(_derived(identity.seed, b"shoal/group/box/1"))


def box_of(identity: Identity) -> bytes:
    """Return the public key of this node's box, which it sends when it joins."""
    return box_key(identity).public_key().public_bytes_raw()


def seal_secret(
    group: bytes,
    number: int,
    secret: bytes,
    members: Mapping[PeerId, bytes],
    seeds: Sequence[bytes],
) -> Iterator[Sealed]:
    """Yield a secret sealed for these members, in parts that fit into a fact.

    `members` has each member's public box key. `seeds` has 32 random bytes for each part of up to
    KEY_PART_MEMBERS members. A member whose box is not a valid key gets no secret.
    """
    peers = sorted(members)
    for start, seed in zip(range(0, len(peers), defaults.KEY_PART_MEMBERS), seeds, strict=True):
        some = peers[start : start + defaults.KEY_PART_MEMBERS]
        ephemeral = X25519PrivateKey.from_private_bytes(seed)
        public = ephemeral.public_key().public_bytes_raw()
        boxes = b"".join(
            _sealed(ephemeral, public, (group, number, peer), members[peer], secret)
            for peer in some
        )
        yield Sealed(mark_of(secret), public, boxes)


def boxed(
    group: bytes, number: int, peers: Iterable[PeerId], parts: Iterable[Sealed]
) -> set[PeerId]:
    """Return those of `peers` for which a rotation has a sealed secret.

    Only the peer itself can check that it can decrypt the secret.
    """
    tags = {tag for part in parts for tag in _boxes(part)}
    return {peer for peer in peers if _tag(group, number, peer) in tags}


def open_secret(
    identity: Identity, group: bytes, number: int, parts: Iterable[Sealed]
) -> bytes | None:
    """Decrypt the secret of a rotation with this node's key, and return it.

    Returns None if no part has a valid one for this node. At most KEY_BOXES_TRIED parts are tried,
    because each takes 0.1 ms and an honest owner writes only one for each member.
    """
    tag = _tag(group, number, identity.peer)
    for part in islice((part for part in parts if tag in part.boxes), defaults.KEY_BOXES_TRIED):
        box = _boxes(part).get(tag)
        secret = None if box is None else _opened(identity, group, number, part, box)
        if secret is not None:
            return secret
    return None


def _sealed(
    ephemeral: X25519PrivateKey,
    public: bytes,
    recipient: tuple[bytes, int, PeerId],
    box: bytes,
    secret: bytes,
) -> bytes:
    """Encrypt a secret for the recipient: its group, the number of the rotation, and its peer id.

    Returns b"" if the recipient's key for boxes is invalid.
    """
    try:
        shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(box))
    except ValueError:  # a point of low order, which would make the secret public
        return b""
    place = _place(*recipient)
    key = _derived(shared, place + public + box)
    return _tag(*recipient) + ChaCha20Poly1305(key).encrypt(_NONCE, secret, place)


def _opened(
    identity: Identity, group: bytes, number: int, part: Sealed, box: bytes
) -> bytes | None:
    mine, place = box_key(identity), _place(group, number, identity.peer)
    own = mine.public_key().public_bytes_raw()
    try:
        shared = mine.exchange(X25519PublicKey.from_public_bytes(part.ephemeral))
        key = _derived(shared, place + part.ephemeral + own)
        secret = ChaCha20Poly1305(key).decrypt(_NONCE, box, place)
    except (ValueError, InvalidTag):
        return None
    return secret if mark_of(secret) == part.mark else None


def _boxes(part: Sealed) -> dict[bytes, bytes]:
    starts = range(0, len(part.boxes) - _BOX_BYTES + 1, _BOX_BYTES)
    return {
        part.boxes[at : at + _TAG_BYTES]: part.boxes[at + _TAG_BYTES : at + _BOX_BYTES]
        for at in starts
    }


def _place(group: bytes, number: int, peer: PeerId) -> bytes:
    return b"shoal/group/seal/1" + group + number.to_bytes(8) + public_key_of(peer)


def _tag(group: bytes, number: int, peer: PeerId) -> bytes:
    return hashlib.sha256(b"tag" + _place(group, number, peer)).digest()[:_TAG_BYTES]


def _derived(secret: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)

"""A node's identity: an Ed25519 key, and the libp2p peer id derived from it.

A peer id is the base58btc text of a multihash of the public key in protobuf encoding. An Ed25519
key is short enough for the identity multihash, which contains the key itself instead of a hash. The
public key can therefore be read from the id (libp2p specification, `peer-ids/peer-ids.md`).
"""

import shlex
import struct
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NewType

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from .errors import HostError, TransportError
from .host.seam import Host

PeerId = NewType("PeerId", str)

KEY_BYTES = 32
SIGNATURE_BYTES = 64
IDENTITY_FILE = "identity.key"

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGITS = {letter: value for value, letter in enumerate(_ALPHABET)}
_PEER_ID_LETTERS = 52  # of an Ed25519 key; text of another length is refused before decoding
_KEY_PREFIX = b"\x08\x01\x12\x20"  # protobuf PublicKey{Type: Ed25519, Data: 32 bytes}
_ID_PREFIX = b"\x00\x24" + _KEY_PREFIX  # multihash: identity, 36 bytes
_FILE_WORD = "shoal-identity-1"
_FILE_LIMIT = 1024  # bytes


def base58_encode(data: bytes) -> str:
    """Return the base58btc text of `data` (Bitcoin's alphabet, leading zero bytes as `1`)."""
    number = int.from_bytes(data)
    letters = []
    while number:
        number, digit = divmod(number, 58)
        letters.append(_ALPHABET[digit])
    zeros = len(data) - len(data.lstrip(b"\0"))
    return "1" * zeros + "".join(reversed(letters))


def base58_decode(text: str) -> bytes:
    """Return the bytes that base58btc `text` encodes. The time is quadratic, so callers must bound
    the length of `text`. Raises ValueError if a character is not in the alphabet."""
    number = 0
    for letter in text:
        digit = _DIGITS.get(letter)
        if digit is None:
            raise ValueError(f"{letter!r} is not a base58 letter")
        number = number * 58 + digit
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8)


@lru_cache(4096)  # encoding takes 25 µs, and every record names its author by its public key
def peer_id_of(public_key: bytes) -> PeerId:
    """Return the peer id of a raw Ed25519 public key (32 bytes). Raises ValueError if the key has
    another length."""
    if len(public_key) != KEY_BYTES:
        raise ValueError(f"an Ed25519 public key has {KEY_BYTES} bytes, not {len(public_key)}")
    # Interned, so that equal ids are one object.
    return PeerId(sys.intern(base58_encode(_ID_PREFIX + public_key)))


def parse_peer_id(text: str) -> PeerId:
    """Check a peer id that came from outside and return it. Only ids of Ed25519 keys in their
    canonical spelling are valid.

    Raises TransportError with code `bad-peer-id` if the text is anything else.
    """
    _key_in(text)
    return PeerId(text)


def public_key_of(peer: PeerId) -> bytes:
    """Return the raw Ed25519 public key (32 bytes) that a peer id contains."""
    return _key_in(peer)


@lru_cache(4096)  # only valid ids are cached, because others raise
def _key_in(text: str) -> bytes:
    shown = text if len(text) <= 2 * _PEER_ID_LETTERS else text[:_PEER_ID_LETTERS] + "…"
    shown = shown if shown.isprintable() else ascii(shown)
    error = TransportError("bad-peer-id", f"`{shown}` is not a peer id")
    if len(text) != _PEER_ID_LETTERS:
        raise error
    try:
        decoded = base58_decode(text)
    except ValueError:
        raise error from None
    if not decoded.startswith(_ID_PREFIX) or len(decoded) != len(_ID_PREFIX) + KEY_BYTES:
        raise error
    return decoded[len(_ID_PREFIX) :]


def _signed_bytes(domain: str, data: bytes) -> bytes:
    name = domain.encode()
    return struct.pack(">I", len(name)) + name + data


@dataclass(frozen=True, slots=True)
class Identity:
    """A node's private key, with the public key and the peer id derived from it. `seed` is the
    secret (32 bytes) and is left out of the repr."""

    peer: PeerId
    public_key: bytes
    seed: bytes = field(repr=False)
    _key: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def generate(cls, host: Host) -> "Identity":
        """Return a new identity, created from the host's entropy."""
        return cls.from_seed(host.entropy(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: bytes) -> "Identity":
        """Return the identity of an Ed25519 private key, given as its 32 secret bytes (RFC 8032,
        section 5.1.5)."""
        key = Ed25519PrivateKey.from_private_bytes(seed)
        public_key = key.public_key().public_bytes_raw()
        return cls(peer_id_of(public_key), public_key, seed, key)

    def sign(self, domain: str, data: bytes) -> bytes:
        """Return the signature (64 bytes) of `data` for the purpose `domain`. The signature covers
        the domain's length (4 bytes), the domain, and `data`."""
        return self._key.sign(_signed_bytes(domain, data))

    def sign_for_libp2p(self, data: bytes) -> bytes:
        """Return the signature (64 bytes) of `data` alone, for formats of libp2p that do not use
        our domains.

        Signed data of libp2p begins with letters, and ours with a zero byte (from the domain's
        length). A signature of one kind is therefore never valid for the other.
        """
        return self._key.sign(data)


def verify(peer: PeerId, domain: str, data: bytes, signature: bytes) -> bool:
    """Return whether `signature` is `peer`'s signature of exactly `data`, for the purpose
    `domain`."""
    return verify_raw(public_key_of(peer), _signed_bytes(domain, data), signature)


def verify_raw(public_key: bytes, data: bytes, signature: bytes) -> bool:
    """Return whether `signature` is the signature of `data` alone by the Ed25519 key `public_key`
    (32 bytes)."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


async def load_or_create_identity(host: Host, folder: Path) -> Identity:
    """Return the identity stored in `folder/identity.key`. If there is no such file, create it with
    a new identity.

    The file has one line: a format word, the seed in hex, and the peer id, which serves to detect
    damage. Raises HostError if other users can access the file or if it is damaged.
    """
    return await host.offload(_load_or_create, host, folder / IDENTITY_FILE)


def _load_or_create(host: Host, path: Path) -> Identity:
    if host.files.size(path) is None:
        identity = Identity.generate(host)
        host.files.make_folder(path.parent)
        line = f"{_FILE_WORD} {identity.seed.hex()} {identity.peer}\n"
        host.files.write(path, line.encode(), mode=0o600)
        return identity
    _check_mode(host, path)
    try:
        return _decode_file(host.files.read(path, limit=_FILE_LIMIT))
    except (ValueError, HostError):
        raise HostError(
            f"the identity in `{path}` is damaged",
            hint=f"restore it from a copy, or become a new peer: `rm {shlex.quote(str(path))}`",
        ) from None


def _check_mode(host: Host, path: Path) -> None:
    mode = host.files.mode(path)
    if mode & 0o077:
        raise HostError(
            f"other users can access the identity in `{path}` (its mode is {mode:04o})",
            hint=f"`chmod 600 {shlex.quote(str(path))}`",
        )


def _decode_file(data: bytes) -> Identity:
    word, seed, peer = data.decode("ascii").split()
    identity = Identity.from_seed(bytes.fromhex(seed))
    if word != _FILE_WORD or peer != identity.peer:
        raise ValueError("not an identity file of ours, or damaged")
    return identity

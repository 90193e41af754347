"""The key space: 256 bits in which nodes and records lie, near each other by XOR.

Maymounkov and Mazières, "Kademlia" (IPTPS 2002). A key is always a hash, so that nobody chooses
where a record lies but by trying.
"""

import hashlib
import re
from functools import lru_cache
from typing import Final, NewType

from ..transport.identity import PeerId
from .errors import BadRecord

Key = NewType("Key", bytes)
KEY_BYTES: Final = 32
SPACE: Final = 2**256

_NODE: Final = "shoal/node-key/1"
_RECORD: Final = "shoal/record-key/1"
_TEXT = re.compile(r"[0-9a-f]{64}")


@lru_cache(4096)
def node_key(peer: PeerId) -> Key:
    """Where a node lies: by its peer id, which it cannot choose freely."""
    return _hashed(_NODE, peer)


def record_key(kind: str, *parts: str | int) -> Key:
    """Where the records of a kind about something lie; each part counts with its length."""
    return _hashed(_RECORD, kind, *parts)


def _hashed(domain: str, *parts: str | int) -> Key:
    digest = hashlib.sha256()
    for part in (domain, *parts):
        data = str(part).encode()
        digest.update(len(data).to_bytes(4) + data)
    return Key(digest.digest())


def point(key: Key) -> int:
    """A key as a number."""
    return int.from_bytes(key)


def distance(a: Key, b: Key) -> int:
    """How far two keys are from each other; equal in both directions, and a different one for
    every other key."""
    return point(a) ^ point(b)


def key_at(place: int) -> Key:
    """The key that is this number."""
    return Key(place.to_bytes(KEY_BYTES))


def key_text(key: Key) -> str:
    """64 hex digits."""
    return key.hex()


def parse_key(text: str) -> Key:
    """Read `key_text`. Raises BadRecord (`bad-type`)."""
    if not _TEXT.fullmatch(text):
        raise BadRecord("bad-type", "a key has 64 lower-case hex digits")
    return Key(bytes.fromhex(text))


def as_key(value: object) -> Key:
    """A key from a message. Raises BadRecord (`bad-type`)."""
    if type(value) is not bytes or len(value) != KEY_BYTES:
        raise BadRecord("bad-type", f"a key has {KEY_BYTES} bytes")
    return Key(value)

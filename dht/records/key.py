"""Key space: 256-bit keys of nodes and records, with XOR as the distance.

Maymounkov and Mazières, "Kademlia" (IPTPS 2002). Each key is a hash. A position in the key space
can therefore be chosen only by hashing many inputs.
"""

import hashlib
import re
from functools import lru_cache
from typing import Annotated, Final, NewType

from msgspec import Meta

from ...transport.identity import PeerId
from ..errors import BadRecord

Key = NewType("Key", bytes)
KEY_BYTES: Final = 32
KeyBytes = Annotated[Key, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
"""A key in a message, whose length is checked."""
SPACE: Final = 2**256  # number of keys

_NODE: Final = "shoal/node-key/1"
_RECORD: Final = "shoal/record-key/1"
_TEXT = re.compile(r"[0-9a-f]{64}")


@lru_cache(4096)
def node_key(peer: PeerId) -> Key:
    """Return the key of a node: a hash of its peer id, so that the node cannot choose it freely."""
    return _hashed(_NODE, peer)


def record_key(kind: str, *parts: str | int) -> Key:
    """Return the key of the records of one kind about one subject.

    The parts identify the subject. Each is hashed with its length, so that the parts are
    unambiguous.
    """
    return _hashed(_RECORD, kind, *parts)


def _hashed(domain: str, *parts: str | int) -> Key:
    """Return the SHA-256 over the domain and the parts, each preceded by its length."""
    digest = hashlib.sha256()
    for part in (domain, *parts):
        data = str(part).encode()
        digest.update(len(data).to_bytes(4) + data)
    return Key(digest.digest())


def point(key: Key) -> int:
    """Return a key as an integer of 256 bits."""
    return int.from_bytes(key)


def distance(a: Key, b: Key) -> int:
    """Return the XOR distance of two keys.

    The distance is symmetric, and no two keys have the same distance to a third.
    """
    return point(a) ^ point(b)


def key_at(place: int) -> Key:
    """Return the key for an integer."""
    return Key(place.to_bytes(KEY_BYTES))


def key_text(key: Key) -> str:
    """Return a key as 64 hex digits."""
    return key.hex()


def parse_key(text: str) -> Key:
    """Parse the output of `key_text`. Raises BadRecord `bad-type` if the text is not a key."""
    if not _TEXT.fullmatch(text):
        raise BadRecord("bad-type", "expected a key of 64 lower-case hex digits")
    return Key(bytes.fromhex(text))

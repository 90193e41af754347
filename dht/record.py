"""A record: one fact, signed by its author, that says where to ask.

What travels and is stored is the sealed bytes as they came, so fields and kinds that this version
does not know survive. The key is computed from the fields, never believed. Spec:
docs/spec/records.md.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgpack

from ..transport.decoding import decode
from ..transport.errors import TransportError, Undecodable
from ..transport.identity import Identity, PeerId
from ..transport.signed import ENVELOPE_OVERHEAD, seal, unseal
from . import defaults
from .errors import BadRecord
from .key import Key
from .recordkinds import (
    BlobBody,
    Body,
    KvBody,
    NameBody,
    OtherBody,
    PeerBody,
    ShardBody,
    kv_key,
    longest_runs,
    read_body,
)

__all__ = [
    "BlobBody",
    "Body",
    "KvBody",
    "NameBody",
    "OtherBody",
    "PeerBody",
    "Record",
    "ShardBody",
    "kv_key",
    "longest_runs",
    "open_record",
    "seal_record",
    "time_code",
]

DOMAIN: Final = "shoal/record/1"
_BODY_LIMIT: Final = defaults.RECORD_BYTES - ENVELOPE_OVERHEAD
_MADE_LIMIT: Final = 2**53


@dataclass(frozen=True, slots=True)
class Record:
    """A record whose signature was right. Of one author, key and slot the later `made` counts."""

    author: PeerId
    body: Body
    made: int  # ms since 1970 by the author's wall clock
    ttl: int  # seconds
    gone: bool  # its author has withdrawn what it said in this slot
    key: Key
    slot: str
    sealed: bytes

    @property
    def place(self) -> tuple[PeerId, Key, str]:
        """What it is the only one of."""
        return self.author, self.key, self.slot


def seal_record(
    identity: Identity, body: Body, *, made: int, ttl: int, gone: bool = False
) -> bytes:
    """The signed bytes of an own record; `gone` withdraws what was said in this slot.

    Raises BadRecord where others would refuse it.
    """
    fields = {"kind": body.kind, "made": made, "ttl": ttl, **body.fields()}
    packed: bytes = msgpack.packb(fields | ({"gone": True} if gone else {}))
    if len(packed) > _BODY_LIMIT:
        raise _too_large()
    record = _read(identity.peer, packed, b"")
    if record.body != body:
        raise BadRecord("bad-type", "this node's own record is out of bounds")
    return seal(identity, DOMAIN, packed)


def open_record(sealed: bytes) -> Record:
    """The record in signed bytes. Raises BadRecord and nothing else: `too-large`,
    `bad-signature`, `bad-type`, `not-provider`."""
    if len(sealed) > defaults.RECORD_BYTES:
        raise _too_large()
    return _opened(sealed)


@lru_cache(512)  # a body that was read may take thirty times the bytes of the record
def _opened(sealed: bytes) -> Record:
    author, packed = _unsealed(sealed)
    return _read(author, packed, sealed)


@lru_cache(4096)  # of those that were right; a check of a signature takes 0.1 ms, this 0.2 µs
def _unsealed(sealed: bytes) -> tuple[PeerId, bytes]:
    try:
        return unseal(DOMAIN, sealed, limit=_BODY_LIMIT)
    except TransportError as error:
        code = "too-large" if error.code == "too-large" else "bad-signature"
        raise BadRecord(code, error.message) from None
    except ValueError:  # 32 bytes that are no key
        raise BadRecord("bad-signature", "a record's key is none") from None


def time_code(record: Record, wall: float) -> str:
    """`expired` or `far-future` by the receiver's wall clock (s since 1970); else "".

    Generous, as both clocks may be wrong; how long a record is kept is measured, not believed.
    """
    made = record.made / 1000
    if made > wall + defaults.CLOCKS_APART:
        return "far-future"
    return "expired" if made + record.ttl < wall - defaults.CLOCKS_APART else ""


def _read(author: PeerId, packed: bytes, sealed: bytes) -> Record:
    try:
        fields = decode(packed, limit=_BODY_LIMIT)
    except Undecodable:
        raise BadRecord("bad-type", "a record is not msgpack") from None
    if type(fields) is not dict or not all(type(name) is str for name in fields):
        raise BadRecord("bad-type", "a record is no map of names")
    made, ttl, gone = fields.get("made"), fields.get("ttl"), fields.get("gone", False)
    if type(made) is not int or not 0 < made < _MADE_LIMIT:
        raise BadRecord("bad-type", "a record does not say when it was made")
    least, most = defaults.RECORD_TTL
    if type(ttl) is not int or not least <= ttl <= most:
        raise BadRecord("bad-type", f"a record does not live {least} to {most} s")
    if type(gone) is not bool:
        raise BadRecord("bad-type", "a record's `gone` is no truth value")
    body = read_body(author, fields)
    return Record(author, body, made, ttl, gone, body.key, body.slot, sealed)


def _too_large() -> BadRecord:
    return BadRecord("too-large", f"a record has over {defaults.RECORD_BYTES} bytes")

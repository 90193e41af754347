"""Record: a fact signed by its author, such as what it provides and where to reach it.

The sealed bytes are stored and forwarded unchanged, so fields and kinds that this version does not
know survive. The key is computed from the fields, never taken from the message. Spec:
docs/spec/records.md.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final

from msgspec import Meta

from ...transport.decoding import decode, typed
from ...transport.errors import TransportError, Undecodable
from ...transport.identity import Identity, PeerId
from ...transport.message import Message, pack
from ...transport.signed import ENVELOPE_OVERHEAD, seal, unseal
from .. import defaults
from ..errors import BadRecord
from .key import Key
from .kinds import (
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
_TTL: Final = Meta(ge=defaults.RECORD_TTL[0], le=defaults.RECORD_TTL[1])


class _Head(Message, frozen=True):
    """Fields of every record."""

    made: Annotated[int, Meta(ge=1, lt=2**53)]
    ttl: Annotated[int, _TTL]
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A record with a valid signature. Per author, key and slot, the latest `made` wins."""

    author: PeerId
    body: Body
    made: int  # ms since 1970 by the author's wall clock
    ttl: int  # seconds
    gone: bool  # it withdraws the slot's earlier record
    key: Key
    slot: str
    sealed: bytes

    @property
    def place(self) -> tuple[PeerId, Key, str]:
        """Identity of its slot: author, key and slot."""
        return self.author, self.key, self.slot


def seal_record(
    identity: Identity, body: Body, *, made: int, ttl: int, gone: bool = False
) -> bytes:
    """Return the signed bytes of an own record; `gone` withdraws the slot's earlier record.

    Raises BadRecord if other nodes would reject it.
    """
    fields = {"kind": body.kind, "made": made, "ttl": ttl, **body.fields()}
    packed = pack(fields | ({"gone": True} if gone else {}))
    if len(packed) > _BODY_LIMIT:
        raise _too_large()
    record = _read(identity.peer, packed, b"")
    if record.body != body:
        raise BadRecord("bad-type", "this node's own record is out of bounds")
    return seal(identity, DOMAIN, packed)


def open_record(sealed: bytes) -> Record:
    """Decode and verify a sealed record.

    Raises BadRecord `too-large`, `bad-signature`, `bad-type` or `not-provider`, and no other error.
    """
    if len(sealed) > defaults.RECORD_BYTES:
        raise _too_large()
    return _opened(sealed)


@lru_cache(512)  # small, as a decoded body may take thirty times the bytes of the record
def _opened(sealed: bytes) -> Record:
    author, packed = _unsealed(sealed)
    return _read(author, packed, sealed)


@lru_cache(4096)  # valid signatures; a check takes 0.1 ms, a cache hit 0.2 µs
def _unsealed(sealed: bytes) -> tuple[PeerId, bytes]:
    try:
        return unseal(DOMAIN, sealed, limit=_BODY_LIMIT)
    except TransportError as error:
        code = "too-large" if error.code == "too-large" else "bad-signature"
        raise BadRecord(code, error.message) from None
    except ValueError:  # the 32 bytes are not a key
        raise BadRecord("bad-signature", "a record's key is invalid") from None


def time_code(record: Record, wall: float) -> str:
    """Return `expired` or `far-future` by the receiver's wall clock (seconds since 1970), else "".

    The check is generous, as both clocks may be wrong: how long a record is stored is measured
    with the monotonic clock.
    """
    made = record.made / 1000
    if made > wall + defaults.CLOCKS_APART:
        return "far-future"
    return "expired" if made + record.ttl < wall - defaults.CLOCKS_APART else ""


def _read(author: PeerId, packed: bytes, sealed: bytes) -> Record:
    try:
        fields = decode(packed, limit=_BODY_LIMIT)
        head = typed(_Head, fields)
    except Undecodable as error:
        raise BadRecord("bad-type", f"invalid record: {error}") from None
    body = read_body(author, fields)
    return Record(author, body, head.made, head.ttl, head.gone, body.key, body.slot, sealed)


def _too_large() -> BadRecord:
    return BadRecord("too-large", f"a record has more than {defaults.RECORD_BYTES} bytes")

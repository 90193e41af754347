"""A member as others see it, and the small record that it signs of that: where it is, now.

What it can do, names and serves stands in its feeds (`views/`) and nowhere else. The record's
sealed bytes are what travels and what is forwarded, exactly as they came, so fields this version
does not know survive. Spec: docs/spec/membership.md.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import msgpack

from ..transport.address import Address
from ..transport.decoding import ITEMS, decode
from ..transport.errors import TransportError, Undecodable
from ..transport.identity import Identity, PeerId, peer_id_of
from ..transport.signed import ENVELOPE_OVERHEAD, seal, unseal
from . import defaults
from .errors import BadRecord, Forged

T = TypeVar("T")
DOMAIN = "shoal/member/1"
_ROOT = re.compile(r"[0-9a-f]{64}")
_NAMED = "/p2p/"
"""What an address that leads to the author itself ends with in the encoded record."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a machine offers: memory in bytes, measured flop/s and byte/s; `engine`: it computes."""

    cores: int
    memory_bytes: int
    engine: bool
    flops: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model its author can name; `weight_bytes` of all its tensors."""

    name: str
    root: str  # 64 hex digits
    layers: int
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What a member serves: layers start:stop of a model, perhaps its embedding and head."""

    root: str
    embedding: bool
    start: int
    stop: int  # exclusive
    head: bool
    dtype: str
    kv_tokens_free: int  # while no request has any
    run: int = 0  # of serving that it is of (`MemberRecord.run`)


class Rank(IntEnum):
    """Strength of a node's claim to its layers; a plan moves nodes of the lowest rank first."""

    SEEKS = 0  # it has none yet
    CLAIMS = 1  # it is about to take them
    HOLDS = 2  # it loads or serves them
    FIXED = 3  # its owner named them: it does not move


@dataclass(frozen=True, slots=True)
class Aim:
    """The layers that a member has or is about to have, told before it loads them."""

    root: str
    start: int
    stop: int  # exclusive; both 0 while it seeks
    rank: Rank


NOTHING = Capacity(cores=0, memory_bytes=0, engine=False, flops=0.0, bandwidth=0.0)


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A member as it describes itself. `seq`, which grows with each change, `addresses`,
    `holdings`, `run` and `aim` come in its signed record; the others are facts of its feeds."""

    peer: PeerId
    seq: int
    addresses: tuple[str, ...] = ()  # multiaddrs
    version: str = ""
    capacity: Capacity = NOTHING
    models: tuple[ModelName, ...] = ()
    shards: tuple[ShardRecord, ...] = ()
    holdings: tuple[str, ...] = ()  # roots of which it has any chunk
    run: int = 0  # a number drawn when it began to serve what it serves now; 0: nothing
    aim: Aim | None = None


def seal_record(identity: Identity, record: MemberRecord) -> bytes:
    """The signed bytes of an own record. Raises BadRecord where others would refuse it, or it
    has what is said in feeds."""
    body = encode_record(record)
    if decode_record(record.peer, body) != record:
        raise BadRecord("this node's own record is out of bounds")
    return seal(identity, DOMAIN, body)


def open_record(sealed: bytes) -> MemberRecord:
    """The record in signed bytes, its signature checked.

    Raises Forged, and BadRecord where its own author wrote what this version does not take.
    """
    try:
        author, body = unseal(DOMAIN, sealed, limit=defaults.RECORD_BYTES)
    except TransportError as error:
        raise Forged(error.message) from None
    return decode_record(author, body)


def peek(sealed: bytes) -> tuple[PeerId, int]:
    """Author and sequence number as the bytes claim them, before the cost of a signature check.

    Raises Forged where they are no envelope, and BadRecord.
    """
    try:
        public_key, _, body = unpack(sealed, list, defaults.RECORD_BYTES + ENVELOPE_OVERHEAD)
        author = peer_id_of(public_key)
        fields = unpack(body, dict, defaults.RECORD_BYTES)
    except (BadRecord, ValueError, TypeError):
        raise Forged("a record is not readable") from None
    return author, seq_of(fields)


def encode_record(record: MemberRecord) -> bytes:
    """A msgpack map; the author is not in it, the signature names it."""
    fields = {
        "seq": record.seq,
        "addresses": [_unnamed(text, record.peer) for text in record.addresses],
        "holdings": record.holdings,
        "run": record.run,
    }
    if (aim := record.aim) is not None:
        fields["aim"] = [aim.root, aim.start, aim.stop, int(aim.rank)]
    body: bytes = msgpack.packb(fields)
    if len(body) > defaults.RECORD_BYTES:
        raise BadRecord(f"a record has over {defaults.RECORD_BYTES} bytes")
    return body


def decode_record(author: PeerId, body: bytes) -> MemberRecord:
    """Every value typed and bounded; numbers clamped. Raises BadRecord."""
    fields = unpack(body, dict, defaults.RECORD_BYTES)
    return MemberRecord(
        peer=author,
        seq=seq_of(fields),
        addresses=_addresses(fields.get("addresses", []), author),
        holdings=_each(fields.get("holdings", []), defaults.HOLDINGS, _root),
        run=_run(fields.get("run", 0)),
        aim=_aim(fields.get("aim")),
    )


def unpack(data: bytes | memoryview, kind: type[T], limit: int, *, items: int = ITEMS) -> T:
    """One value of a type from a stranger, of at most `limit` bytes and `items` elements. Raises
    BadRecord."""
    try:
        value = decode(data, limit=limit, items=items)
    except Undecodable as error:
        raise BadRecord(f"a message is not readable: {error}") from None
    if not isinstance(value, kind):
        raise BadRecord("a message has a wrong type")
    return value


def seq_of(fields: Mapping[str, Any]) -> int:
    """The sequence number of a record's fields."""
    seq = fields.get("seq")
    if type(seq) is not int or not 0 < seq < defaults.MAX_SEQ:
        raise BadRecord("a record's sequence number is out of bounds")
    return seq


def _each(value: object, most: int, read: Callable[[Any], T]) -> tuple[T, ...]:
    if not isinstance(value, list) or len(value) > most:
        raise BadRecord(f"a record has something else than a list of at most {most}")
    return tuple(read(item) for item in value)


def _unnamed(text: str, author: PeerId) -> str:
    """Leave the author's peer id out of the end of an address: it is known from the signature, and
    would be half of the record."""
    return text.removesuffix(author) if text.endswith(_NAMED + author) else text


def _addresses(value: object, author: PeerId) -> tuple[str, ...]:
    """Those this version understands, in the one spelling; others are left out."""
    found = []
    for text in _each(value, defaults.ADDRESSES, lambda item: item):
        if not isinstance(text, str):
            raise BadRecord("an address is no text")
        try:
            found.append(str(Address.parse(text + author if text.endswith(_NAMED) else text)))
        except TransportError:
            continue
    return tuple(found)


def _root(value: object) -> str:
    if not isinstance(value, str) or not _ROOT.fullmatch(value):
        raise BadRecord("a root is not 64 hex digits")
    return value


def _run(value: object) -> int:
    if type(value) is not int or not 0 <= value < defaults.MAX_SEQ:
        raise BadRecord("the number of a run is out of bounds")
    return value


def _aim(value: object) -> Aim | None:
    """Raises BadRecord. A rank of a later version counts as the highest known here."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) < 4:
        raise BadRecord("an aim is no list of four")
    root, start, stop, rank = value[:4]
    if any(type(number) is not int for number in (start, stop, rank)):
        raise BadRecord("an aim has something else than whole numbers")
    if not 0 <= start <= stop <= defaults.MAX_LAYERS or rank < 0:
        raise BadRecord("an aim is out of bounds")
    return Aim(_root(root), start, stop, Rank(min(rank, Rank.FIXED)))

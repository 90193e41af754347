"""Member descriptions, and the small signed record with a member's current addresses.

A member's capacity, models and shards are facts in its feeds (`views/`) and not in the record. The
record's sealed bytes are forwarded exactly as they came, so fields that this version does not know
survive. Spec: docs/spec/membership.md.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import msgpack

from ...transport.address import Address
from ...transport.decoding import ITEMS, decode
from ...transport.errors import TransportError, Undecodable
from ...transport.identity import Identity, PeerId, peer_id_of
from ...transport.signed import ENVELOPE_OVERHEAD, seal, unseal
from .. import defaults
from ..errors import BadRecord, Forged

T = TypeVar("T")
DOMAIN = "shoal/member/1"
_ROOT = re.compile(r"[0-9a-f]{64}")
_NAMED = "/p2p/"
"""In the encoded record, an address of the author itself ends with this, without the peer id."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of a machine: memory in bytes, measured flop/s and byte/s; `engine`: it
    computes."""

    cores: int
    memory_bytes: int
    engine: bool
    flops: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model with the name that the author gives it; `weight_bytes` is the size of all its
    tensors."""

    name: str
    root: str  # 64 hex digits
    layers: int
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """The part of a model that a member serves: layers start:stop, perhaps embedding and head."""

    root: str
    embedding: bool
    start: int
    stop: int  # exclusive
    head: bool
    dtype: str
    kv_tokens_free: int  # capacity while no request uses any
    run: int = 0  # the serving run that it belongs to (`MemberRecord.run`)


class Rank(IntEnum):
    """Strength of a node's claim to its layers; a plan moves nodes of the lowest rank first."""

    SEEKS = 0  # it has none yet
    CLAIMS = 1  # it is about to take them
    HOLDS = 2  # it loads or serves them
    FIXED = 3  # its owner named them: it does not move


@dataclass(frozen=True, slots=True)
class Aim:
    """The layers that a member has or is about to have, announced before it loads them."""

    root: str
    start: int
    stop: int  # exclusive; both 0 while it seeks
    rank: Rank


NOTHING = Capacity(cores=0, memory_bytes=0, engine=False, flops=0.0, bandwidth=0.0)


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A member as it describes itself.

    `seq`, `addresses`, `holdings`, `run` and `aim` come from its signed record. The other fields
    are facts in its feeds. `seq` grows with each change.
    """

    peer: PeerId
    seq: int
    addresses: tuple[str, ...] = ()  # multiaddrs
    version: str = ""
    capacity: Capacity = NOTHING
    models: tuple[ModelName, ...] = ()
    shards: tuple[ShardRecord, ...] = ()
    holdings: tuple[str, ...] = ()  # roots of models of which it has any chunk
    run: int = 0  # a random number, new whenever what it serves changes; 0: it serves nothing
    aim: Aim | None = None


def seal_record(identity: Identity, record: MemberRecord) -> bytes:
    """Return the signed bytes of an own record.

    Raises BadRecord if other nodes would refuse it, or if it has fields that belong in feeds.
    """
    body = encode_record(record)
    if decode_record(record.peer, body) != record:
        raise BadRecord("this node's own record is out of bounds")
    return seal(identity, DOMAIN, body)


def open_record(sealed: bytes) -> MemberRecord:
    """Return the record in signed bytes, after checking its signature.

    Raises Forged, and BadRecord if the author signed a record that this version refuses.
    """
    try:
        author, body = unseal(DOMAIN, sealed, limit=defaults.RECORD_BYTES)
    except TransportError as error:
        raise Forged(error.message) from None
    return decode_record(author, body)


def peek(sealed: bytes) -> tuple[PeerId, int]:
    """Return the author and sequence number that the bytes claim, without checking the signature.

    Raises Forged if they are no envelope, and BadRecord.
    """
    try:
        public_key, _, body = unpack(sealed, list, defaults.RECORD_BYTES + ENVELOPE_OVERHEAD)
        author = peer_id_of(public_key)
        fields = unpack(body, dict, defaults.RECORD_BYTES)
    except (BadRecord, ValueError, TypeError):
        raise Forged("malformed record") from None
    return author, seq_of(fields)


def encode_record(record: MemberRecord) -> bytes:
    """Encode a record as a msgpack map, without the author, which the signature names."""
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
    """Decode a record, and check the type and bounds of every value. Raises BadRecord."""
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
    """Decode one value of type `kind` from a peer, of at most `limit` bytes and `items` elements.

    Raises BadRecord.
    """
    try:
        value = decode(data, limit=limit, items=items)
    except Undecodable as error:
        raise BadRecord(f"malformed message: {error}") from None
    if not isinstance(value, kind):
        raise BadRecord(f"expected {kind.__name__} in a message, got {type(value).__name__}")
    return value


def seq_of(fields: Mapping[str, Any]) -> int:
    """Return the sequence number among a record's fields. Raises BadRecord."""
    seq = fields.get("seq")
    if type(seq) is not int or not 0 < seq < defaults.MAX_SEQ:
        raise BadRecord("a record's sequence number is out of bounds")
    return seq


def _each(value: object, most: int, read: Callable[[Any], T]) -> tuple[T, ...]:
    if not isinstance(value, list) or len(value) > most:
        raise BadRecord(f"expected a list of at most {most} items in a record")
    return tuple(read(item) for item in value)


def _unnamed(text: str, author: PeerId) -> str:
    """Remove the author's peer id from the end of an address.

    The signature names it already, and it would take up half of the record.
    """
    return text.removesuffix(author) if text.endswith(_NAMED + author) else text


def _addresses(value: object, author: PeerId) -> tuple[str, ...]:
    """Return the addresses that this version understands, in canonical form, without the others."""
    found = []
    for text in _each(value, defaults.ADDRESSES, lambda item: item):
        if not isinstance(text, str):
            raise BadRecord("an address in a record is not text")
        try:
            found.append(str(Address.parse(text + author if text.endswith(_NAMED) else text)))
        except TransportError:
            continue
    return tuple(found)


def _root(value: object) -> str:
    if not isinstance(value, str) or not _ROOT.fullmatch(value):
        raise BadRecord("expected a root of 64 hex digits in a record")
    return value


def _run(value: object) -> int:
    if type(value) is not int or not 0 <= value < defaults.MAX_SEQ:
        raise BadRecord(f"the run of a record is not in 0..{defaults.MAX_SEQ - 1}")
    return value


def _aim(value: object) -> Aim | None:
    """Decode an aim. A rank of a later version counts as the highest known here.

    Raises BadRecord.
    """
    if value is None:
        return None
    if not isinstance(value, list) or len(value) < 4:
        raise BadRecord("expected an aim to be a list of four items")
    root, start, stop, rank = value[:4]
    if any(type(number) is not int for number in (start, stop, rank)):
        raise BadRecord("expected whole numbers in an aim")
    if not 0 <= start <= stop <= defaults.MAX_LAYERS or rank < 0:
        raise BadRecord("an aim is out of bounds")
    return Aim(_root(root), start, stop, Rank(min(rank, Rank.FIXED)))

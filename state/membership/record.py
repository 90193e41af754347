"""Descriptions of members, and the small signed record with a member's current addresses.

A member's capacity, models and shards are facts in its feeds (`views/`), and not in the record. The
record's sealed (signed) bytes are forwarded exactly as they were received, so fields that this
version does not know survive. Spec: docs/spec/membership.md.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, TypeVar

from msgspec import Meta

from ...transport import naming
from ...transport.address import Address
from ...transport.decoding import decode, typed
from ...transport.errors import TransportError, Undecodable
from ...transport.identity import Identity, PeerId, peer_id_of
from ...transport.message import Message, Root, Row, check_text, pack
from ...transport.signed import seal, split, unseal
from .. import defaults
from ..errors import BadRecord, Forged

M = TypeVar("M", bound=Message)
DOMAIN = "shoal/member/1"
_NAMED = "/p2p/"
"""In the encoded record, addresses of the author end with this, without the author's peer id."""


_Rate = Annotated[float, Meta(ge=0, le=defaults.MAX_RATE)]


class DeviceSpeed(Row, frozen=True):
    """A device on which a member computes, and its measured speed; 0 is unknown.

    `batch` is the number of rows up to which a step takes hardly longer than with one row.
    """

    name: str  # `cpu`, `cuda:0`, …
    instructions: str  # that its arithmetic uses, such as `AVX512` or `sm_90`
    memory_bytes: Annotated[int, Meta(ge=0, le=defaults.MAX_BYTES)]
    bandwidth: _Rate = 0.0  # byte/s, read and written
    float32: _Rate = 0.0  # flop/s of matrix products
    bfloat16: _Rate = 0.0  # flop/s of matrix products
    batch: Annotated[int, Meta(ge=0, le=defaults.MAX_BATCH)] = 0

    def check(self) -> None:
        for text in (self.name, self.instructions):
            check_text(text, defaults.DEVICE_TEXT_BYTES)
        if not all(map(math.isfinite, (self.bandwidth, self.float32, self.bfloat16))):
            raise ValueError("a measured speed is not finite")


class LinkSpeed(Row, frozen=True):
    """A measured link from a member to another one, of which `tag` is the hash (`roster.tag_of`).

    `rate` is in byte/s; 0 is unknown.
    """

    tag: Annotated[bytes, Meta(min_length=defaults.TAG_BYTES, max_length=defaults.TAG_BYTES)]
    round_trip_ms: Annotated[float, Meta(ge=0, le=defaults.MAX_TRIP)]
    rate: _Rate = 0.0

    def check(self) -> None:
        if not all(map(math.isfinite, (self.round_trip_ms, self.rate))):
            raise ValueError("a measured link is not finite")


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of a machine.

    `memory_bytes` is the memory that its owner offers. `engine` means that it can run models.
    `load_rate` is the measured rate in byte/s at which its disk reads; 0 is unknown.
    """

    cores: int
    memory_bytes: int
    engine: bool
    load_rate: float = 0.0
    devices: tuple[DeviceSpeed, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model, with the name that a member gives it.

    `weight_bytes` is the total size of the model's tensors.
    """

    name: str
    root: str  # 64 hex digits
    layers: int
    weight_bytes: int


UNKNOWN_COSTS = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """The part of a model that a member serves: layers `start` to `stop`, and perhaps embedding and
    head.

    `costs` are the seconds of a step that the member measured after loading: fixed, for each row,
    and for each pair of a row and a position that it attends to; all 0 if they are unknown.
    """

    root: str
    embedding: bool
    start: int
    stop: int  # exclusive
    head: bool
    dtype: str
    kv_tokens_free: int  # capacity while no request uses any
    exactness: str = ""  # class of shards that compute the same bits from the same input
    run: int = 0  # the number of its serving run, which is among `MemberRecord.runs`
    costs: tuple[float, float, float] = UNKNOWN_COSTS


_HASH = re.compile(r"[0-9a-f]{8,64}")


class SharedModel(Row, frozen=True):
    """A model that another engine on a member's machine serves, and that the member offers.

    It has no root: its weights are the member's word. `engine` is the kind of the engine. `context`
    is in tokens; 0 is unknown. `takes` has the kinds of requests and the parameters that it
    honours, such as `chat` and `top-k`.
    """

    name: str
    engine: str
    context: Annotated[int, Meta(ge=0, le=defaults.MAX_TOKENS)] = 0
    takes: Annotated[tuple[str, ...], Meta(max_length=defaults.SHARED_WORDS)] = ()

    def check(self) -> None:
        """Raise ValueError unless this node itself could give the model its name."""
        if problem := naming.problem(self.name):
            raise ValueError(f"the name of a shared model is invalid: {problem}")
        if _HASH.fullmatch(self.name):
            raise ValueError("the name of a shared model looks like a hash")
        for text in (self.engine, *self.takes):
            check_text(text, defaults.SHARED_TEXT_BYTES)


class Rank(IntEnum):
    """Strength of a node's claim to its layers. A plan moves nodes of the lowest rank first."""

    SEEKS = 0  # the node has no layers yet
    CLAIMS = 1  # the node is about to load these layers
    HOLDS = 2  # the node loads or serves these layers
    FIXED = 3  # the node's owner chose these layers, so the node does not move

    @classmethod
    def _missing_(cls, value: object) -> "Rank | None":
        """Return the highest known rank for an unknown value, which a later version of shoal may
        send."""
        return cls.FIXED if isinstance(value, int) and value > cls.FIXED else None


class Aim(Row, frozen=True):
    """The layers of one model that a member has or is about to have, which it announces before it
    loads them.

    `memory` is the number of bytes that it offers for them; 0 stands for all that it offers.
    """

    root: Root
    start: Annotated[int, Meta(ge=0, le=defaults.MAX_LAYERS)]
    stop: Annotated[int, Meta(ge=0, le=defaults.MAX_LAYERS)]  # exclusive; both 0 while it seeks
    rank: Rank
    memory: Annotated[int, Meta(ge=0, le=1 << 60)] = 0


class _Seq(Message, frozen=True):
    seq: Annotated[int, Meta(ge=1, lt=defaults.MAX_SEQ)]


_Run = Annotated[int, Meta(ge=1, lt=defaults.MAX_SEQ)]


class _Body(_Seq, frozen=True):
    """The fields of a record. The author is not among them, because the signature names it."""

    addresses: Annotated[tuple[str, ...], Meta(max_length=defaults.ADDRESSES)] = ()
    stored: Annotated[tuple[Root, ...], Meta(max_length=defaults.STORED)] = ()
    runs: Annotated[tuple[_Run, ...], Meta(max_length=defaults.SHARDS)] = ()
    aims: Annotated[tuple[Aim, ...], Meta(max_length=defaults.AIMS)] = ()

    def check(self) -> None:
        if any(aim.start > aim.stop for aim in self.aims):
            raise ValueError("an aim ends before it starts")
        if len({aim.root for aim in self.aims}) < len(self.aims):
            raise ValueError("two aims are for one model")


NOTHING = Capacity(cores=0, memory_bytes=0, engine=False)


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A member as it describes itself.

    `seq`, `addresses`, `stored`, `runs` and `aims` are in its signed record. The other fields are
    facts in its feeds. `seq` grows with each change of the signed record.
    """

    peer: PeerId
    seq: int
    addresses: tuple[str, ...] = ()  # multiaddrs
    version: str = ""
    capacity: Capacity = NOTHING
    models: tuple[ModelName, ...] = ()
    shards: tuple[ShardRecord, ...] = ()
    stored: tuple[str, ...] = ()  # roots of the models of which the member has any chunk
    runs: tuple[int, ...] = ()  # a random number for each shard that the member serves now
    aims: tuple[Aim, ...] = ()  # one for each model that the member seeks, claims or holds
    shared: tuple[SharedModel, ...] = ()  # of other engines on its machine
    links: tuple[LinkSpeed, ...] = ()  # to members with which it shares models

    def aim_at(self, root: str) -> Aim | None:
        """Return the member's aim in a model, or None if there is none."""
        return next((aim for aim in self.aims if aim.root == root), None)


def seal_record(identity: Identity, record: MemberRecord) -> bytes:
    """Return the signed bytes of this node's own record.

    Raises BadRecord if other nodes would refuse the record, or if it has fields that belong in
    feeds.
    """
    body = encode_record(record)
    if decode_record(record.peer, body) != record:
        raise BadRecord("this node's own record is out of bounds")
    return seal(identity, DOMAIN, body)


def open_record(sealed: bytes) -> MemberRecord:
    """Check the signature of a record's sealed bytes, and decode the record.

    Raises Forged if the signature is invalid, and BadRecord if this version refuses what the author
    signed.
    """
    if len(sealed) > defaults.OPENED_BYTES:
        return _open(sealed)
    return _open_once(bytes(sealed))


def _open(sealed: bytes) -> MemberRecord:
    try:
        author, body = unseal(DOMAIN, sealed, limit=defaults.RECORD_BYTES)
    except TransportError as error:
        raise Forged(error.message) from None
    return decode_record(author, body)


# The nodes of a simulation open the same records, so they share the results: a signature that was
# valid once is always valid. Failures are not remembered.
_open_once = lru_cache(maxsize=defaults.OPENED)(_open)


def peek(sealed: bytes) -> tuple[PeerId, int]:
    """Return (author, sequence number) of a record without checking its signature.

    Raises Forged if the bytes are no envelope, and BadRecord if the sequence number is invalid.
    """
    try:
        public_key, _, body = split(sealed, defaults.RECORD_BYTES)
        author = peer_id_of(public_key)
        fields = decode(body, limit=defaults.RECORD_BYTES, once=True)
    except (TransportError, Undecodable, ValueError):
        raise Forged("malformed record") from None
    return author, _typed(_Seq, fields).seq


def encode_record(record: MemberRecord) -> bytes:
    """Encode a record as a msgpack map, without the author, which the signature names.

    Raises BadRecord if the record is too large.
    """
    fields: dict[str, object] = {
        "seq": record.seq,
        "addresses": [_unnamed(text, record.peer) for text in record.addresses],
        "stored": record.stored,
        "runs": record.runs,
    }
    if record.aims:
        fields["aims"] = record.aims
    body = pack(fields)
    if len(body) > defaults.RECORD_BYTES:
        raise BadRecord(f"a record has over {defaults.RECORD_BYTES} bytes")
    return body


def decode_record(author: PeerId, body: bytes) -> MemberRecord:
    """Decode a record, and check the type and limits of every value.

    Raises BadRecord if one is invalid.
    """
    try:
        said = _typed(_Body, decode(body, limit=defaults.RECORD_BYTES, once=True))
    except Undecodable as error:
        raise BadRecord(f"malformed record: {error}") from None
    return MemberRecord(
        peer=author,
        seq=said.seq,
        addresses=_understood(said.addresses, author),
        stored=said.stored,
        runs=said.runs,
        aims=said.aims,
    )


def _typed(kind: type[M], fields: object) -> M:
    try:
        return typed(kind, fields)
    except Undecodable as error:
        raise BadRecord(f"malformed record: {error}") from None


def _unnamed(text: str, author: PeerId) -> str:
    """Remove the author's peer id from the end of an address.

    The signature names the author already, and the ids would take up half of the record.
    """
    return text.removesuffix(author) if text.endswith(_NAMED + author) else text


def _understood(texts: Iterable[str], author: PeerId) -> tuple[str, ...]:
    """Return the addresses that this version can parse, in canonical form. Others are left out."""
    found = []
    for text in texts:
        try:
            found.append(str(Address.parse(text + author if text.endswith(_NAMED) else text)))
        except TransportError:
            continue
    return tuple(found)

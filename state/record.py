"""What a member says of itself: a small record, signed by its author, bounded when read.

The sealed bytes are what travels and what is forwarded, exactly as they came, so fields this
version does not know survive. Spec: docs/spec/membership.md.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgpack

from ..transport.address import Address
from ..transport.errors import TransportError
from ..transport.identity import Identity, PeerId, peer_id_of
from ..transport.signed import ENVELOPE_OVERHEAD, seal, unseal
from . import defaults
from .errors import BadRecord, Forged

T = TypeVar("T")
DOMAIN = "shoal/member/1"
_ROOT = re.compile(r"[0-9a-f]{64}")


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
    kv_tokens_free: int


NOTHING = Capacity(cores=0, memory_bytes=0, engine=False, flops=0.0, bandwidth=0.0)


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A member as it describes itself; `seq` grows with each change."""

    peer: PeerId
    seq: int
    addresses: tuple[str, ...] = ()  # multiaddrs
    version: str = ""
    capacity: Capacity = NOTHING
    models: tuple[ModelName, ...] = ()
    shards: tuple[ShardRecord, ...] = ()
    holdings: tuple[str, ...] = ()  # roots of which it has any chunk


def seal_record(identity: Identity, record: MemberRecord) -> bytes:
    """The signed bytes of an own record. Raises BadRecord where others would refuse it."""
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
    if len(sealed) > defaults.RECORD_BYTES + ENVELOPE_OVERHEAD:
        raise Forged("a record is too large")
    try:
        public_key, _, body = unpack(sealed, list)
        author = peer_id_of(public_key)
        fields = unpack(body, dict)
    except (BadRecord, ValueError, TypeError):
        raise Forged("a record is not readable") from None
    return author, seq_of(fields)


def encode_record(record: MemberRecord) -> bytes:
    """A msgpack map; the author is not in it, the signature names it."""
    capacity = record.capacity
    body: bytes = msgpack.packb(
        {
            "seq": record.seq,
            "addresses": record.addresses,
            "version": record.version,
            "capacity": {
                "cores": capacity.cores,
                "memory": capacity.memory_bytes,
                "engine": capacity.engine,
                "flops": capacity.flops,
                "bandwidth": capacity.bandwidth,
            },
            "models": [[m.name, m.root, m.layers, m.weight_bytes] for m in record.models],
            "shards": [
                [s.root, s.embedding, s.start, s.stop, s.head, s.dtype, s.kv_tokens_free]
                for s in record.shards
            ],
            "holdings": record.holdings,
        }
    )
    if len(body) > defaults.RECORD_BYTES:
        raise BadRecord(f"a record has over {defaults.RECORD_BYTES} bytes")
    return body


def decode_record(author: PeerId, body: bytes) -> MemberRecord:
    """Every value typed and bounded; numbers clamped. Raises BadRecord."""
    fields = unpack(body, dict)
    return MemberRecord(
        peer=author,
        seq=seq_of(fields),
        addresses=_addresses(fields.get("addresses", [])),
        version=_text(fields.get("version", ""), defaults.VERSION_BYTES),
        capacity=_capacity(fields.get("capacity", {})),
        models=_each(fields.get("models", []), defaults.MODELS, _model),
        shards=_each(fields.get("shards", []), defaults.SHARDS, _shard),
        holdings=_each(fields.get("holdings", []), defaults.HOLDINGS, _root),
    )


def unpack(data: bytes | memoryview, kind: type[T]) -> T:
    """One msgpack value of a type from a stranger. Raises BadRecord.

    The caller bounds the bytes; no length in them can exceed what is there.
    """
    try:
        value = msgpack.unpackb(data, strict_map_key=True, max_ext_len=0)
    except (ValueError, TypeError, msgpack.UnpackException):
        raise BadRecord("a message is not msgpack") from None
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


def _fields(value: object, kinds: Iterable[type]) -> list[Any]:
    kinds = tuple(kinds)
    if not isinstance(value, list) or [type(item) for item in value[: len(kinds)]] != list(kinds):
        raise BadRecord("a part of a record has a wrong form")
    return value[: len(kinds)]  # a later version may say more


def _addresses(value: object) -> tuple[str, ...]:
    """Those this version understands, in the one spelling; others are left out."""
    found = []
    for text in _each(value, defaults.ADDRESSES, lambda item: item):
        if not isinstance(text, str):
            raise BadRecord("an address is no text")
        try:
            found.append(str(Address.parse(text)))
        except TransportError:
            continue
    return tuple(found)


def _capacity(value: object) -> Capacity:
    if not isinstance(value, dict):
        raise BadRecord("a capacity has a wrong form")
    return Capacity(
        cores=_whole(value.get("cores", 0), defaults.MAX_CORES),
        memory_bytes=_whole(value.get("memory", 0), defaults.MAX_BYTES),
        engine=value.get("engine") is True,
        flops=_rate(value.get("flops", 0.0)),
        bandwidth=_rate(value.get("bandwidth", 0.0)),
    )


def _model(value: object) -> ModelName:
    name, root, layers, size = _fields(value, (str, str, int, int))
    return ModelName(
        _text(name, defaults.NAME_BYTES),
        _root(root),
        _whole(layers, defaults.MAX_LAYERS),
        _whole(size, defaults.MAX_BYTES),
    )


def _shard(value: object) -> ShardRecord:
    root, embedding, start, stop, head, dtype, free = _fields(
        value, (str, bool, int, int, bool, str, int)
    )
    if not 0 <= start < stop <= defaults.MAX_LAYERS:
        raise BadRecord("a shard has no layers")
    return ShardRecord(
        root=_root(root),
        embedding=embedding,
        start=start,
        stop=stop,
        head=head,
        dtype=_text(dtype, defaults.DTYPE_NAME_BYTES),
        kv_tokens_free=_whole(free, defaults.MAX_TOKENS),
    )


def _root(value: object) -> str:
    if not isinstance(value, str) or not _ROOT.fullmatch(value):
        raise BadRecord("a root is not 64 hex digits")
    return value


def _text(value: object, most: int) -> str:
    """Printable text of at most `most` bytes: it ends up on terminals."""
    if not isinstance(value, str) or len(value.encode()) > most or not value.isprintable():
        raise BadRecord(f"a text in a record is not at most {most} printable bytes")
    return value


def _whole(value: object, most: int) -> int:
    if type(value) is not int:
        raise BadRecord("a number in a record is not whole")
    return min(max(value, 0), most)


def _rate(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise BadRecord("a rate in a record is no number")
    return min(max(float(value), 0.0), defaults.MAX_RATE)  # type: ignore[arg-type]

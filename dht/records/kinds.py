"""Kinds of records: the fields of each with their limits, its key, and its slot.

Records of one author under one key are distinguished by their *slot*: a new record replaces the
earlier one in its slot. The type and the limits of every field are checked before it is used. Spec:
docs/spec/records.md.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, ClassVar, Final

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import force_setattr

from ...transport.decoding import typed
from ...transport.errors import Undecodable
from ...transport.identity import PeerId
from ...transport.message import Message, Root, check_text
from .. import defaults
from ..errors import BadRecord
from .key import Key, record_key

Fields = Mapping[str, object]
Runs = tuple[tuple[int, int], ...]
"""Runs of chunk indexes, each as (start, stop). They ascend, and there is a gap between them."""

_Size = Annotated[int, Meta(ge=0, le=defaults.SIZE_LIMIT)]
_Layer = Annotated[int, Meta(ge=0, le=defaults.LAYERS_LIMIT)]


class PeerBody(Message, frozen=True):
    """Record of the addresses at which a peer may be reached."""

    kind: ClassVar[str] = "peer"
    peer: PeerId = field(name="provider")
    addresses: Annotated[tuple[str, ...], Meta(max_length=defaults.PEER_ADDRESSES)]  # multiaddrs

    @property
    def key(self) -> Key:
        return record_key(self.kind, self.peer)

    @property
    def slot(self) -> str:
        return ""

    def check(self) -> None:
        """Raise ValueError if an address is not printable or too long."""
        for each in self.addresses:
            check_text(each, defaults.ADDRESS_BYTES)


class ShardBody(Message, frozen=True):
    """Record of a served shard: the layers `start` to `stop` of a model.

    `embedding` and `head` say whether the shard includes them.
    """

    kind: ClassVar[str] = "shard"
    root: Root
    start: _Layer
    stop: _Layer  # exclusive
    embedding: bool
    head: bool
    precision: str
    speed: float  # measured tokens/s, 0 if not measured

    @property
    def key(self) -> Key:
        return record_key(self.kind, self.root)

    @property
    def slot(self) -> str:
        return f"{self.start}:{self.stop}:{self.precision}"

    def check(self) -> None:
        """Check the layers and the precision, and limit the speed. Raises ValueError."""
        _check_layers(self.start, self.stop)
        check_text(self.precision, defaults.PRECISION_BYTES)
        if not math.isfinite(self.speed):
            raise ValueError("`speed` must be a finite number")
        force_setattr(self, "speed", min(max(self.speed, 0.0), defaults.SPEED_LIMIT))


class _BlobBody(Message, frozen=True):
    """Encoded body of a `blob` record.

    `ranges` lists the runs of chunks as alternating gaps and lengths, because these numbers are
    small. It is absent if all chunks are stored.
    """

    root: Root
    size: _Size
    chunks: Annotated[int, Meta(ge=1, le=defaults.CHUNKS_LIMIT)]
    ranges: (
        Annotated[
            tuple[Annotated[int, Meta(ge=0, le=defaults.CHUNKS_LIMIT)], ...],
            Meta(max_length=2 * defaults.BLOB_RUNS),
        ]
        | UnsetType
    ) = UNSET


class BlobBody(Struct, frozen=True):
    """Record of a blob or model whose chunks its author has.

    These are the chunks in `ranges`, or all if it is None.
    """

    kind: ClassVar[str] = "blob"
    root: str
    size: int  # bytes
    chunks: int
    ranges: Runs | None = None  # at most `BLOB_RUNS`, see `longest_runs`

    @property
    def key(self) -> Key:
        return record_key(self.kind, self.root)

    @property
    def slot(self) -> str:
        return ""

    def fields(self) -> dict[str, object]:
        """Return the fields besides the kind, as they are encoded."""
        ranges = UNSET if self.ranges is None else tuple(_steps(self.ranges))
        return _BlobBody(self.root, self.size, self.chunks, ranges).fields()

    @classmethod
    def read(cls, fields: Fields) -> "BlobBody":
        """Decode a body from its fields. Raises Undecodable if one is invalid."""
        told = typed(_BlobBody, fields)
        ranges = None if told.ranges is UNSET else _runs(told.ranges, told.chunks)
        return cls(told.root, told.size, told.chunks, ranges)


class KvBody(Message, frozen=True):
    """Record of a KV cache: the first `blocks` blocks of a chain, for the layers (start, stop).

    `first` is the name of the chain's first block, and part of the key. `tip` is the name of the
    last block that the author has. `salt` identifies the group that shares the KV.
    """

    kind: ClassVar[str] = "kv"
    root: Root
    precision: str
    adapter: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]  # a root, or "" for none
    salt: str
    first: Root
    tip: Root
    blocks: Annotated[int, Meta(ge=1, le=defaults.BLOCKS_LIMIT)]
    layers: tuple[_Layer, _Layer]

    @property
    def key(self) -> Key:
        return kv_key(self.root, self.precision, self.adapter, self.salt, self.first)

    @property
    def slot(self) -> str:
        return self.tip

    def check(self) -> None:
        """Raise ValueError if the layers or a text are invalid."""
        check_text(self.precision, defaults.PRECISION_BYTES)
        check_text(self.salt, defaults.SALT_BYTES)
        _check_layers(*self.layers)


def kv_key(root: str, precision: str, adapter: str, salt: str, first: str) -> Key:
    """Return the key of the records about all chains that have the same first block."""
    return record_key(KvBody.kind, root, precision, adapter, salt, first)


class NameBody(Message, frozen=True):
    """Record in which its author vouches that a name means the model with this root."""

    kind: ClassVar[str] = "name"
    name: Annotated[str, Meta(min_length=1)]
    root: Root
    layers: Annotated[int, Meta(ge=1, le=defaults.LAYERS_LIMIT)]
    size: _Size  # bytes

    @property
    def key(self) -> Key:
        return record_key(self.kind, self.name)

    @property
    def slot(self) -> str:
        return self.root

    def check(self) -> None:
        """Raise ValueError if the name is not printable or too long."""
        check_text(self.name, defaults.NAME_BYTES)


class OtherBody(Message, frozen=True):
    """Body of a kind that this version does not know, reduced to its key and slot."""

    kind: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]*\Z", max_length=defaults.KIND_BYTES)]
    parts: Annotated[tuple[str, ...], Meta(max_length=defaults.PARTS)]
    slot: str

    @property
    def key(self) -> Key:
        return record_key(self.kind, *self.parts)

    def fields(self) -> dict[str, object]:
        """Return the fields besides the kind, as they are encoded."""
        return {"parts": self.parts, "slot": self.slot}

    def check(self) -> None:
        """Raise ValueError if a part or the slot is not printable or too long."""
        for each in self.parts:
            check_text(each, defaults.NAME_BYTES)
        check_text(self.slot, defaults.SLOT_BYTES)


KnownBody = PeerBody | ShardBody | BlobBody | KvBody | NameBody
Body = KnownBody | OtherBody
_TYPES: Final[dict[str, type[PeerBody | ShardBody | KvBody | NameBody | OtherBody]]] = {
    each.kind: each for each in (PeerBody, ShardBody, KvBody, NameBody)
}


def read_body(author: PeerId, fields: Fields) -> Body:
    """Decode the body of a record from its fields.

    Raises BadRecord: `bad-type` if a field is invalid, `not-provider` if the record names another
    peer than its author as the provider.
    """
    if fields.get("provider", author) != author:
        raise _stranger(author)
    kind = fields.get("kind")
    try:
        if kind == BlobBody.kind:
            return BlobBody.read(fields)
        return typed(_TYPES.get(kind, OtherBody) if isinstance(kind, str) else OtherBody, fields)
    except Undecodable as error:
        raise BadRecord("bad-type", f"invalid record: {error}") from None


def longest_runs(runs: Sequence[tuple[int, int]]) -> Runs:
    """Return the longest runs in ascending order, as many as a record may list."""
    kept = sorted(runs, key=lambda run: run[0] - run[1])[: defaults.BLOB_RUNS]
    return tuple(sorted(kept))


def _steps(runs: Runs) -> list[int]:
    """Encode runs as alternating gaps and lengths."""
    steps, last = [], 0
    for start, stop in runs:
        steps += [start - last, stop - start]
        last = stop
    return steps


def _runs(steps: Sequence[int], chunks: int) -> Runs:
    """Decode alternating gaps and lengths.

    Raises Undecodable if they are not runs of `chunks` chunks.
    """
    places = [0, *accumulate(steps)]
    if len(steps) % 2 or places[-1] > chunks or not all(a < b for a, b in pairwise(places[1:])):
        raise Undecodable("`ranges` must be ascending pairs of gaps and lengths within the blob")
    return tuple(zip(places[1::2], places[2::2], strict=True))


def _check_layers(start: int, stop: int) -> None:
    """Raise ValueError if `start` is greater than `stop`."""
    if start > stop:
        raise ValueError("`layers` must be a start and a stop")


def _stranger(author: PeerId) -> BadRecord:
    """Return the error for a record that names another peer than its author as the provider."""
    return BadRecord("not-provider", f"the record of `{author}` names another peer as provider")

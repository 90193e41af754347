"""Kinds of records: their fields with limits, their key and their slot.

Every field is type-checked and limited before it is used. Spec: docs/spec/records.md.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final, TypeVar

from ...transport.identity import PeerId
from .. import defaults
from ..errors import BadRecord
from .key import Key, record_key

T = TypeVar("T")
Fields = Mapping[str, Any]
Runs = tuple[tuple[int, int], ...]
"""Start and stop of each run of chunk indexes, ascending and not adjacent."""

_ROOT = re.compile(r"[0-9a-f]{64}")
_KIND = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class PeerBody:
    """Record of the addresses at which a peer may be reached."""

    kind: ClassVar[str] = "peer"
    peer: PeerId
    addresses: tuple[str, ...]  # multiaddrs

    @property
    def key(self) -> Key:
        return record_key(self.kind, self.peer)

    @property
    def slot(self) -> str:
        return ""

    def fields(self) -> dict[str, Any]:
        return {"provider": self.peer, "addresses": self.addresses}

    @classmethod
    def read(cls, author: PeerId, fields: Fields) -> "PeerBody":
        if fields.get("provider") != author:
            raise _stranger(author)
        listed = _list(fields, "addresses", defaults.PEER_ADDRESSES)
        return cls(author, tuple(_printable(each, defaults.ADDRESS_BYTES) for each in listed))


@dataclass(frozen=True, slots=True)
class ShardBody:
    """Record of a served shard: layers start:stop of a model, perhaps with embedding and head."""

    kind: ClassVar[str] = "shard"
    root: str  # 64 hex digits
    start: int
    stop: int  # exclusive
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

    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def read(cls, author: PeerId, fields: Fields) -> "ShardBody":
        start, stop = _layers([fields.get("start"), fields.get("stop")])
        return cls(
            root=_root(fields, "root"),
            start=start,
            stop=stop,
            embedding=_typed(fields, "embedding", bool),
            head=_typed(fields, "head", bool),
            precision=_text(fields, "precision", defaults.PRECISION_BYTES),
            speed=_speed(fields),
        )


@dataclass(frozen=True, slots=True)
class BlobBody:
    """Record of a blob or model whose chunks are held: those in `ranges`, or all."""

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

    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = {"root": self.root, "size": self.size, "chunks": self.chunks}
        if self.ranges is not None:
            found["ranges"] = _steps(self.ranges)
        return found

    @classmethod
    def read(cls, author: PeerId, fields: Fields) -> "BlobBody":
        chunks = _whole(fields, "chunks", 1, defaults.CHUNKS_LIMIT)
        ranges = None
        if "ranges" in fields:
            ranges = _runs(_list(fields, "ranges", 2 * defaults.BLOB_RUNS), chunks)
        size = _whole(fields, "size", 0, defaults.SIZE_LIMIT)
        return cls(_root(fields, "root"), size, chunks, ranges)


@dataclass(frozen=True, slots=True)
class KvBody:
    """Record of a KV cache: the first `blocks` blocks of a chain, for layers start:stop.

    The key contains the name of the chain's `first` block; `tip` names the last block held.
    """

    kind: ClassVar[str] = "kv"
    root: str
    precision: str
    adapter: str  # a root, or "" for none
    salt: str
    first: str  # 64 hex digits, as `tip`
    tip: str
    blocks: int
    layers: tuple[int, int]

    @property
    def key(self) -> Key:
        return kv_key(self.root, self.precision, self.adapter, self.salt, self.first)

    @property
    def slot(self) -> str:
        return self.tip

    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def read(cls, author: PeerId, fields: Fields) -> "KvBody":
        return cls(
            root=_root(fields, "root"),
            precision=_text(fields, "precision", defaults.PRECISION_BYTES),
            adapter=_root(fields, "adapter") if fields.get("adapter") != "" else "",
            salt=_text(fields, "salt", defaults.SALT_BYTES),
            first=_root(fields, "first"),
            tip=_root(fields, "tip"),
            blocks=_whole(fields, "blocks", 1, defaults.BLOCKS_LIMIT),
            layers=_layers(_list(fields, "layers", 2)),
        )


def kv_key(root: str, precision: str, adapter: str, salt: str, first: str) -> Key:
    """Return the key of all records about chains with the same first block."""
    return record_key(KvBody.kind, root, precision, adapter, salt, first)


@dataclass(frozen=True, slots=True)
class NameBody:
    """Record in which its author vouches that a name means a model."""

    kind: ClassVar[str] = "name"
    name: str
    root: str
    layers: int
    size: int  # bytes

    @property
    def key(self) -> Key:
        return record_key(self.kind, self.name)

    @property
    def slot(self) -> str:
        return self.root

    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def read(cls, author: PeerId, fields: Fields) -> "NameBody":
        return cls(
            name=_text(fields, "name", defaults.NAME_BYTES, least=1),
            root=_root(fields, "root"),
            layers=_whole(fields, "layers", 1, defaults.LAYERS_LIMIT),
            size=_whole(fields, "size", 0, defaults.SIZE_LIMIT),
        )


@dataclass(frozen=True, slots=True)
class OtherBody:
    """Body of a kind that this version does not know, reduced to its key and slot."""

    kind: str
    parts: tuple[str, ...]
    slot: str

    @property
    def key(self) -> Key:
        return record_key(self.kind, *self.parts)

    def fields(self) -> dict[str, Any]:
        return {"parts": self.parts, "slot": self.slot}

    @classmethod
    def read(cls, kind: str, fields: Fields) -> "OtherBody":
        listed = _list(fields, "parts", defaults.PARTS)
        parts = tuple(_printable(each, defaults.NAME_BYTES) for each in listed)
        return cls(kind, parts, _text(fields, "slot", defaults.SLOT_BYTES))


KnownBody = PeerBody | ShardBody | BlobBody | KvBody | NameBody
Body = KnownBody | OtherBody
_KINDS: Final[tuple[type[KnownBody], ...]] = (PeerBody, ShardBody, BlobBody, KvBody, NameBody)
_READERS: Final[dict[str, Callable[[PeerId, Fields], Body]]] = {
    each.kind: each.read for each in _KINDS
}


def read_body(author: PeerId, fields: Fields) -> Body:
    """Decode the body from a record's fields. Raises BadRecord: `bad-type`, `not-provider`."""
    if fields.get("provider", author) != author:
        raise _stranger(author)
    kind = _text(fields, "kind", defaults.KIND_BYTES)
    if not _KIND.fullmatch(kind):
        raise _bad("`kind` must be a lower-case word")
    read = _READERS.get(kind)
    return OtherBody.read(kind, fields) if read is None else read(author, fields)


def longest_runs(runs: Sequence[tuple[int, int]]) -> Runs:
    """Return the longest runs, as many as a record may list."""
    kept = sorted(runs, key=lambda run: run[0] - run[1])[: defaults.BLOB_RUNS]
    return tuple(sorted(kept))


def _steps(runs: Runs) -> list[int]:
    """Encode runs as alternating gaps and lengths, which are small numbers."""
    steps, last = [], 0
    for start, stop in runs:
        steps += [start - last, stop - start]
        last = stop
    return steps


def _runs(steps: list[Any], chunks: int) -> Runs:
    if len(steps) % 2 or not all(type(step) is int and 0 <= step <= chunks for step in steps):
        raise _bad("`ranges` must alternate gaps and lengths")
    places = [0]
    for step in steps:
        places.append(places[-1] + step)
    if places[-1] > chunks or not all(a < b for a, b in pairwise(places[1:])):
        raise _bad("`ranges` must be ascending and within the blob")
    return tuple(zip(places[1::2], places[2::2], strict=True))


def _bad(why: str) -> BadRecord:
    return BadRecord("bad-type", f"invalid record: {why}")


def _stranger(author: PeerId) -> BadRecord:
    return BadRecord("not-provider", f"the record of `{author}` names another peer as provider")


def _typed(fields: Fields, name: str, kind: type[T]) -> T:
    value = fields.get(name)
    if type(value) is not kind:
        raise _bad(f"`{name}` has the wrong type")
    return value


def _text(fields: Fields, name: str, most: int, least: int = 0) -> str:
    text = _printable(fields.get(name), most)
    if len(text) < least:
        raise _bad(f"`{name}` is empty")
    return text


def _printable(value: object, most: int) -> str:
    """Check a text, which must be printable because it is shown on terminals."""
    if type(value) is not str or len(value.encode()) > most or not value.isprintable():
        raise _bad(f"expected a text of at most {most} printable bytes")
    return value


def _root(fields: Fields, name: str) -> str:
    value = fields.get(name)
    if type(value) is not str or not _ROOT.fullmatch(value):
        raise _bad(f"`{name}` is not 64 hex digits")
    return value


def _whole(fields: Fields, name: str, least: int, most: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not least <= value <= most:
        raise _bad(f"`{name}` is not an integer from {least} to {most}")
    return value


def _list(fields: Fields, name: str, most: int) -> list[Any]:
    value = fields.get(name)
    if type(value) is not list or len(value) > most:
        raise _bad(f"`{name}` is not a list of at most {most} items")
    return value


def _layers(value: list[Any]) -> tuple[int, int]:
    if len(value) != 2 or not all(type(each) is int for each in value):
        raise _bad("`layers` must be a start and a stop")
    start, stop = value
    if not 0 <= start <= stop <= defaults.LAYERS_LIMIT:
        raise _bad(f"`layers` must be within 0 to {defaults.LAYERS_LIMIT}")
    return start, stop


def _speed(fields: Fields) -> float:
    value = fields.get("speed")
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise _bad("`speed` must be a number")
    return min(max(float(value), 0.0), defaults.SPEED_LIMIT)  # type: ignore[arg-type]

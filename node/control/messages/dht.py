"""Messages about the DHT and look-ups in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Never

from ....dht.figures import DhtFigures
from ... import defaults
from .encoding import Ask, Json, Text

KEYS: Final = (
    "a key is a peer id, a model's name or NAME@HASH, a root, or 64 hex digits as "
    "`shoal find --path` shows them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetDht(Ask[DhtFigures, Never]):
    """Ask for this node's part in the DHT."""

    op = "dht"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """A record. `says` has the fields of its kind (docs/spec/records.md). `age_s` is the time since
    its author last published it; `by` is the peer that delivered it, None unless from the DHT."""

    kind: str
    author: str
    says: Mapping[str, Json]
    age_s: float
    made: int
    ttl_s: float
    by: str | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One request of a look-up. `shared`: leading bits that the peer's key shares with the
    requested key; `path`: number of the disjoint path; `took_ms` is None before the reply."""

    peer: str
    shared: int
    hop: int
    path: int
    at_ms: float
    took_ms: float | None
    answer: str
    records: int
    contacts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The records under one key, and the requests that found them."""

    about: str
    key: str
    took_ms: float
    records: tuple[RecordView, ...]
    path: tuple[StepView, ...]


@dataclass(frozen=True, slots=True)
class Searches:
    """The searches that a key led to."""

    searches: tuple[Search, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Find(Ask[Searches, Never]):
    """Look up a peer id, a model's name, root or NAME@HASH, or 64 hex digits."""

    op = "find"
    key: Annotated[str, Text(defaults.FIND_KEY, hint=KEYS)]


# Contents of the known kinds of records.


@dataclass(frozen=True, slots=True)
class PeerSays:
    """The addresses of a peer."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShardSays:
    """The layers that a node serves; `speed` in tokens per second, 0 if unknown."""

    start: int
    stop: int
    precision: str
    speed: float


@dataclass(frozen=True, slots=True)
class BlobSays:
    """The chunks of a blob that a provider has. `ranges`: lengths of runs of missing and held
    chunks in turn, None if it has all; `size` in bytes."""

    chunks: int
    size: int
    ranges: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class NameSays:
    """The model that a name means."""

    name: str
    root: str
    layers: int


@dataclass(frozen=True, slots=True)
class KvSays:
    """The KV blocks that a node has, for layers from the first up to the second number."""

    blocks: int
    layers: tuple[int, ...]
    precision: str

"""Messages about the DHT and look-ups in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Never

from ....dht.figures import DhtFigures
from ... import defaults
from .encoding import Ask, Json, TextBound

KEYS: Final = (
    "a key is a peer id, a model's name or NAME@HASH, a root, or 64 hex digits as "
    "`shoal find --path` shows them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetDht(Ask[DhtFigures, Never]):
    """Request for this node's contacts, stored records and other figures of its DHT service."""

    op = "dht"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """A record of the DHT, as `shoal find` shows it.

    `says` has the fields of the record's kind (docs/spec/records.md). `age_s` is the time since the
    author last published the record, and `ttl_s` its lifetime, both in seconds. `source` is `here`,
    `members` or `dht`. `by` is the peer that delivered the record, or None if it does not come from
    the DHT.
    """

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
    """One request of a look-up.

    `shared` is the number of leading bits that the peer's key shares with the requested key. `path`
    is the number of the look-up's disjoint path. `at_ms` is the time from the start of the look-up
    to the request. `took_ms` is None until the peer replies.
    """

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
class SearchView:
    """The records found under one key, and the requests that found them (`path`)."""

    about: str
    key: str
    took_ms: float
    records: tuple[RecordView, ...]
    path: tuple[StepView, ...]


@dataclass(frozen=True, slots=True)
class Searches:
    """The searches that one argument of `shoal find` led to."""

    searches: tuple[SearchView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp(Ask[Searches, Never]):
    """Request to look up a peer id, a model (by name, root or NAME@HASH), or a key (64 hex
    digits)."""

    op = "find"
    key: Annotated[str, TextBound(defaults.FIND_KEY, hint=KEYS)]


# The fields `says` of a `RecordView`, for each known kind of record.


@dataclass(frozen=True, slots=True)
class PeerSays:
    """Addresses that a peer publishes."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShardSays:
    """Layers that a node serves, from `start` up to but not including `stop`. `speed` is in tokens
    per second, and 0 if unknown."""

    start: int
    stop: int
    precision: str
    speed: float


@dataclass(frozen=True, slots=True)
class BlobSays:
    """Chunks of a blob that a provider has.

    `ranges` has the lengths of alternating runs of missing and present chunks, beginning with a
    missing run. It is None if the provider has all chunks. `size` is in bytes.
    """

    chunks: int
    size: int
    ranges: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class NameSays:
    """The model that an author means by a name."""

    name: str
    root: str
    layers: int


@dataclass(frozen=True, slots=True)
class KvSays:
    """KV blocks that a node has. `layers` is the pair (first layer, layer after the last)."""

    blocks: int
    layers: tuple[int, ...]
    precision: str

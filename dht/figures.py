"""Figures of a node's DHT, which `shoal dht` shows. All times are durations in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BucketFigures:
    """Counts of one bucket: the contacts whose keys share `shared` leading bits with this node's.

    `reachable` of the `contacts` have a public address, and `waiting` others may replace them.
    """

    shared: int
    contacts: int
    reachable: int
    waiting: int


@dataclass(frozen=True, slots=True)
class StoredFigures:
    """Records of other nodes stored here: their number, their bytes, and the limit in bytes."""

    records: int
    bytes: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRecordFigures:
    """A record that this node publishes, or its withdrawal if `gone`.

    `about` names its subject. `stored` is the number of nodes that acknowledged the last
    announcement. `announced_s` is the time since the last announcement, and `due_s` the time until
    the next one; None means never.
    """

    kind: str
    key: str
    about: str
    gone: bool
    stored: int
    announced_s: float | None
    due_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncementFigures:
    """The last walk, which announced `keys` records with `messages` requests.

    It took `took_s`, and ended `ended_s` ago.
    """

    ended_s: float
    took_s: float
    keys: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DhtFigures:
    """A node's part in the DHT: its `mode`, the reason `why`, and its tables.

    `size` is the estimated number of DHT servers. `servers` is the number of contacts with a public
    address, and `links` the number of open links that only the DHT uses. `refused` counts the
    refused requests and records of other nodes, and `disbelieved` their rejected replies, both by
    error code.
    """

    mode: str
    why: str
    size: float
    contacts: int
    servers: int
    links: int
    buckets: tuple[BucketFigures, ...]
    stored: StoredFigures
    refused: Mapping[str, int]
    disbelieved: Mapping[str, int]
    own: tuple[OwnRecordFigures, ...]
    walk: AnnouncementFigures | None

"""Figures of a node's DHT for its owner. Times are in seconds, durations unless said otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BucketFigures:
    """The contacts whose keys share this number of leading bits with this node's key."""

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
    """An own record. `kept`: nodes that acknowledged the last announcement.

    `announced_s` is the time since then, and `due_s` the time until the next; None for never.
    """

    kind: str
    key: str
    about: str
    gone: bool
    kept: int
    announced_s: float | None
    due_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncementFigures:
    """The last announcement: when it ended, how long it took, its keys and messages."""

    ended_s: float
    took_s: float
    keys: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DhtFigures:
    """A node's part in the DHT. `size`: estimated number of DHT servers.

    `servers`: contacts with a public address; `links`: those only for look-ups. `refused` counts
    requests and records of other nodes by code, `disbelieved` their replies.
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

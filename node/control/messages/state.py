"""Messages about the shared state of the swarm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Never

from .encoding import Ask, Event, IfKnown, Json, Reply, TextBound

Word = Annotated[str, TextBound(256)]
Parts = Mapping[str, tuple[int, ...]]
"""For each kind of feed, the numbers of the parts into which feeds of that kind are split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedState:
    """Event that describes a feed as this node knows it.

    `epoch` is the time at which the author began the feed, in milliseconds since 1970. `bytes` is
    its size. `forked` says whether the author signed two different versions of it. `facts` has the
    current values by key, and is None unless they were requested.
    """

    event: Literal["feed"] = "feed"
    author: str
    kind: str
    part: int
    epoch: int
    entries: int
    bytes: int
    hash: str
    forked: bool
    facts: IfKnown[Mapping[str, Json]] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """Figures of the shared state that this node knows.

    `feeds` is the number of feeds that were sent, and `unreadable` the number of facts that could
    not be decoded. `keeps` has the parts of other nodes' feeds that this node stores; None means
    all. `alone` has those of these parts that no linked peer stores.
    """

    feeds: int
    own: str
    members: int
    unreadable: int
    keeps: Parts | None = None
    alone: Parts | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """Number of feeds that were exported."""

    feeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskForFeeds(Ask[Reply, Event]):
    """Base of the requests about feeds.

    `kind` restricts the feeds to one kind, and `author` to one author (`me` is this node). None
    means all.
    """

    kind: IfKnown[Word] = None
    author: IfKnown[Word] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowState(AskForFeeds[StateView, FeedState]):
    """Request for the feeds. If an author is given, the reply has the facts of each feed as
    well."""

    op = "state_show"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportState(AskForFeeds[Exported, FeedState]):
    """Request for the feeds with their facts."""

    op = "state_export"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactChange:
    """Event that describes one change of a fact.

    `made` is the time of the change in seconds since 1970, by the author's clock. If `earlier` is
    true, the change may be older than that. `value` is None if the author withdrew the fact.
    """

    event: Literal["said"] = "said"
    author: str
    kind: str
    part: int
    epoch: int
    seq: int
    made: float
    earlier: bool
    key: str
    value: Json = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Number of changes that were sent."""

    changes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState(AskForFeeds[Changes, FactChange]):
    """Request for the changes of the facts with this key. If `key` is None, all changes are
    sent."""

    op = "state_log"
    key: IfKnown[Word] = None


@dataclass(frozen=True, slots=True)
class FeedNameView:
    """Name of a feed: its author, its kind, and the number of its part."""

    author: str
    kind: str
    part: int


@dataclass(frozen=True, slots=True)
class CheckedState:
    """Result of a check of the store: the numbers of intact feeds, entries and bytes, and the
    damaged feeds, which this node fetches again."""

    feeds: int
    entries: int
    bytes: int
    damaged: tuple[FeedNameView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyState(Ask[CheckedState, Never]):
    """Request to verify every signature in the store."""

    op = "state_verify"

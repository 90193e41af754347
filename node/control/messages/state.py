"""Messages about the swarm's shared state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Never

from .encoding import Ask, Event, IfKnown, Json, Reply, Text

Word = Annotated[str, Text(256)]
Parts = Mapping[str, tuple[int, ...]]
"""Parts of feeds, by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """A feed as this node knows it. `facts` is None unless they were requested; `epoch` is in
    milliseconds since 1970."""

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
class State:
    """The state that this node knows. `feeds` counts, `unreadable` counts skipped facts.

    `keeps`: the stored parts of other nodes' feeds, None for all; `alone`: those of them that no
    linked peer stores.
    """

    feeds: int
    own: str
    members: int
    unreadable: int
    keeps: Parts | None = None
    alone: Parts | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """The number of exported feeds."""

    feeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskForFeeds(Ask[Reply, Event]):
    """A request about some feeds: those of a kind, and of an author (`me`: this node)."""

    kind: IfKnown[Word] = None
    author: IfKnown[Word] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowState(AskForFeeds[State, Feed]):
    """Ask for the feeds, with their facts if an author is given."""

    op = "state_show"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportState(AskForFeeds[Exported, Feed]):
    """Ask for the feeds with their facts."""

    op = "state_export"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a fact. `made` is in seconds since 1970, by the author's clock, or earlier if
    `earlier`; `value` is None if the fact was withdrawn."""

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
    """The number of changes."""

    changes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState(AskForFeeds[Changes, Change]):
    """Ask for the changes of a key, or for all changes."""

    op = "state_log"
    key: IfKnown[Word] = None


@dataclass(frozen=True, slots=True)
class FeedName:
    """The name of a feed."""

    author: str
    kind: str
    part: int


@dataclass(frozen=True, slots=True)
class CheckedState:
    """The intact feeds and entries, and their bytes; damaged feeds are fetched again."""

    feeds: int
    entries: int
    bytes: int
    damaged: tuple[FeedName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyState(Ask[CheckedState, Never]):
    """Verify every signature in the store."""

    op = "state_verify"

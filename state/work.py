"""Changes of the store, as they wait to be committed."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..transport.identity import PeerId
from .entry import Entry, FeedName, Head, Proof


@dataclass(frozen=True, slots=True)
class Put:
    """Entries of any feeds, each next to the one before or the first of a later epoch."""

    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class Drop:
    """Everything by these authors goes."""

    authors: Sequence[PeerId]


@dataclass(frozen=True, slots=True)
class Forget:
    """Everything of these feeds goes."""

    names: Sequence[FeedName]


@dataclass(frozen=True, slots=True)
class Cut:
    """Of a feed nothing stays that is behind this entry of its epoch."""

    name: FeedName
    head: Head


Work = Put | Proof | Drop | Forget | Cut


def size_of(work: Work) -> int:
    """Bytes of entries that a change brings."""
    if isinstance(work, Put):
        return sum(entry.size for entry in work.entries)
    if isinstance(work, Proof):
        return work.first.size + work.second.size
    return 0

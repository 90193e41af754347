"""The changes that the store can be asked to make."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...transport.identity import PeerId
from .entry import Entry, FeedName, Head, Proof


@dataclass(frozen=True, slots=True)
class Put:
    """Store entries. Each one follows the stored entries of its feed, or begins a later epoch."""

    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete all feeds of these authors."""

    authors: Sequence[PeerId]


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete these feeds."""

    names: Sequence[FeedName]


@dataclass(frozen=True, slots=True)
class FeedCut:
    """Delete the entries of a feed that come after this head."""

    name: FeedName
    head: Head


Work = Put | Proof | Drop | Forget | FeedCut


def size_of(work: Work) -> int:
    """Return the size in bytes of the entries that a change adds."""
    if isinstance(work, Put):
        return sum(entry.size for entry in work.entries)
    if isinstance(work, Proof):
        return work.first.size + work.second.size
    return 0

"""All feeds of a replica: those that somebody uses, and what is to be known of the others.

Fifty thousand feeds are kept, and a few dozen of them are in use at a time: with a document, or
with entries on their way to the archive. Of one that nobody has at hand there is its head in the
digest and a row of a few bytes here; `Feed` is made of that again.
"""

import struct
from collections.abc import Collection, Iterator
from typing import Final
from weakref import WeakValueDictionary

from ..transport.identity import peer_id_of, public_key_of
from .digest import Digest, Plot
from .ends import Ends
from .entry import FeedName, Head
from .feed import Feed
from .kinds import all_parts

_PLOTS: Final[tuple[Plot, ...]] = tuple(all_parts())
_NUMBERS: Final = {plot: number for number, plot in enumerate(_PLOTS)}
_ROW: Final = struct.Struct(">BII")
"""The number of a kind and part; bytes of the feed's entries, and of its facts in the views."""


class Feeds:
    """By author, kind and part. `digest` has the heads of all, `ends` where some end."""

    def __init__(self, digest: Digest, ends: Ends) -> None:
        self._digest = digest
        self._ends = ends
        self._rows: dict[bytes, bytes] = {}
        self._used: WeakValueDictionary[tuple[bytes, Plot], Feed] = WeakValueDictionary()
        self._own: dict[tuple[bytes, Plot], Feed] = {}

    def authors(self) -> Collection[bytes]:
        """The keys of those of whom there is anything in the archive."""
        return self._rows.keys()

    def plots(self, key: bytes) -> list[Plot]:
        """Of which kinds and parts there is a feed of this author."""
        kept = {number for number, _, _ in self._sizes(key)}
        used = self._used
        return [plot for at, plot in enumerate(_PLOTS) if at in kept or (key, plot) in used]

    def get(self, key: bytes, plot: Plot) -> Feed | None:
        """The feed: the same object as long as anybody has it."""
        feed = self._used.get((key, plot))
        if feed is None:
            for number, size, memory in self._sizes(key):
                if number == _NUMBERS[plot]:
                    name, head = FeedName(peer_id_of(key), *plot), self._digest.head(key, plot)
                    feed = Feed(name, head, size, self._ends.of(key, plot), memory)
                    self._used[key, plot] = feed
        return feed

    def used(self, key: bytes, plot: Plot) -> Feed | None:
        """The feed, where somebody has it."""
        return self._used.get((key, plot))

    def head(self, key: bytes, plot: Plot) -> Head | None:
        """The head of a feed, on its way to the archive or there."""
        feed = self._used.get((key, plot))
        return self._digest.head(key, plot) if feed is None else feed.head

    def weight(self, key: bytes) -> int:
        """Bytes of all entries of an author, or of its facts in the views where that is more."""
        entries = facts = 0
        for _, size, memory in self._sizes(key):
            entries, facts = entries + size, facts + memory
        return max(entries, facts)

    def use(self, feed: Feed) -> None:
        """This is the feed now, as long as somebody has it; `keep` it once it is archived."""
        self._used[public_key_of(feed.name.author), plot_of(feed.name)] = feed

    def hold(self, feed: Feed) -> None:
        """The same for good: its writer has it."""
        self.use(feed)
        self._own[public_key_of(feed.name.author), plot_of(feed.name)] = feed

    def keep(self, key: bytes, plot: Plot, size: int, memory: int = 0) -> bool:
        """It is in the archive, its head in the digest, and takes so many bytes (`Feed`): whether
        that is news."""
        if (_NUMBERS[plot], size, memory) in self._sizes(key):
            return False
        self._set(key, plot, _ROW.pack(_NUMBERS[plot], size, memory))
        return True

    def drop(self, key: bytes, plot: Plot) -> None:
        """There is no such feed any more."""
        self._used.pop((key, plot), None)
        self._own.pop((key, plot), None)
        self._set(key, plot, b"")

    def _sizes(self, key: bytes) -> Iterator[tuple[int, ...]]:
        """The rows of an author."""
        return _ROW.iter_unpack(self._rows.get(key, b""))

    def _set(self, key: bytes, plot: Plot, row: bytes) -> None:
        rows = self._rows.get(key, b"")
        numbers = rows[:: _ROW.size]
        at = numbers.find(_NUMBERS[plot]) % (len(numbers) + 1) * _ROW.size  # -1: behind the last
        self._rows[key] = rows[:at] + row + rows[at + _ROW.size :]
        if not self._rows[key]:
            del self._rows[key]


def plot_of(name: FeedName) -> Plot:
    """Its kind and part: of each one object."""
    return _PLOTS[_NUMBERS[name.kind, name.part]]

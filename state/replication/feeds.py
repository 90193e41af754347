"""Table of all feeds of a replica: feeds in use as objects, all others as compact rows.

A replica has up to fifty thousand feeds, of which a few dozen are in use at a time: those with a
document in memory, or with entries that are not in the archive yet. A feed that is not in use has
only its head in the digest and a row of a few bytes here. A `Feed` object is created from these
when it is needed.
"""

import struct
from collections.abc import Collection, Iterator
from typing import Final
from weakref import WeakValueDictionary

from ...transport.identity import peer_id_of, public_key_of
from ..feeds.digest import Digest, Plot
from ..feeds.entry import FeedName, Head
from ..feeds.feed import Feed
from ..feeds.kinds import all_parts
from .ends import Ends

_PLOTS: Final[tuple[Plot, ...]] = tuple(all_parts())
_NUMBERS: Final = {plot: number for number, plot in enumerate(_PLOTS)}
_ROW: Final = struct.Struct(">BII")
"""The number of the plot, the size of the feed's entries, and the size of its facts in the
views."""


class Feeds:
    """Feeds by author and plot (kind and part).

    `digest` has the heads of all archived feeds. `ends` has the ends of revoked members' feeds.
    """

    def __init__(self, digest: Digest, ends: Ends) -> None:
        self._digest = digest
        self._ends = ends
        self._rows: dict[bytes, bytes] = {}
        self._used: WeakValueDictionary[tuple[bytes, Plot], Feed] = WeakValueDictionary()
        self._own: dict[tuple[bytes, Plot], Feed] = {}

    def authors(self) -> Collection[bytes]:
        """Return the public keys of the authors with feeds in the archive."""
        return self._rows.keys()

    def plots(self, key: bytes) -> list[Plot]:
        """Return the plots of which this author has a feed."""
        kept = {number for number, _, _ in self._sizes(key)}
        used = self._used
        return [plot for at, plot in enumerate(_PLOTS) if at in kept or (key, plot) in used]

    def get(self, key: bytes, plot: Plot) -> Feed | None:
        """Return a feed, or None if there is none.

        Returns the same object as long as something refers to it.
        """
        feed = self._used.get((key, plot))
        if feed is None:
            for number, size, memory in self._sizes(key):
                if number == _NUMBERS[plot]:
                    name, head = FeedName(peer_id_of(key), *plot), self._digest.head(key, plot)
                    feed = Feed(name, head, size, self._ends.of(key, plot), memory)
                    self._used[key, plot] = feed
        return feed

    def used(self, key: bytes, plot: Plot) -> Feed | None:
        """Return a feed if it is in use, else None."""
        return self._used.get((key, plot))

    def head(self, key: bytes, plot: Plot) -> Head | None:
        """Return the head of a feed, even if its last entries are not in the archive yet."""
        feed = self._used.get((key, plot))
        return self._digest.head(key, plot) if feed is None else feed.head

    def weight(self, key: bytes) -> int:
        """Return the weight of an author's feeds in bytes.

        The weight is the size of their entries or of their facts in the views, whichever is larger.
        """
        entries = facts = 0
        for _, size, memory in self._sizes(key):
            entries, facts = entries + size, facts + memory
        return max(entries, facts)

    def use(self, feed: Feed) -> None:
        """Cache this object with a weak reference, so that `get` returns it while it is in use.

        Call `keep` once the feed is in the archive; without its row, the feed is lost with the
        object.
        """
        self._used[public_key_of(feed.name.author), plot_of(feed.name)] = feed

    def hold(self, feed: Feed) -> None:
        """Store this object, so that `get` always returns it.

        The writer needs this for this node's feeds.
        """
        self.use(feed)
        self._own[public_key_of(feed.name.author), plot_of(feed.name)] = feed

    def keep(self, key: bytes, plot: Plot, size: int, memory: int = 0) -> bool:
        """Store the row of a feed that is in the archive and whose head is in the digest.

        `size` is the size of its entries, and `memory` that of its facts in the views, in bytes.
        Returns whether the row has changed.
        """
        if (_NUMBERS[plot], size, memory) in self._sizes(key):
            return False
        self._set(key, plot, _ROW.pack(_NUMBERS[plot], size, memory))
        return True

    def drop(self, key: bytes, plot: Plot) -> None:
        """Remove a feed from the table."""
        self._used.pop((key, plot), None)
        self._own.pop((key, plot), None)
        self._set(key, plot, b"")

    def _sizes(self, key: bytes) -> Iterator[tuple[int, ...]]:
        """Return an iterator over the rows of an author: (number of the plot, size, memory)."""
        return _ROW.iter_unpack(self._rows.get(key, b""))

    def _set(self, key: bytes, plot: Plot, row: bytes) -> None:
        rows = self._rows.get(key, b"")
        numbers = rows[:: _ROW.size]
        at = numbers.find(_NUMBERS[plot]) % (len(numbers) + 1) * _ROW.size  # -1: append it
        self._rows[key] = rows[:at] + row + rows[at + _ROW.size :]
        if not self._rows[key]:
            del self._rows[key]


def plot_of(name: FeedName) -> Plot:
    """Return the plot (kind and part) of a feed. Equal plots share one object, to save memory."""
    return _PLOTS[_NUMBERS[name.kind, name.part]]

"""Bounded queue in memory of changes that the disk has not accepted yet.

Readers see the stored entries with these changes applied: new entries follow the stored ones, and
if a change removes the end of a feed, only its earlier stored entries are returned.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from ...transport.identity import PeerId
from .. import defaults
from .entry import Entry, FeedName, Head, Proof
from .feed import NOWHERE
from .store import DeleteFeeds, Drop, FeedCut, Put, Work, size_of

_Entries = dict[tuple[int, int], tuple[int, Entry]]
"""Entries of one feed and epoch, by epoch and seq, each with the number of its change."""
_NONE: Final = (-1,)


class PendingChanges:
    """Queue of pending changes, in their order, at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._works: deque[Work] = deque()
        self._first = 0  # number of the oldest change; numbers are consecutive
        self._size = 0
        self._entries: dict[FeedName, _Entries] = {}
        """Pending entries by feed, without those that a later change removes. `_proofs` leaves out
        removed proofs in the same way."""
        self._proofs: dict[FeedName, tuple[int, Proof]] = {}
        self._limits: dict[FeedName, dict[int, Head]] = {}
        """Feed -> number of each pending change that removes entries of the feed -> the last stored
        entry that the change leaves, or NOWHERE if it leaves none."""
        self._drops: dict[PeerId, int] = {}
        """Author -> number of the last pending change that drops the author."""

    def __len__(self) -> int:
        return len(self._works)

    def has_room(self, work: Work) -> bool:
        """Return whether `add` would accept this change."""
        return self._size + _cost(work) <= self._limit

    def add(self, work: Work) -> bool:
        """Append a change to the queue. Return False if it does not fit."""
        if not self.has_room(work):
            return False
        number = self._first + len(self._works)
        if isinstance(work, Put):
            for entry in work.entries:
                self._put(entry, number)
        elif isinstance(work, Drop):
            self._drop(work.authors, number)
        elif isinstance(work, DeleteFeeds):
            for name in work.names:
                self._take(name, NOWHERE, number)
        elif isinstance(work, FeedCut):
            self._take(work.name, self._left(work), number)
        elif work.name not in self._proofs:  # the first one is enough
            self._take(work.name, NOWHERE, number)
            self._proofs[work.name] = number, work
        self._works.append(work)
        self._size += _cost(work)
        return True

    def _put(self, entry: Entry, number: int) -> None:
        if entry.name in self._proofs:
            return
        kept = self._entries.setdefault(entry.name, {})
        epoch = _epoch(kept, entry.epoch)
        if entry.epoch > epoch:
            kept.clear()
        if entry.epoch >= epoch:
            kept.setdefault((entry.epoch, entry.seq), (number, entry))

    def _drop(self, authors: Iterable[PeerId], number: int) -> None:
        gone = dict.fromkeys(authors, number)
        self._drops |= gone
        for table in (self._entries, self._proofs):
            for name in [name for name in table if name.author in gone]:
                del table[name]

    def _take(self, name: FeedName, left: Head, number: int) -> None:
        """Index the change `number`, which removes a feed's proof and its entries after `left`.

        Pending entries and proofs that the change removes are taken out of the index.
        """
        self._limits.setdefault(name, {})[number] = left
        self._proofs.pop(name, None)
        kept = self._entries.pop(name, {})
        kept = {at: put for at, put in kept.items() if at <= left[:2]}
        if kept:
            self._entries[name] = kept

    def _left(self, cut: FeedCut) -> Head:
        """Return the last entry that a cut leaves: `cut.head`, or NOWHERE if it leaves none.

        It leaves none if the pending entries of the feed do not lead to `cut.head`. The stored
        entries are not checked here, because the caller has read them.
        """
        kept, at = self._entries.get(cut.name, {}), cut.head[:2]
        if at in kept:
            there = kept[at][1].head == cut.head
        else:
            there = all(other[0] == at[0] and other > at for other in kept)
        return cut.head if there and cut.name not in self._proofs else NOWHERE

    def first(self, limit: int) -> list[Work]:
        """Return the oldest changes, up to about `limit` bytes of them."""
        size, found = 0, list[Work]()
        for work in islice(self._works, defaults.COMMIT_WORKS):
            if size >= limit:
                break
            size += size_of(work)
            found.append(work)
        return found

    def forget(self, count: int) -> None:
        """Remove the `count` oldest changes from the queue, because they are on disk now."""
        for _ in range(count):
            work = self._works.popleft()
            self._size -= _cost(work)
            if isinstance(work, Put):
                for entry in work.entries:
                    self._forget_entry(entry)
            elif isinstance(work, Drop):
                for author in work.authors:
                    if self._drops.get(author) == self._first:
                        del self._drops[author]
            else:
                for name in work.names if isinstance(work, DeleteFeeds) else (work.name,):
                    self._forget_limit(name)
                    if self._proofs.get(name, _NONE)[0] == self._first:
                        del self._proofs[name]
            self._first += 1

    def _forget_entry(self, entry: Entry) -> None:
        kept, at = self._entries.get(entry.name, {}), (entry.epoch, entry.seq)
        # otherwise it was removed, and perhaps added again
        if kept.get(at, _NONE)[0] == self._first:
            del kept[at]
        if not kept:
            self._entries.pop(entry.name, None)

    def _forget_limit(self, name: FeedName) -> None:
        limits = self._limits.get(name, {})
        limits.pop(self._first, None)
        if not limits:
            self._limits.pop(name, None)

    def after(
        self, stored: list[bytes], name: FeedName, epoch: int, seq: int, limit: int
    ) -> list[bytes]:
        """Return entries of an epoch from `seq` on, up to `limit` bytes.

        `stored` contains the entries from `seq` on that the disk has. The result begins with those
        of them that no pending change removes, and continues with the pending entries that follow.
        """
        kept = self._entries.get(name, {})
        if _epoch(kept, epoch) > epoch:
            return []
        found = stored[: max(0, self._shown(name, epoch) - seq)]
        rest = limit - sum(map(len, found))
        while put := kept.get((epoch, seq + len(found))):
            rest -= put[1].size
            if found and rest < 0:
                break
            found.append(put[1].sealed)
        return found

    def _shown(self, name: FeedName, epoch: int) -> int:
        """Return how many of the stored entries of an epoch remain once the pending changes are
        applied."""
        if name.author in self._drops:
            return 0
        heads = self._limits.get(name, {}).values()
        counts = (head.seq + 1 if head.epoch == epoch else 0 for head in heads)
        return min(counts, default=defaults.EPOCH_ENTRIES)

    def removes(self, name: FeedName) -> bool:
        """Return whether a pending change removes entries of a feed from the disk. Such a change
        also removes the feed's stored proof."""
        return name in self._limits or name.author in self._drops

    def proof(self, name: FeedName) -> Proof | None:
        """Return the pending proof that a feed has forked, or None if there is none."""
        found = self._proofs.get(name)
        return None if found is None else found[1]


def _epoch(kept: _Entries, epoch: int) -> int:
    """Return the epoch of these entries, or `epoch` if there are none."""
    return next(iter(kept), (epoch, 0))[0]


def _cost(work: Work) -> int:
    """Return the bytes that a change counts as.

    The result is the size of the change, and HELD_WORK bytes for each feed or author that it names.
    """
    taken = 1
    if isinstance(work, DeleteFeeds):
        taken = len(work.names)
    elif isinstance(work, Drop):
        taken = len(work.authors)
    return defaults.HELD_WORK * taken + size_of(work)

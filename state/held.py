"""Changes that the disk has not taken yet, in memory, up to a bound; and reading them.

A reader has what the disk gives and these changes together: entries that are put follow on what is
stored, and of a feed from which something is taken what is stored shows up to there.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from ..transport.identity import PeerId
from . import defaults
from .entry import Entry, FeedName, Head, Proof
from .feed import NOWHERE
from .work import Cut, Drop, Forget, Put, Work, size_of

_Entries = dict[tuple[int, int], tuple[int, Entry]]
"""Of one feed and epoch, by epoch and seq; with the number of the change that puts it."""
_NONE: Final = (-1,)


class Held:
    """Changes in their order, at most `limit` bytes of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._works: deque[Work] = deque()
        self._first = 0  # the number of the oldest: each has one
        self._size = 0
        self._entries: dict[FeedName, _Entries] = {}
        """What later changes take away is not in it, nor in `_proofs`."""
        self._proofs: dict[FeedName, tuple[int, Proof]] = {}
        self._limits: dict[FeedName, dict[int, Head]] = {}
        """For each change here that takes something from a feed, by its number: the last stored
        entry that it leaves, NOWHERE where that is none."""
        self._drops: dict[PeerId, int] = {}
        """The number of the last change that drops an author."""

    def __len__(self) -> int:
        return len(self._works)

    def has_room(self, work: Work) -> bool:
        """Whether `add` would take it."""
        return self._size + _cost(work) <= self._limit

    def add(self, work: Work) -> bool:
        """Keep it; False where there is no room."""
        if not self.has_room(work):
            return False
        number = self._first + len(self._works)
        if isinstance(work, Put):
            for entry in work.entries:
                self._put(entry, number)
        elif isinstance(work, Drop):
            self._drop(work.authors, number)
        elif isinstance(work, Forget):
            for name in work.names:
                self._take(name, NOWHERE, number)
        elif isinstance(work, Cut):
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
        """Of a feed nothing stays that is behind that entry."""
        self._limits.setdefault(name, {})[number] = left
        self._proofs.pop(name, None)
        kept = self._entries.pop(name, {})
        kept = {at: put for at, put in kept.items() if at <= left[:2]}
        if kept:
            self._entries[name] = kept

    def _left(self, cut: Cut) -> Head:
        """Where a cut ends; nothing is left where the entries here do not lead to that one. Whether
        the stored ones do is not looked at: who cuts has read it there."""
        kept, at = self._entries.get(cut.name, {}), cut.head[:2]
        if at in kept:
            there = kept[at][1].head == cut.head
        else:
            there = all(other[0] == at[0] and other > at for other in kept)
        return cut.head if there and cut.name not in self._proofs else NOWHERE

    def first(self, limit: int) -> list[Work]:
        """The oldest ones, of about `limit` bytes."""
        size, found = 0, list[Work]()
        for work in islice(self._works, defaults.COMMIT_WORKS):
            if size >= limit:
                break
            size += size_of(work)
            found.append(work)
        return found

    def forget(self, count: int) -> None:
        """So many of the oldest are stored."""
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
                for name in work.names if isinstance(work, Forget) else (work.name,):
                    self._forget_limit(name)
                    if self._proofs.get(name, _NONE)[0] == self._first:
                        del self._proofs[name]
            self._first += 1

    def _forget_entry(self, entry: Entry) -> None:
        kept, at = self._entries.get(entry.name, {}), (entry.epoch, entry.seq)
        if kept.get(at, _NONE)[0] == self._first:  # else it was taken away, and perhaps put again
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
        """`stored` entries from `seq` on, as far as they stay, and those in memory that follow, up
        to `limit` bytes."""
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
        """How many of the stored entries of an epoch stay."""
        if name.author in self._drops:
            return 0
        heads = self._limits.get(name, {}).values()
        counts = (head.seq + 1 if head.epoch == epoch else 0 for head in heads)
        return min(counts, default=defaults.EPOCH_ENTRIES)

    def removes(self, name: FeedName) -> bool:
        """Whether something that is stored of a feed is to go, and with it any proof."""
        return name in self._limits or name.author in self._drops

    def proof(self, name: FeedName) -> Proof | None:
        """The proof in memory that a feed has forked."""
        found = self._proofs.get(name)
        return None if found is None else found[1]


def _epoch(kept: _Entries, epoch: int) -> int:
    """The epoch of these entries; the given one where there are none."""
    return next(iter(kept), (epoch, 0))[0]


def _cost(work: Work) -> int:
    """Bytes that it counts: some for each feed or author from which it takes something."""
    taken = 1
    if isinstance(work, Forget):
        taken = len(work.names)
    elif isinstance(work, Drop):
        taken = len(work.authors)
    return defaults.HELD_WORK * taken + size_of(work)

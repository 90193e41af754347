"""Changes that the disk has not taken yet, in memory, up to a bound; and reading them."""

from collections import deque
from itertools import islice

from . import defaults
from .entry import Entry, FeedName, Proof
from .work import Put, Work, size_of


class Held:
    """Changes in their order, at most `limit` bytes of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._works: deque[Work] = deque()
        self._size = 0
        self._entries: dict[FeedName, dict[tuple[int, int], Entry]] = {}
        self._proofs: dict[FeedName, Proof] = {}

    def __len__(self) -> int:
        return len(self._works)

    def has_room(self, work: Work) -> bool:
        """Whether `add` would take it."""
        return self._size + _cost(work) <= self._limit

    def add(self, work: Work) -> bool:
        """Keep it; False where there is no room."""
        if not self.has_room(work):
            return False
        self._works.append(work)
        self._size += _cost(work)
        if isinstance(work, Put):
            for entry in work.entries:
                self._entries.setdefault(entry.name, {})[entry.epoch, entry.seq] = entry
        elif isinstance(work, Proof):
            self._proofs[work.name] = work
        return True

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
            elif isinstance(work, Proof):
                self._proofs.pop(work.name, None)

    def _forget_entry(self, entry: Entry) -> None:
        kept = self._entries.get(entry.name, {})
        kept.pop((entry.epoch, entry.seq), None)
        if not kept:
            self._entries.pop(entry.name, None)

    def after(
        self, stored: list[bytes], name: FeedName, epoch: int, seq: int, limit: int
    ) -> list[bytes]:
        """`stored` entries from `seq` on, and those in memory that follow, up to `limit` bytes."""
        kept = self._entries.get(name)
        if kept is None:
            return stored
        found, rest = list(stored), limit - sum(map(len, stored))
        while entry := kept.get((epoch, seq + len(found))):
            rest -= entry.size
            if found and rest < 0:
                break
            found.append(entry.sealed)
        return found

    def proof(self, name: FeedName) -> Proof | None:
        """The proof in memory that a feed has forked."""
        return self._proofs.get(name)


def _cost(work: Work) -> int:
    return defaults.HELD_WORK + size_of(work)

"""Feeds that write, for benches of the store: real signatures and chains, made-up updates."""

from collections.abc import Iterable
from random import Random

from shoal.state.feeds.entry import NO_PARENT, Entry, FeedName, Head, read_stored, seal_entry
from shoal.state.feeds.stored import StoredFeed
from shoal.transport.identity import Identity, PeerId

KINDS = ("member", "jobs", "claims")
EPOCH_ENTRIES = 24  # approximate number, then a snapshot


class Writers:
    """Some authors' feeds; `heads` are their current heads."""

    def __init__(self, authors: int, random: Random) -> None:
        self._identities = {
            identity.peer: identity
            for identity in (Identity.from_seed(number.to_bytes(32)) for number in range(authors))
        }
        self.names = [FeedName(peer, kind, 0) for peer in self._identities for kind in KINDS]
        self.heads: dict[FeedName, Head] = {}
        self._random = random

    @property
    def peers(self) -> list[PeerId]:
        return list(self._identities)

    def resume(self, feeds: Iterable[StoredFeed]) -> None:
        """Continue from the stored feeds."""
        self.heads = {feed.name: feed.head for feed in feeds}

    def write(self, count: int, *, size: int = 3000) -> list[Entry]:
        """Return the next entries of one feed; sometimes the first is a snapshot."""
        name = self._random.choice(self.names)
        return [self._next(name, size) for _ in range(count)]

    def _next(self, name: FeedName, size: int) -> Entry:
        head = self.heads.get(name)
        fresh = head is None or self._random.random() < 1 / EPOCH_ENTRIES
        last = head or Head(0, 0, b"")
        entry = seal_entry(
            self._identities[name.author],
            name.kind,
            name.part,
            epoch=last.epoch + 1 if fresh else last.epoch,
            seq=0 if fresh else last.seq + 1,
            parent=NO_PARENT if fresh else last.hash,
            made=0,
            update=self._random.randbytes(self._random.randrange(size)),
        )
        self.heads[name] = entry.head
        return entry


def lacks(found: dict[FeedName, StoredFeed], acknowledged: dict[FeedName, Head]) -> list[FeedName]:
    """Return the feeds for which an acknowledged entry is not stored."""
    return [name for name, head in acknowledged.items() if not _holds(found.get(name), head)]


def _holds(feed: StoredFeed | None, head: Head) -> bool:
    if feed is None or feed.head.epoch < head.epoch:
        return False
    # replaced since by entries that were written but not acknowledged
    if feed.head.epoch > head.epoch:
        return True
    return feed.head.seq >= head.seq and read_stored(feed.entries[head.seq]).hash == head.hash

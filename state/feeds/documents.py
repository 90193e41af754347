"""Cache of the most recently used feed documents in memory, limited in number and bytes."""

from collections import OrderedDict

from .entry import FeedName
from .feed import Feed


class Documents:
    """LRU cache of at most `most` documents, which take at most `most_bytes` of memory.

    The document that was used last stays in memory even if it alone exceeds the limit.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._used: OrderedDict[FeedName, tuple[Feed, int]] = OrderedDict()  # oldest use first
        self._size = 0

    def __len__(self) -> int:
        return len(self._used)

    def use(self, feed: Feed) -> None:
        """Mark a feed's document as the one used last, and unload others beyond the limits.

        If the document is not in memory, the feed is removed from the cache.
        """
        self._take_out(feed)
        if feed.document is None:
            return
        self._used[feed.name] = feed, feed.document.memory
        self._size += feed.document.memory
        while len(self._used) > 1 and (
            len(self._used) > self._most or self._size > self._most_bytes
        ):
            self.let_go(next(iter(self._used.values()))[0])

    def let_go(self, feed: Feed) -> None:
        """Unload a feed's document, and remove it from the cache.

        `Feed.load` builds the document again.
        """
        self._take_out(feed)
        feed.unload()

    def _take_out(self, feed: Feed) -> None:
        _, size = self._used.pop(feed.name, (feed, 0))
        self._size -= size

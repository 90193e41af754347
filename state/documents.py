"""Which feeds have their document in memory: those used last, within bounds."""

from collections import OrderedDict

from .entry import FeedName
from .feed import Feed


class Documents:
    """At most so many documents, of so many bytes of memory together, though always the last."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._used: OrderedDict[FeedName, tuple[Feed, int]] = OrderedDict()  # longest ago first
        self._size = 0

    def __len__(self) -> int:
        return len(self._used)

    def use(self, feed: Feed) -> None:
        """A feed's document, where it has one, was used now; others are let go of for it."""
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
        """Its document is not needed for now; `Feed.load` makes it again."""
        self._take_out(feed)
        feed.unload()

    def _take_out(self, feed: Feed) -> None:
        _, size = self._used.pop(feed.name, (feed, 0))
        self._size -= size

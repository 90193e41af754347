"""Accounting of the blobs that this node stores for jobs of other nodes. No I/O.

Peers cost nothing, so limits per peer bound nothing: all these blobs together have a part of the
library's disk limit. A blob is *pinned* if this node has confirmed to a peer that it stores the
blob, or has made it as the trainer of a job. Pinned blobs are never evicted for others. Any other
blob only saves a second fetch, and the least recently used ones are evicted first.
"""

from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from . import defaults
from .errors import JobsDiskFull


@dataclass(slots=True)
class JobBlob:
    """A blob of jobs of these authors. `size` is in bytes on this disk, or a little more, and
    `used` is the time of its last use in seconds."""

    authors: tuple[str, ...]
    size: int = defaults.LEAST_CHARGE
    pinned: bool = False
    used: float = 0.0


class Marker(NamedTuple):
    """Content of a blob's marker file.

    It names the authors that the blob is stored for. The second field is "pinned" or "read"
    (`JobBlob`), or missing if this node has made the blob itself.
    """

    authors: tuple[str, ...] = ()
    use: str = ""

    @classmethod
    def read(cls, text: str) -> "Marker":
        """Read the content of a marker file."""
        authors, _, use = text.partition("\n")
        return cls(tuple(authors.split()), use)

    def packed(self) -> bytes:
        """Return the content of the marker file."""
        return " ".join(self.authors).encode() + (b"\n" + self.use.encode() if self.use else b"")


class Allotment:
    """The blobs of other nodes' jobs, by root."""

    def __init__(self) -> None:
        self.blobs: dict[str, JobBlob] = {}
        self._users = Counter[str]()  # by root: reads and fetches in progress
        self._reserved = 0  # bytes of blobs that are fetched, read and deleted

    @contextmanager
    def using(self, root: str) -> Iterator[None]:
        """Prevent the eviction of a blob within the `with` block."""
        self._users[root] += 1
        try:
            yield
        finally:
            self._users[root] -= 1
            if not self._users[root]:
                del self._users[root]

    def users(self, root: str) -> int:
        """Return how many reads and fetches of a blob are in progress."""
        return self._users[root]

    def is_used(self, root: str) -> bool:
        """Return whether a blob is being read or fetched."""
        return root in self._users

    @property
    def size(self) -> int:
        """Bytes of all blobs."""
        return self._reserved + sum(blob.size for blob in self.blobs.values())

    def forget_lost(self, stored: Container[str]) -> list[str]:
        """Remove the blobs that are not `stored` any more, and return their roots."""
        lost = [root for root in self.blobs if root not in stored and not self.is_used(root)]
        for root in lost:
            del self.blobs[root]
        return lost

    def to_evict(self, needed: int, part: int) -> list[str]:
        """Return the blobs to evict so that `needed` more bytes fit into a part of the disk.

        Raises JobsDiskFull if evicting all others would not be enough.
        """
        lacking, going = self.size + needed - part, list[str]()
        free = [r for r, b in self.blobs.items() if not b.pinned and not self.is_used(r)]
        for root in sorted(free, key=lambda each: (self.blobs[each].used, each)):
            if lacking <= 0:
                break
            lacking -= self.blobs[root].size
            going.append(root)
        if lacking > 0:
            raise JobsDiskFull(needed, part, self.size)
        return going

    def check_pinned(self, needed: int, part: int, author: str) -> None:
        """Raise JobsDiskFull if `needed` more bytes cannot be pinned for an author.

        Pinned blobs may fill only a share of `part` (bytes), so that the rows of this node's own
        work always find room. Of that share, an author may take as many bytes as stay free beside
        it. The first author can therefore take at most half.
        """
        share = int(part * defaults.PINNED_SHARE)
        pinned = [blob for blob in self.blobs.values() if blob.pinned]
        free = share - self._reserved - sum(blob.size for blob in pinned) - needed
        mine = sum(blob.size for blob in pinned if author in blob.authors)
        if mine + needed > free:
            raise JobsDiskFull(needed, share, share - free - needed)

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        """Count `size` bytes within the `with` block."""
        self._reserved += size
        try:
            yield
        finally:
            self._reserved -= size

"""Stored feeds, with their checksums and the checks for damage."""

import hashlib
import struct
from typing import Final, NamedTuple

from ...transport.host.database import Row
from ..errors import BadEntry
from .entry import FORKED, NO_PARENT, FeedName, Head, open_entry

_SUM_BYTES: Final = 8


class StoredFeed(NamedTuple):
    """A feed as it is stored. If the feed has forked, `head` is FORKED and there are no entries."""

    name: FeedName
    head: Head
    size: int  # bytes of the entries, or of the proof
    entries: tuple[bytes, ...]  # sealed, from seq 0 to the head


def verify(feed: StoredFeed) -> bool:
    """Return whether every entry is signed by the author, and the entries form a chain up to the
    head."""
    parent = NO_PARENT
    for number, sealed in enumerate(feed.entries):
        try:
            entry = open_entry(sealed)
        except BadEntry:
            return False
        place = entry.name, entry.epoch, entry.seq, entry.parent
        if place != (feed.name, feed.head.epoch, number, parent):
            return False
        parent = entry.hash
    return feed.head == FORKED or parent == feed.head.hash


def checked(name: FeedName, row: Row, entries: list[Row]) -> StoredFeed | None:
    """Return the feed in these rows, or None if a checksum shows that the rows are damaged."""
    feed, epoch, seq, digest, size, total, key = row
    head = Head(epoch, seq, digest)
    if total != feed_sum(key, feed, head, size):
        return None
    if head == FORKED:
        return StoredFeed(name, FORKED, size, ()) if not entries else None
    if len(entries) != seq + 1:
        return None
    for number, (at, sealed, expected) in enumerate(entries):
        if at != number or expected != entry_sum(key, feed, epoch, number, sealed):
            return None
    return StoredFeed(name, head, size, tuple(sealed for _, sealed, _ in entries))


def entry_sum(key: bytes, feed: int, epoch: int, seq: int, sealed: bytes) -> bytes:
    """Return the checksum that the row of an entry must have."""
    place = struct.pack(">32sqqH", key, feed, epoch, seq)
    return hashlib.blake2b(place + sealed, digest_size=_SUM_BYTES).digest()


def feed_sum(key: bytes, feed: int, head: Head, size: int) -> bytes:
    """Return the checksum that the row of a feed must have."""
    place = struct.pack(">32sqqqq", key, feed, head.epoch, head.seq, size)
    return hashlib.blake2b(place + head.hash, digest_size=_SUM_BYTES).digest()

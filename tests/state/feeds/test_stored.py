"""Verification of a whole stored feed."""

from shoal.state.feeds.entry import FORKED, Entry, Head
from shoal.state.feeds.stored import StoredFeed, checked, entry_sum, feed_sum, verify

from ..chains import chain, identity, name, sealed


def stored(entries: list[Entry], head: Head | None = None) -> StoredFeed:
    size = sum(entry.size for entry in entries)
    return StoredFeed(name(1), head or entries[-1].head, size, tuple(sealed(entries)))


def test_a_sound_feed_is_verified() -> None:
    assert verify(stored(chain(1, 4)))
    assert verify(StoredFeed(name(1), FORKED, 0, ()))


def test_any_other_feed_is_not_verified() -> None:
    entries, other = chain(1, 4), chain(1, 4, salt=b"other")
    assert not verify(stored([*entries[:2], other[2], entries[3]])), "the chain is broken"
    assert not verify(stored(entries[:3], entries[3].head)), "the last one is missing"
    assert not verify(stored(entries[1:])), "the first one is missing"
    assert not verify(stored(chain(2, 4))), "another author's"
    assert not verify(stored(chain(1, 4, kind="jobs"))), "another kind"
    assert not verify(StoredFeed(name(1), FORKED, 0, ())._replace(entries=(b"x",)))
    feed = stored(entries)
    at = 40  # a byte of the signature
    spoilt = feed.entries[0][:at] + bytes([feed.entries[0][at] ^ 1]) + feed.entries[0][at + 1 :]
    assert not verify(feed._replace(entries=(spoilt, *feed.entries[1:])))


def test_sums_cover_the_identity_of_a_row() -> None:
    entries, key = chain(1, 2), identity(1).public_key
    head, size = entries[-1].head, sum(entry.size for entry in entries)
    rows = [(n, e.sealed, entry_sum(key, 5, 1, n, e.sealed)) for n, e in enumerate(entries)]
    row = (5, *head, size, feed_sum(key, 5, head, size), key)
    assert checked(name(1), row, rows) == stored(entries)
    assert checked(name(1), (6, *row[1:]), rows) is None
    assert checked(name(1), row, rows[:1]) is None
    assert checked(name(1), row, [rows[0], (1, *rows[0][1:])]) is None
    assert checked(name(1), (*row[:6], identity(2).public_key), rows) is None

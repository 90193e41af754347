"""The feeds on disk, in one SQLite file with the entries of each feed's current epoch.

Every method blocks, so it must be called in `Host.offload`, one at a time. Rows are numbered so
that an author's feeds are adjacent, and so are a feed's entries:

    authors(id, key)                             the public key
    kinds(id, name)
    feeds(id, epoch, seq, hash, size, sum)       id = author << 12 | kind << 4 | part
    entries(id, sealed, sum)                     id = feed << 12 | seq
    proofs(id, first, second)                    two entries of a feed that has forked
    meta(name, value)                            a value written to probe the disk

`sum` is a checksum over a row's content and its identity. It detects pages that the disk has
changed, lost or restored from an earlier time. A feed with a wrong checksum is dropped, and fetched
from peers again. Signatures were checked before the entries were stored. Damage that SQLite itself
finds raises DatabaseDamaged. The format is specified in docs/spec/store.md.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...transport.errors import DatabaseDamaged, HostError
from ...transport.host.database import Database, Row
from ...transport.identity import PeerId, peer_id_of, public_key_of
from .. import defaults
from ..errors import BadEntry, BadOrder, FeedDamaged, StateError
from .entry import FORKED, Entry, FeedName, Head, Proof, open_proof, read_stored
from .kinds import KINDS
from .stored import StoredFeed, checked, entry_sum, feed_sum

VERSION: Final = 1
_APPLICATION: Final = 0x73686F61  # "shoa": what `file` and others see in the header
_PART_BITS: Final = 4
_FEED_BITS: Final = 12  # a kind's number and a part
_SEQ_BITS: Final = 12

_SCHEMA = (
    "CREATE TABLE authors (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE) STRICT",
    "CREATE TABLE kinds (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT",
    "CREATE TABLE feeds (id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, seq INTEGER NOT NULL,"
    " hash BLOB NOT NULL, size INTEGER NOT NULL, sum BLOB NOT NULL) STRICT",
    "CREATE TABLE entries (id INTEGER PRIMARY KEY, sealed BLOB NOT NULL, sum BLOB NOT NULL) STRICT",
    "CREATE TABLE proofs (id INTEGER PRIMARY KEY, first BLOB NOT NULL, second BLOB NOT NULL)"
    " STRICT",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID",
    f"PRAGMA application_id={_APPLICATION}",
    f"PRAGMA user_version={VERSION}",
)

_TABLES: Final = {"authors", "kinds", "feeds", "entries", "proofs", "meta"}


@dataclass(frozen=True, slots=True)
class Put:
    """Change that stores entries. Each follows the stored ones of its feed, or begins an epoch."""

    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class Drop:
    """Change that deletes all feeds of these authors."""

    authors: Sequence[PeerId]


@dataclass(frozen=True, slots=True)
class DeleteFeeds:
    """Change that deletes these feeds."""

    names: Sequence[FeedName]


@dataclass(frozen=True, slots=True)
class FeedCut:
    """Change that deletes the entries of a feed that come after this head."""

    name: FeedName
    head: Head


Work = Put | Proof | Drop | DeleteFeeds | FeedCut


def size_of(work: Work) -> int:
    """Return the size in bytes of the entries that a change adds."""
    if isinstance(work, Put):
        return sum(entry.size for entry in work.entries)
    if isinstance(work, Proof):
        return work.first.size + work.second.size
    return 0


class LoadedFeeds(NamedTuple):
    """Result of `Store.feeds`: some feeds, and the damaged feeds among them, which were deleted.

    `after` is the number to pass to the next call, or None if there are no more feeds.
    """

    feeds: list[StoredFeed]
    damaged: list[FeedName]
    after: int | None


class Store:
    """Store of feeds in an open SQLite database.

    Any method may raise OSError or DatabaseDamaged, besides the errors that its docstring names.
    """

    def __init__(self, database: Database) -> None:
        """Create or check the tables of an open database, which the store closes in the end.

        Raises HostError if a later version of shoal wrote the database.
        """
        self.database = database
        """The database in which the feeds are stored."""
        self._ready()
        self._kinds: dict[str, int] = {
            name: number for number, name in database.rows("SELECT id, name FROM kinds LIMIT 256")
        }
        self.loose = True
        """Whether rows were deleted, so that the file may have free pages for `make_smaller`."""

    def _ready(self) -> None:
        database = self.database
        row = database.row("PRAGMA user_version")
        version = row[0] if row is not None else 0
        if version > VERSION:
            raise HostError("a later version of shoal wrote the store of the state")
        if version == 0:
            with database.transaction():
                for statement in _SCHEMA:
                    database.run(statement)
                for number, name in enumerate(KINDS):
                    database.run("INSERT INTO kinds VALUES (?, ?)", number, name)
            return
        tables = database.rows("SELECT name FROM sqlite_schema WHERE type = 'table' LIMIT 10")
        found = database.rows("PRAGMA quick_check(1)")
        if found != [("ok",)] or {name for (name,) in tables} != _TABLES:
            raise DatabaseDamaged(f"the store of the state is damaged: {found[0][0]}")
        with database.transaction():
            for name in KINDS:
                database.run("INSERT OR IGNORE INTO kinds (name) VALUES (?)", name)

    def close(self) -> None:
        """Close the store.

        The log is merged into the file if the disk allows it. Raises no error.
        """
        self.database.close()

    # Changing.

    def commit(self, works: Sequence[Work]) -> list[StateError | None]:
        """Apply all changes in one transaction, which is on disk when this returns.

        Returns one item for each change: None, or BadOrder for a change that was not applied.
        """
        with self.database.transaction():
            results = [self._attempt(work) for work in works]
        self._tidy()
        return results

    def _tidy(self) -> None:
        with suppress(OSError):  # committed changes are safe in the log
            self.database.tidy()

    def probe(self) -> None:
        """Write some data, to check that the disk accepts writes again.

        Raises OSError if it does not.
        """
        with self.database.transaction():
            self.database.run(
                "INSERT OR REPLACE INTO meta VALUES ('probe', zeroblob(?))", defaults.PROBE_BYTES
            )
        self.database.run("DELETE FROM meta WHERE name = 'probe'")
        self._tidy()

    def _attempt(self, work: Work) -> StateError | None:
        try:
            with self.database.savepoint():
                self._do(work)
        except BadOrder as error:
            return error
        return None

    def _do(self, work: Work) -> None:
        if isinstance(work, Put):
            for entry in work.entries:
                self._put(entry)
        elif isinstance(work, Proof):
            self._put_proof(work)
        elif isinstance(work, Drop):
            for author in work.authors:
                self._drop_author(public_key_of(author))
        elif isinstance(work, FeedCut):
            self._cut(work)
        else:
            for name in work.names:
                self._forget(self._feed_id(name))

    def _put(self, entry: Entry) -> None:
        feed = self._feed_id(entry.name, make=True)
        row = self.database.row("SELECT epoch, seq, hash, size FROM feeds WHERE id = ?", feed)
        size = 0
        if row is None or entry.epoch > row[0]:
            _require(entry.seq == 0, entry)
            self._remove_entries(feed)  # of the previous epoch, or strays
        else:
            if entry.epoch == row[0] and entry.seq <= row[1]:
                return self._require_same(feed, entry)
            _require((entry.epoch, entry.seq, entry.parent) == (row[0], row[1] + 1, row[2]), entry)
            size = row[3]
        _require(entry.seq < 1 << _SEQ_BITS, entry)
        self.database.run(
            "INSERT INTO entries VALUES (?, ?, ?)",
            feed << _SEQ_BITS | entry.seq,
            entry.sealed,
            entry_sum(public_key_of(entry.name.author), feed, entry.epoch, entry.seq, entry.sealed),
        )
        return self._set_head(feed, entry.name, entry.head, size + entry.size)

    def _require_same(self, feed: int, entry: Entry) -> None:
        """Raise BadOrder unless a stored entry equals this one.

        If a different one were skipped silently, a fork would go unnoticed.
        """
        at = feed << _SEQ_BITS | entry.seq
        row = self.database.row("SELECT sealed FROM entries WHERE id = ?", at)
        _require(row is not None and row[0] == entry.sealed, entry)

    def _set_head(self, feed: int, name: FeedName, head: Head, size: int) -> None:
        self.database.run(
            "INSERT OR REPLACE INTO feeds VALUES (?, ?, ?, ?, ?, ?)",
            feed,
            *head,
            size,
            feed_sum(public_key_of(name.author), feed, head, size),
        )

    def _put_proof(self, proof: Proof) -> None:
        feed = self._feed_id(proof.name, make=True)
        if self.database.row("SELECT 1 FROM proofs WHERE id = ?", feed) is not None:
            return  # the first one is enough
        self._remove_entries(feed)
        self.database.run("INSERT INTO proofs VALUES (?, ?, ?)", feed, *proof.sealed)
        self._set_head(feed, proof.name, FORKED, proof.size)

    def _drop_author(self, key: bytes) -> None:
        row = self.database.row("SELECT id FROM authors WHERE key = ?", key)
        if row is not None:
            first, end = row[0] << _FEED_BITS, (row[0] + 1) << _FEED_BITS
            self._forget_range(first, end)
            self.database.run("DELETE FROM authors WHERE id = ?", row[0])

    def _cut(self, cut: FeedCut) -> None:
        """Delete the entries of a feed after a head.

        If the head's entry is not stored, delete the feed.
        """
        feed, (epoch, seq, digest) = self._feed_id(cut.name), cut.head
        head = self.database.row("SELECT epoch, seq FROM feeds WHERE id = ?", feed)
        first = feed << _SEQ_BITS
        last = first | seq
        row = self.database.row("SELECT sealed FROM entries WHERE id = ?", last)
        if head is None or head[0] != epoch or row is None or _hash_of(row[0]) != digest:
            return self._forget(feed)
        if head[1] == seq:
            return None
        end = (feed + 1) << _SEQ_BITS
        self.database.run("DELETE FROM entries WHERE id > ? AND id < ?", last, end)
        (size,) = self.database.row(
            "SELECT sum(length(sealed)) FROM entries WHERE id >= ? AND id < ?", first, end
        ) or (0,)
        self.loose = True
        return self._set_head(feed, cut.name, cut.head, size)

    def _forget(self, feed: int) -> None:
        self._forget_range(feed, feed + 1)

    def _forget_range(self, first: int, end: int) -> None:
        self.database.run("DELETE FROM feeds WHERE id >= ? AND id < ?", first, end)
        self.database.run("DELETE FROM proofs WHERE id >= ? AND id < ?", first, end)
        self._remove_entries(first, end)

    def _remove_entries(self, first: int, end: int = 0) -> None:
        removed = self.database.run(
            "DELETE FROM entries WHERE id >= ? AND id < ?",
            first << _SEQ_BITS,
            (end or first + 1) << _SEQ_BITS,
        )
        self.loose = self.loose or removed > 0

    def _feed_id(self, name: FeedName, *, make: bool = False) -> int:
        """Return the number of a feed, for use as a row id.

        If its author has no number yet, assign one if `make` is true, and otherwise return -1.
        """
        key = public_key_of(name.author)
        row = self.database.row("SELECT id FROM authors WHERE key = ?", key)
        if row is None and make:
            row = self.database.row("INSERT INTO authors (key) VALUES (?) RETURNING id", key)
        if row is None:
            return -1
        author: int = row[0]
        return author << _FEED_BITS | self._kinds[name.kind] << _PART_BITS | name.part

    # Reading.

    def feeds(self, after: int = -1) -> LoadedFeeds:
        """Return the next feeds after the number `after`, with their entries.

        Damaged feeds are deleted. The first call has `after` -1.
        """
        if after < 0:
            self.database.run("PRAGMA shrink_memory")  # read from the disk, not from the cache
        rows = self._feed_rows(after)
        if not rows:
            self._remove_strays(after + 1, 1 << 62 - _SEQ_BITS)
            return LoadedFeeds([], [], None)
        last = rows[-1][0]
        found = self._entry_rows(after + 1, last + 1)
        kept, damaged, bad = list[StoredFeed](), list[FeedName](), list[int]()
        for row in rows:
            name = self._name_of(row)
            feed = checked(name, row, found.pop(row[0], [])) if name is not None else None
            if feed is not None:
                kept.append(feed)
                continue
            bad.append(row[0])
            if name is not None:
                damaged.append(name)
        self._remove_feeds([*bad, *found])  # also entries without a feed
        return LoadedFeeds(kept, damaged, last)

    def _feed_rows(self, after: int) -> list[Row]:
        """Return the rows of the next feeds: at least one, and about LOAD_BYTES of entries in
        all."""
        rows = self.database.rows(
            "SELECT f.id, f.epoch, f.seq, f.hash, f.size, f.sum, a.key FROM feeds f"
            " LEFT JOIN authors a ON a.id = f.id >> ? WHERE f.id > ? ORDER BY f.id LIMIT ?",
            _FEED_BITS,
            after,
            defaults.LOAD_FEEDS,
        )
        size, taken = 0, 0
        while taken < len(rows) and (size < defaults.LOAD_BYTES or not taken):
            size += rows[taken][4]
            taken += 1
        return rows[:taken]

    def _entry_rows(self, first: int, end: int) -> dict[int, list[Row]]:
        """Return the rows (seq, sealed entry, checksum) of entries, by the numbers of their
        feeds."""
        found: dict[int, list[Row]] = {}
        for at, sealed, total in self.database.rows(
            "SELECT id, sealed, sum FROM entries WHERE id >= ? AND id < ? ORDER BY id",
            first << _SEQ_BITS,
            end << _SEQ_BITS,
        ):
            row = (at & (1 << _SEQ_BITS) - 1, sealed, total)
            found.setdefault(at >> _SEQ_BITS, []).append(row)
        return found

    def _name_of(self, row: Row) -> FeedName | None:
        """Return the name of the feed in a row, or None if the row is damaged or the kind is
        unknown."""
        number = row[0] >> _PART_BITS & (1 << _FEED_BITS - _PART_BITS) - 1
        part = row[0] & (1 << _PART_BITS) - 1
        kind = next((name for name, at in self._kinds.items() if at == number), "")
        if not isinstance(row[6], bytes) or kind not in KINDS or part not in KINDS[kind].parts:
            return None
        try:
            return FeedName(peer_id_of(row[6]), kind, part)
        except ValueError:
            return None

    def _remove_feeds(self, feeds: Iterable[int]) -> None:
        if feeds := list(feeds):
            # if the disk refuses, the next start does it
            with suppress(OSError), self.database.transaction():
                for feed in feeds:
                    self._forget(feed)

    def _remove_strays(self, first: int, end: int) -> None:
        """Delete the entries and proofs that have numbers after the last feed, and so belong to
        none."""
        for table, shift in (("entries", _SEQ_BITS), ("proofs", 0)):
            bounds = first << shift, end << shift
            if self.database.row(f"SELECT 1 FROM {table} WHERE id >= ? AND id < ?", *bounds):
                with suppress(OSError):
                    self.database.run(f"DELETE FROM {table} WHERE id >= ? AND id < ?", *bounds)

    def entries(self, name: FeedName, epoch: int, seq: int, limit: int) -> list[bytes]:
        """Return sealed entries of an epoch from `seq` on, up to `limit` bytes.

        Returns at least one entry if there is any, and none if another epoch is stored. Raises
        FeedDamaged if a checksum is wrong or an entry is missing.
        """
        feed = self._feed_id(name)
        row = self.database.row("SELECT epoch, seq FROM feeds WHERE id = ?", feed)
        if row is None or row[0] != epoch or seq > row[1]:
            return []
        key, taken, rest = public_key_of(name.author), list[bytes](), limit
        while seq <= row[1]:
            for at, sealed, total in self._portion(feed, seq, row[1]):
                if at != seq or total != entry_sum(key, feed, epoch, seq, sealed):
                    raise _damaged(name)
                rest -= len(sealed)
                if taken and rest < 0:
                    return taken
                taken.append(sealed)
                seq += 1
        return taken

    def _portion(self, feed: int, seq: int, last: int) -> list[Row]:
        """Return the rows (seq, sealed entry, checksum) of the next few entries.

        Returns one row with seq -1 if they are missing.
        """
        found = self.database.rows(
            "SELECT id & ?, sealed, sum FROM entries WHERE id >= ? AND id <= ? ORDER BY id LIMIT ?",
            (1 << _SEQ_BITS) - 1,
            feed << _SEQ_BITS | seq,
            feed << _SEQ_BITS | last,
            defaults.READ_ENTRIES,
        )
        return found or [(-1, b"", b"")]

    def proof(self, name: FeedName) -> Proof | None:
        """Return the proof that a feed has forked, or None.

        Raises FeedDamaged if the proof is damaged.
        """
        feed = self._feed_id(name)
        row = self.database.row("SELECT first, second FROM proofs WHERE id = ?", feed)
        try:
            proof = open_proof(*row) if row is not None else None
        except BadEntry:
            raise _damaged(name) from None
        if proof is not None and proof.name != name:
            raise _damaged(name)
        return proof

    # Space.

    def make_smaller(self) -> None:
        """Return a few free pages of the file to the disk.

        `loose` stays True while there are more.
        """
        (free,) = self.database.row("PRAGMA freelist_count") or (0,)
        (pages,) = self.database.row("PRAGMA page_count") or (0,)
        self.loose = free > max(pages // defaults.FREE_SHARE, defaults.FREE_LEAST)
        if self.loose:
            self.database.rows(f"PRAGMA incremental_vacuum({defaults.FREED_AT_ONCE})")
            self._tidy()


def _hash_of(sealed: bytes) -> bytes | None:
    try:
        return read_stored(sealed).hash
    except BadEntry:
        return None


def _require(followed: bool, entry: Entry) -> None:
    if not followed:
        name = entry.name
        raise BadOrder(
            f"entry {entry.epoch}.{entry.seq} of the `{name.kind}` feed of `{name.author}` does "
            "not follow the stored entries"
        )


def _damaged(name: FeedName) -> FeedDamaged:
    return FeedDamaged(f"the stored `{name.kind}` feed of `{name.author}` is damaged")

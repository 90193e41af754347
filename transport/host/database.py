"""SQLite databases for the layers above: rows, transactions, and this project's errors.

`Files.database` opens a database, on a real disk or on a simulated disk on which SQLite's system
calls are simulated. Everything here blocks, so call it inside `Host.offload`. A connection may be
used from any thread, but by only one caller at a time.

Every commit is durable, because it syncs the write-ahead log (`synchronous=FULL`). The connection
locks the file exclusively (`locking_mode=EXCLUSIVE`). The index of the log can therefore be in
memory instead of in a shared file, and a second process that opens the same folder is detected.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from .. import defaults
from ..errors import AlreadyLocked, DatabaseDamaged

Value = int | str | bytes | None
Row = tuple[Any, ...]

_SETTINGS = (
    "PRAGMA locking_mode=EXCLUSIVE",  # before the file is read
    f"PRAGMA page_size={defaults.DATABASE_PAGE}",
    "PRAGMA auto_vacuum=INCREMENTAL",  # before the first page is written
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA fullfsync=ON",  # on macOS only this sync reaches the disk's medium
    "PRAGMA checkpoint_fullfsync=ON",
    "PRAGMA foreign_keys=ON",
    "PRAGMA trusted_schema=OFF",
    "PRAGMA cell_size_check=ON",
    "PRAGMA temp_store=MEMORY",
    "PRAGMA wal_autocheckpoint=0",  # `tidy` copies the log, so that errors there fail no commit
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Memory and log of a database: the most bytes that are cached in memory, and the size of the
    write-ahead log at which `tidy` copies it into the file."""

    cache: int = defaults.DATABASE_CACHE
    log: int = defaults.DATABASE_LOG


_USUAL = Sizes()


class _Log:
    """Counter of the pages in a database's write-ahead log."""

    def __init__(self) -> None:
        self.pages = 0

    def note(self, _: apsw.Connection, name: str, pages: int) -> int:
        """Record the size of the log in pages. SQLite calls this after each commit."""
        self.pages = pages
        return apsw.SQLITE_OK


class Database:
    """An open database. Any method may raise OSError (ENOSPC, EIO, EROFS) if the disk fails,
    DatabaseDamaged if the file is damaged, and AlreadyLocked if another process uses the file."""

    def __init__(
        self,
        path: Path,
        connection: apsw.Connection,
        closed: Callable[[], None] | None = None,
        sizes: Sizes = _USUAL,
    ) -> None:
        """`closed` is called when the database is closed."""
        self._path = path
        self._sizes = sizes
        self._connection = connection
        self._closed = closed
        self._log = _Log()

    def set_up(self) -> None:
        """Apply the settings. After that, register the page counter, because one of the settings
        would remove it."""
        cache = f"PRAGMA cache_size=-{self._sizes.cache // 1024}"
        for setting in (*_SETTINGS, cache, f"PRAGMA journal_size_limit={self._sizes.log}"):
            self.run(setting)
        self._connection.set_wal_hook(self._log.note)

    def rows(self, statement: str, *values: Value) -> list[Row]:
        """Execute a query and return all its rows. The caller must bound their number with
        LIMIT."""
        with self._translated():
            return self._connection.execute(statement, values).fetchall()

    def row(self, statement: str, *values: Value) -> Row | None:
        """Execute a query and return its first row, or None if it has none."""
        with self._translated():
            found: Row | None = self._connection.execute(statement, values).fetchone()
            return found

    def run(self, statement: str, *values: Value) -> int:
        """Execute a statement that changes data, and return the number of rows that it changed."""
        with self._translated():
            self._connection.execute(statement, values)
            return self._connection.changes()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Return a context manager for a transaction. At the end of the block the transaction is
        committed to disk. If the block raises, it is rolled back."""
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            self._undo("ROLLBACK")
            raise

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Return a context manager for a part of a transaction. If the block raises, only the
        changes of this block are rolled back."""
        self.run("SAVEPOINT part")
        try:
            yield
        except BaseException:
            self._undo("ROLLBACK TO part; RELEASE part")
            raise
        self.run("RELEASE part")

    def _undo(self, statement: str) -> None:
        if self._connection.in_transaction:  # SQLite may have rolled back by itself
            with suppress(OSError, DatabaseDamaged):
                self.run(statement)

    def tidy(self) -> None:
        """Copy the write-ahead log into the database file if the log has reached its size limit."""
        if self._log.pages >= self._sizes.log // defaults.DATABASE_PAGE:
            self.rows("PRAGMA wal_checkpoint(PASSIVE)")
            self._log.pages = 0

    def __del__(self) -> None:
        """Close a database that its owner did not close, while the simulated system calls that it
        needs still exist."""
        self.close()

    def close(self) -> None:
        """Copy the log into the file, as far as the disk allows it, and close the database. Never
        raises."""
        with suppress(OSError, DatabaseDamaged, AlreadyLocked), self._translated():
            self._connection.close()
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise _translation(self._path, error) from error


def connect(
    path: Path,
    vfs: str = "",
    closed: Callable[[], None] | None = None,
    sizes: Sizes = _USUAL,
) -> Database:
    """Open a database with the settings of this project.

    `vfs` names the implementation of the system calls that SQLite uses ("": the operating
    system's). `closed` is called when the database is closed.

    Raises OSError if the disk fails, DatabaseDamaged if the file is not a valid database, and
    AlreadyLocked if another process uses it.
    """
    try:
        connection = apsw.Connection(str(path), vfs=vfs or None)
    except apsw.Error as error:
        if closed is not None:
            closed()
        raise _translation(path, error) from error
    connection.set_busy_timeout(defaults.DATABASE_BUSY_MS)
    database = Database(path, connection, closed, sizes)
    try:
        database.set_up()
        database.row("SELECT count(*) FROM sqlite_schema")
    except BaseException:
        database.close()
        raise
    return database


def _translation(path: Path, error: apsw.Error) -> Exception:
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)):
        return DatabaseDamaged(f"the database `{path}` is damaged: {error}")
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return AlreadyLocked(f"`{path}` is used by another process")
    for kind, number in (
        (apsw.FullError, errno.ENOSPC),
        (apsw.ReadOnlyError, errno.EROFS),
        (apsw.PermissionsError, errno.EACCES),
        (apsw.CantOpenError, errno.EACCES),
        (apsw.IOError, errno.EIO),
        (apsw.NoMemError, errno.ENOMEM),
    ):
        if isinstance(error, kind):
            return OSError(number, os.strerror(number), str(path))
    return error

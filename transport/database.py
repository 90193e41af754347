"""A SQLite database as the parts above see it: rows, transactions, errors of ours.

`Files.database` opens one: on a real disk, or on a simulated one, where SQLite's own system calls
are simulated. Everything here blocks: call it inside `Host.offload`. One connection is one user's
at a time, from any thread.

Durable is what was committed: write-ahead log, a sync at each commit (`synchronous=FULL`). The
connection has the file for itself (`locking_mode=EXCLUSIVE`), so that the index of the log is in
memory, and two processes with one folder notice each other.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from . import defaults
from .errors import AlreadyLocked, DatabaseDamaged

Value = int | str | bytes | None
Row = tuple[Any, ...]

_SETTINGS = (
    "PRAGMA locking_mode=EXCLUSIVE",  # before the file is looked at
    f"PRAGMA page_size={defaults.DATABASE_PAGE}",
    "PRAGMA auto_vacuum=INCREMENTAL",  # before the first page is written
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA fullfsync=ON",  # macOS: a sync that reaches the platter
    "PRAGMA checkpoint_fullfsync=ON",
    "PRAGMA foreign_keys=ON",
    "PRAGMA trusted_schema=OFF",
    "PRAGMA cell_size_check=ON",
    "PRAGMA temp_store=MEMORY",
    f"PRAGMA cache_size=-{defaults.DATABASE_CACHE // 1024}",
    "PRAGMA wal_autocheckpoint=0",  # `tidy` does it, so that its errors are no commit's
)


class _Log:
    """Pages in a database's log."""

    def __init__(self) -> None:
        self.pages = 0

    def note(self, _: apsw.Connection, name: str, pages: int) -> int:
        """SQLite has committed, and its log has so many pages."""
        self.pages = pages
        return apsw.SQLITE_OK


class Database:
    """An open database. All raise OSError (ENOSPC, EIO, EROFS), DatabaseDamaged, AlreadyLocked."""

    def __init__(
        self,
        path: Path,
        connection: apsw.Connection,
        closed: Callable[[], None] | None = None,
        log: int = defaults.DATABASE_LOG,
    ) -> None:
        """`log`: bytes of it from which on they go into the file."""
        self._path = path
        self._most = log
        self._connection = connection
        self._closed = closed
        self._log = _Log()

    def set_up(self) -> None:
        """Settings, and the count of the log, which one of them would end."""
        for setting in (*_SETTINGS, f"PRAGMA journal_size_limit={self._most}"):
            self.run(setting)
        self._connection.set_wal_hook(self._log.note)

    def rows(self, statement: str, *values: Value) -> list[Row]:
        """What a query finds; the caller bounds it with LIMIT."""
        with self._translated():
            return self._connection.execute(statement, values).fetchall()

    def row(self, statement: str, *values: Value) -> Row | None:
        """The first row that a query finds."""
        with self._translated():
            found: Row | None = self._connection.execute(statement, values).fetchone()
            return found

    def run(self, statement: str, *values: Value) -> int:
        """A statement that changes; returns how many rows it changed."""
        with self._translated():
            self._connection.execute(statement, values)
            return self._connection.changes()

    def run_many(self, statement: str, rows: Sequence[Sequence[Value]]) -> None:
        """The same with each row of values."""
        with self._translated():
            self._connection.executemany(statement, rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing; on disk when the block is left. Undone where it raises."""
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            self._undo("ROLLBACK")
            raise

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of a transaction that is undone by itself where it raises."""
        self.run("SAVEPOINT part")
        try:
            yield
        except BaseException:
            self._undo("ROLLBACK TO part; RELEASE part")
            raise
        self.run("RELEASE part")

    def _undo(self, statement: str) -> None:
        if self._connection.in_transaction:  # SQLite may have undone it of itself
            with suppress(OSError, DatabaseDamaged):
                self.run(statement)

    def tidy(self) -> None:
        """Once there are enough of them: what is in the log goes into the file."""
        if self._log.pages >= self._most // defaults.DATABASE_PAGE:
            self.rows("PRAGMA wal_checkpoint(PASSIVE)")
            self._log.pages = 0

    def __del__(self) -> None:
        """One that was forgotten is closed while its system calls are still there."""
        self.close()

    def close(self) -> None:
        """The log goes into the file, as far as the disk takes it. Raises nothing."""
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
    log: int = defaults.DATABASE_LOG,
) -> Database:
    """Open it with our settings; `vfs` names SQLite's system calls, `closed` is called when it is
    closed, `log` is how large its log gets, bytes.

    Raises OSError, DatabaseDamaged, AlreadyLocked.
    """
    try:
        connection = apsw.Connection(str(path), vfs=vfs or None)
    except apsw.Error as error:
        if closed is not None:
            closed()
        raise _translation(path, error) from error
    connection.set_busy_timeout(defaults.DATABASE_BUSY_MS)
    database = Database(path, connection, closed, log)
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

"""Databases on the real disk: settings, our errors, and other processes."""

import errno
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.transport import defaults
from shoal.transport.errors import AlreadyLocked, DatabaseDamaged
from shoal.transport.host.database import Database
from shoal.transport.host.realfiles import RealFiles

FILES = RealFiles()


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    database = FILES.database(path)
    try:
        yield database
    finally:
        database.close()


def test_settings_needed_for_durability_are_active(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as database:
        found = {
            name: database.row(f"PRAGMA {name}")
            for name in ("journal_mode", "synchronous", "auto_vacuum", "locking_mode",
                         "foreign_keys", "cell_size_check", "wal_autocheckpoint")
        }  # fmt: skip
    assert found == {
        "journal_mode": ("wal",),
        "synchronous": (2,),
        "auto_vacuum": (2,),
        "locking_mode": ("exclusive",),
        "foreign_keys": (1,),
        "cell_size_check": (1,),
        "wal_autocheckpoint": (0,),
    }


def test_other_users_cannot_read_the_database(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as database:
        database.run("CREATE TABLE t (a)")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"db": 0o600, "db-wal": 0o600}
    (tmp_path / "db").chmod(0o644)
    with opened(tmp_path / "db"):
        assert FILES.mode(tmp_path / "db") == 0o600


def test_rows_come_back_and_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as database:
        database.run("CREATE TABLE t (a INTEGER, b BLOB)")
        database.run("INSERT INTO t VALUES (?, ?), (?, ?)", 1, b"x", 2, None)
        with pytest.raises(ZeroDivisionError), database.transaction():
            database.run("DELETE FROM t")
            raise ZeroDivisionError
        with database.transaction():
            with pytest.raises(ZeroDivisionError), database.savepoint():
                database.run("DELETE FROM t")
                raise ZeroDivisionError
            with database.savepoint():
                assert database.run("UPDATE t SET b = ? WHERE a = 2", b"y") == 1
    with opened(tmp_path / "db") as database:
        assert database.rows("SELECT a, b FROM t ORDER BY a") == [(1, b"x"), (2, b"y")]
        assert database.row("SELECT a FROM t WHERE a = 3") is None


def test_the_log_is_moved_into_the_file_and_stays_small(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as database:
        database.run("CREATE TABLE t (a BLOB)")
        for _ in range(40):
            database.run("INSERT INTO t VALUES (zeroblob(100000))")
            database.tidy()
        assert (tmp_path / "db-wal").stat().st_size < 2 * defaults.DATABASE_LOG
    assert [path.name for path in tmp_path.iterdir()] == ["db"]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from shoal.transport import defaults; defaults.DATABASE_BUSY_MS = 10\n"
        "from shoal.transport.host.realfiles import RealFiles\n"
        "from shoal.transport.errors import AlreadyLocked\n"
        "try: RealFiles().database(Path(sys.argv[1]))\n"
        "except AlreadyLocked: sys.exit(7)\n"
    )
    with opened(tmp_path / "db"):
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "db")], check=False)
    assert done.returncode == 7


def test_a_second_connection_of_the_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "DATABASE_BUSY_MS", 10)
    with opened(tmp_path / "db") as database:
        with pytest.raises(AlreadyLocked):
            FILES.database(tmp_path / "db")
        database.run("CREATE TABLE t (a)")


def test_other_files_count_as_damaged(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"no database " * 1000)
    with pytest.raises(DatabaseDamaged):
        FILES.database(tmp_path / "db")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        FILES.database(tmp_path / "folder")
    with pytest.raises(FileNotFoundError):
        FILES.database(tmp_path / "absent" / "db")


def test_a_damaged_page_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with opened(path) as database:
        database.run("CREATE TABLE t (a BLOB)")
        for _ in range(50):
            database.run("INSERT INTO t VALUES (zeroblob(2000))")
    data = bytearray(path.read_bytes())
    for page in range(3, len(data) // 4096):
        data[page * 4096 : page * 4096 + 100] = b"\xff" * 100
    path.write_bytes(data)
    with opened(path) as database, pytest.raises(DatabaseDamaged):
        database.rows("SELECT a FROM t")


def test_a_full_disk_is_an_error_but_not_damage(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(tmp_path / "db") as database:
        database.run("CREATE TABLE t (a BLOB)")
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        try:
            with pytest.raises(OSError) as raised:
                database.run("INSERT INTO t VALUES (zeroblob(100000))")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert raised.value.errno in (errno.ENOSPC, errno.EIO)
        database.run("INSERT INTO t VALUES (zeroblob(100000))")
        assert database.row("SELECT count(*) FROM t") == (1,)

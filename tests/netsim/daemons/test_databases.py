"""SQLite on a simulated disk: the disk's faults become SQLite's errors, and a crash loses no
commit.
"""

import errno
from dataclasses import replace
from pathlib import Path
from random import Random

import apsw
import pytest

from shoal.netsim.clock import Events
from shoal.netsim.daemons.files import DiskFiles
from shoal.netsim.disk.disk import Disk, DiskSpec
from shoal.netsim.disk.mount import Mount
from shoal.transport.errors import AlreadyLocked, DatabaseDamaged
from shoal.transport.host.database import Database

PLACE = Path("/db")
LOG = "/db-wal"


def make(seed: int = 0, *, capacity: int = 10**9) -> Disk:
    return Disk(Events(), Random(seed), DiskSpec(capacity=capacity))


def finish(disk: Disk) -> None:
    disk.events.run_until(disk.busy_until)


def opened(disk: Disk) -> Database:
    return DiskFiles(Mount(disk)).database(PLACE)


def begun(disk: Disk) -> Database:
    database = opened(disk)
    database.run("CREATE TABLE t (a INTEGER PRIMARY KEY, b BLOB)")
    return database


def add(database: Database, number: int, size: int = 9000) -> None:
    database.run("INSERT INTO t VALUES (?, ?)", number, bytes([number % 256]) * size)


def numbers(database: Database) -> list[int]:
    assert database.rows("PRAGMA integrity_check") == [("ok",)]
    rows = database.rows("SELECT a, b FROM t ORDER BY a")
    assert all(len(set(content)) == 1 for _, content in rows)
    return [number for number, _ in rows]


def crashed(seed: int, *, lost_syncs: bool = False) -> tuple[int, list[int]]:
    """Crash between two steps of the disk; return how many commits had returned, and what
    is left.
    """
    disk, stream = make(seed), Random(seed)
    database = begun(disk)
    disk.lost_syncs = lost_syncs
    done = stream.randrange(10, 120)
    for number in range(done):
        add(database, number)
        database.tidy()
    finish(disk)
    add(database, done)  # may fail
    disk.events.run_until(disk.events.now + stream.random() * (disk.busy_until - disk.events.now))
    disk.crash()
    database.close()
    return done, numbers(opened(disk))


def test_a_crash_loses_no_commit_and_tears_none() -> None:
    for seed in range(15):
        done, left = crashed(seed)
        assert left in (list(range(done)), list(range(done + 1)))


def test_without_syncs_a_crash_loses_commits() -> None:
    lost = 0
    for seed in range(15):
        try:
            done, left = crashed(seed, lost_syncs=True)
        except (DatabaseDamaged, AssertionError, apsw.SQLError):
            lost += 1
        else:
            lost += left[:done] != list(range(done))
    assert lost


def test_time_passes_as_the_disk_works() -> None:
    disk = make()
    database = begun(disk)
    finish(disk)
    began = disk.busy_until
    add(database, 1)
    assert disk.busy_until - began >= disk.spec.sync_s


def test_a_full_disk_refuses_and_recovers() -> None:
    disk = make(capacity=300_000)
    database = begun(disk)
    with pytest.raises(OSError) as raised:
        for number in range(1000):
            add(database, number)
    assert raised.value.errno == errno.ENOSPC
    kept = numbers(database)
    assert kept == list(range(len(kept)))
    disk.spec = replace(disk.spec, capacity=10**9)
    add(database, len(kept))
    assert len(numbers(database)) == len(kept) + 1


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_failing_or_read_only_disk_refuses(number: int) -> None:
    disk = make()
    database = begun(disk)
    if number == errno.EIO:
        disk.errors[LOG] = number
    else:
        disk.read_only = True
    with pytest.raises(OSError) as raised:
        add(database, 1)
    assert raised.value.errno == number
    disk.errors.clear()
    disk.read_only = False
    add(database, 2)
    assert numbers(database) == [2]


def test_a_dead_program_writes_nothing() -> None:
    disk = make()
    database = begun(disk)
    finish(disk)
    again = opened(disk)  # another run
    with pytest.raises(OSError):
        add(database, 1)
    database.close()
    add(again, 2)
    assert numbers(again) == [2]


def test_two_connections_of_one_program_notice_each_other() -> None:
    files = DiskFiles(Mount(make()))
    database = files.database(PLACE)
    with pytest.raises(AlreadyLocked):
        files.database(PLACE)
    database.close()
    files.database(PLACE).close()
    assert [entry.name for entry in files.list(Path("/"))] == ["db"]


def test_a_file_that_is_not_a_database_counts_as_damaged() -> None:
    disk = make()
    DiskFiles(Mount(disk)).write(PLACE, b"no database " * 1000)
    with pytest.raises(DatabaseDamaged):
        opened(disk)


def test_the_same_seed_leaves_the_same() -> None:
    assert [crashed(seed) for seed in range(3)] == [crashed(seed) for seed in range(3)]


def test_the_log_stays_small() -> None:
    """Hundreds of hosts keep such a log in the same memory."""
    disk = make(1)
    database = begun(disk)
    for number in range(200):
        add(database, number)
        database.tidy()
    sizes = {entry.name: entry.size for entry in DiskFiles(Mount(disk)).list(Path("/"))}
    assert 0 < sizes["db-wal"] < 2 * 128 * 2**10 < sizes["db"]

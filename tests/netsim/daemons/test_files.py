"""The daemon's files on a simulated disk: atomic in every case, and the errors that faults
cause.
"""

import errno
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from shoal.netsim.clock import Events
from shoal.netsim.daemons.files import DiskFiles
from shoal.netsim.disk.disk import Disk, DiskSpec, Folder
from shoal.netsim.disk.mount import Mount
from shoal.transport.errors import AlreadyLocked, FileTooLarge

OLD, NEW = b"old " * 5000, b"new!" * 5001
PLACE = Path("/data/file")


class NoSync(DiskFiles):
    """Twin that does not sync the content before it renames."""

    def _sync(self, path: str) -> None:
        """Do nothing."""


class NoFolderSync(DiskFiles):
    """Twin that does not sync the folder after it renames."""

    def _sync_folder(self, path: Path) -> None:
        """Do nothing."""


def make(seed: int = 0, **spec: float) -> Disk:
    return Disk(Events(), Random(seed), DiskSpec(**spec))  # type: ignore[arg-type]


def pass_time(disk: Disk, seconds: float) -> None:
    disk.events.run_until(disk.events.now + seconds)


def finish(disk: Disk) -> None:
    """Run until the disk has done everything."""
    disk.events.run_until(disk.busy_until)


def crashes(files: type[DiskFiles], seed: int) -> Iterator[tuple[float, bytes | None]]:
    """Replace OLD by NEW and crash at 40 instants of that; yield the fraction done, and what is
    left.
    """
    for step in range(41):
        disk = make(seed * 100 + step)
        before = DiskFiles(Mount(disk))
        before.make_folder(PLACE.parent)
        before.write(PLACE, OLD)
        finish(disk)
        began = disk.events.now
        files(Mount(disk)).write(PLACE, NEW)
        share = step / 40
        disk.events.run_until(began + share * (disk.busy_until - began))
        disk.crash()
        after = DiskFiles(Mount(disk))
        yield share, after.read(PLACE, limit=10**6) if after.size(PLACE) is not None else None


def outcomes(files: type[DiskFiles]) -> set[tuple[bool, bytes | None]]:
    return {(share == 1, left) for seed in range(10) for share, left in crashes(files, seed)}


def test_a_crash_at_any_instant_leaves_the_old_or_the_new_content() -> None:
    found = outcomes(DiskFiles)
    assert {left for _, left in found} == {OLD, NEW}
    assert {left for done, left in found if done} == {NEW}, "on disk when it returns"


def test_without_the_sync_a_crash_leaves_something_else() -> None:
    assert {left for _, left in outcomes(NoSync)} - {OLD, NEW}


def test_without_the_folders_sync_what_was_written_may_be_lost() -> None:
    assert (True, OLD) in outcomes(NoFolderSync)


def test_a_lost_sync_shows_at_the_crash() -> None:
    left = set()
    for seed in range(40):
        disk = make(seed)
        files = DiskFiles(Mount(disk))
        files.make_folder(PLACE.parent)
        files.write(PLACE, OLD)
        finish(disk)
        disk.lost_syncs = True
        files.write(PLACE, NEW)
        finish(disk)
        assert files.read(PLACE, limit=10**6) == NEW
        disk.crash()
        left.add(DiskFiles(Mount(disk)).read(PLACE, limit=10**6))
    assert OLD in left and left - {OLD, NEW}


def test_writes_of_a_dead_program_are_dropped() -> None:
    disk = make()
    dead = DiskFiles(Mount(disk))
    dead.write(Path("/file"), OLD)
    handle = Mount(disk).open("/file")
    disk.crash()
    for call in (lambda: dead.write(Path("/file"), NEW), lambda: handle.write(NEW), handle.sync):
        with pytest.raises(OSError) as raised:
            call()
        assert raised.value.errno == errno.EIO


def test_a_full_disk_fills_up_in_the_middle_of_a_write() -> None:
    disk = make(capacity=30_000)
    files = DiskFiles(Mount(disk))
    files.write(Path("/file"), OLD)
    handle = Mount(disk).create("/other")
    assert handle.write(NEW) == 10_000
    with pytest.raises(OSError) as raised:
        handle.write(NEW)
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(OSError):
        DiskFiles(Mount(disk)).write(Path("/file"), NEW)
    files = DiskFiles(Mount(disk))
    assert files.read(Path("/file"), limit=10**6) == OLD
    assert [entry.name for entry in files.list(Path("/"))] == ["file", "other"], "nothing is left"
    files.remove(Path("/other"))
    assert files.free_space(Path("/")) == 10_000


def test_faults_of_a_path_and_of_the_whole() -> None:
    disk = make()
    files = DiskFiles(Mount(disk))
    files.write(Path("/file"), OLD)
    disk.errors["/file"] = errno.EIO
    for call in (
        lambda: files.read(Path("/file"), limit=1),
        lambda: files.write(Path("/file"), b""),
    ):
        with pytest.raises(OSError) as raised:
            call()
        assert raised.value.errno == errno.EIO
    disk.errors.clear()
    disk.read_only = True
    with pytest.raises(OSError) as raised:
        files.write(Path("/file"), NEW)
    assert raised.value.errno == errno.EROFS
    assert files.read(Path("/file"), limit=10**6) == OLD


def test_locks_end_with_the_program() -> None:
    disk = make()
    files = DiskFiles(Mount(disk))
    lock = files.lock(Path("/lock"))
    with pytest.raises(AlreadyLocked):
        files.lock(Path("/lock"))
    lock.release()
    files.lock(Path("/lock"))
    pass_time(disk, 60)
    disk.crash()
    DiskFiles(Mount(disk)).lock(Path("/lock"))


def test_folders_and_sizes() -> None:
    disk = make()
    files = DiskFiles(Mount(disk))
    files.make_folder(Path("/a/b"), mode=0o700)
    files.make_folder(Path("/a/b"))
    files.write(Path("/a/b/c"), b"123", mode=0o644)
    assert files.mode(Path("/a/b")) == 0o700 and files.mode(Path("/a/b/c")) == 0o644
    assert files.size(Path("/a/b/c")) == 3 and files.size(Path("/a/b/d")) is None
    assert files.size(Path("/a/b/c/d")) is None and files.list(Path("/nothing")) == []
    assert [(entry.name, entry.is_folder) for entry in files.list(Path("/a"))] == [("b", True)]
    assert files.real(Path("/a/b")) == Path("/a/b")
    files.remove(Path("/a/b/c"))
    files.remove(Path("/a/b/c"))
    with pytest.raises(FileNotFoundError):
        files.read(Path("/a/b/c"), limit=1)
    files.write(Path("/a/b/c"), b"123")
    with pytest.raises(FileTooLarge):
        files.read(Path("/a/b/c"), limit=2)
    with pytest.raises(IsADirectoryError):
        files.read(Path("/a/b"), limit=2)
    assert isinstance(disk.root.names["a"], Folder)


STAGED = [Path(f"/data/.{name}.new") for name in "abc"]
SETTLED = [Path(f"/data/{name}") for name in "abc"]


def settle_crashes(files: type[DiskFiles], seed: int) -> Iterator[tuple[float, list[bytes]]]:
    """Stage three files, settle them, and crash at 40 instants; yield the fraction done, and the
    content of the files that have a name.
    """
    for step in range(41):
        disk = make(seed * 100 + step)
        writer = files(Mount(disk))
        writer.make_folder(PLACE.parent)
        finish(disk)
        began = disk.events.now
        for path in STAGED:
            writer.stage(path, NEW)
        writer.settle(list(zip(STAGED, SETTLED, strict=True)))
        share = step / 40
        disk.events.run_until(began + share * (disk.busy_until - began))
        disk.crash()
        after = DiskFiles(Mount(disk))
        there = [path for path in SETTLED if after.size(path) is not None]
        yield share, [after.read(path, limit=10**6) for path in there]


def test_settled_files_are_whole_after_any_crash() -> None:
    found = [case for seed in range(10) for case in settle_crashes(DiskFiles, seed)]
    assert {data for _, held in found for data in held} == {NEW}
    assert all(len(held) == 3 for share, held in found if share == 1), "on disk when it returns"


def test_without_the_sync_a_settled_file_may_be_torn() -> None:
    """The twin: without the sync."""
    found = [case for seed in range(10) for case in settle_crashes(NoSync, seed)]
    assert {data for _, held in found for data in held} - {NEW}


def test_without_the_folders_sync_a_settled_file_may_be_lost() -> None:
    """The twin: without the folder's sync."""
    found = [case for seed in range(10) for case in settle_crashes(NoFolderSync, seed)]
    assert any(len(held) < 3 for share, held in found if share == 1)


def test_staging_on_a_full_disk_leaves_nothing() -> None:
    disk = make(capacity=30_000)
    files = DiskFiles(Mount(disk))
    files.stage(Path("/.a.new"), OLD)
    with pytest.raises(OSError) as raised:
        files.stage(Path("/.b.new"), NEW)
    assert raised.value.errno == errno.ENOSPC
    assert [entry.name for entry in files.list(Path("/"))] == [".a.new"]
    files.settle([(Path("/.gone.new"), Path("/gone")), (Path("/.a.new"), Path("/a"))])
    assert [entry.name for entry in files.list(Path("/"))] == ["a"]


def test_identity_tells_a_file_written_again() -> None:
    files = DiskFiles(Mount(make()))
    assert files.identity(Path("/a")) is None
    files.write(Path("/a"), OLD)
    before = files.identity(Path("/a"))
    assert before == files.identity(Path("/a"))
    files.write(Path("/a"), NEW)
    assert files.identity(Path("/a")) != before


def test_append() -> None:
    files = DiskFiles(Mount(make()))
    files.make_folder(PLACE.parent)
    files.append(PLACE, b"one", mode=0o640)
    files.append(PLACE, memoryview(b" two"))
    assert files.read(PLACE, limit=99) == b"one two" and files.mode(PLACE) == 0o640
    full = DiskFiles(Mount(make(capacity=9)))
    full.make_folder(PLACE.parent)
    full.append(PLACE, b"one two")
    with pytest.raises(OSError):
        full.append(PLACE, b" three")
    assert full.read(PLACE, limit=99) == b"one two t"

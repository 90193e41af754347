"""The simulated disk: the remains after a crash, the effects of faults, and durations."""

import errno
from pathlib import Path
from random import Random

import pytest

from shoal.netsim.clock import Events
from shoal.netsim.daemons.files import DiskFiles
from shoal.netsim.disk.disk import NAMES_WRITTEN_S, Disk, DiskSpec, installed
from shoal.netsim.disk.file import DATA_WRITTEN_S, LOADED, PAGE, Contents, File, InstalledFile
from shoal.netsim.disk.mount import Mount

OLD, NEW = b"old " * 5000, b"new!" * 5001


def make(seed: int = 0, **spec: float) -> Disk:
    return Disk(Events(), Random(seed), DiskSpec(**spec))  # type: ignore[arg-type]


def pass_time(disk: Disk, seconds: float) -> None:
    disk.events.run_until(disk.events.now + seconds)


def finish(disk: Disk) -> None:
    """Run until the disk has done everything."""
    disk.events.run_until(disk.busy_until)


def test_torn_writes_are_prefixes_or_mixtures_of_pages() -> None:
    left = set()
    for seed in range(60):
        disk = make(seed)
        handle = Mount(disk).create("/file")
        handle.write(OLD)
        handle.sync()
        disk.sync(None)
        finish(disk)
        again = Mount(disk).open("/file")
        again.write(NEW)
        finish(disk)
        disk.crash()
        left.add(Mount(disk).open("/file").read(0, 10**6))
    prefixes = {item for item in left if NEW.startswith(item)}
    mixtures = left - prefixes
    assert prefixes and mixtures
    for item in mixtures:
        for at in range(0, len(OLD) - PAGE, PAGE):
            assert item[at : at + PAGE] in (OLD[at : at + PAGE], NEW[at : at + PAGE])


def test_a_disk_that_does_not_tear_drops_unsynced_writes() -> None:
    disk = make()
    disk.torn = False
    Mount(disk).create("/file").write(NEW)
    finish(disk)
    disk.crash()
    assert Mount(disk).find("/file") is None
    assert disk.used == 0


def test_after_a_while_everything_is_durable() -> None:
    disk = make()
    disk.torn = False
    Mount(disk).create("/file").write(NEW)
    pass_time(disk, NAMES_WRITTEN_S + 1)
    disk.crash()
    assert Mount(disk).open("/file").read(0, 10) == b""
    Mount(disk).open("/file").write(NEW)
    pass_time(disk, DATA_WRITTEN_S + 1)
    disk.crash()
    assert Mount(disk).open("/file").read(0, 10**6) == NEW


def test_operations_take_their_time() -> None:
    disk = make(read_rate=1e6, write_rate=1e5, seek_s=0.0, sync_s=0.5)
    files = DiskFiles(Mount(disk))
    files.write(Path("/file"), bytes(100_000))
    assert disk.busy_until == pytest.approx(2.0), "a second of writing, two syncs"
    files.read(Path("/file"), limit=10**6)
    assert disk.busy_until == pytest.approx(2.1)
    pass_time(disk, 10)
    files.read_range(Path("/file"), 10, 50_000)
    assert disk.busy_until == pytest.approx(10.05)


def test_large_contents_are_kept_once() -> None:
    contents = Contents()
    kept = []
    for _ in range(2):
        disk = Disk(Events(), Random(1), contents=contents)
        DiskFiles(Mount(disk)).write(Path("/file"), bytes(bytearray(NEW)))
        node = disk.root.names["file"]
        assert isinstance(node, File)
        kept.append(node.content)
    assert kept[0] is kept[1]


def test_contents_that_no_file_has_any_more_do_not_stay_in_memory() -> None:
    contents = Contents()
    disk = Disk(Events(), Random(1), contents=contents)
    files = DiskFiles(Mount(disk))
    files.write(Path("/other"), bytes(10_000))
    for number in range(1, 1000):
        files.write(Path("/file"), number.to_bytes(2) * 5_000)
        pass_time(disk, 40)
    assert len(contents) < 220, "the latest of each file, and at most two megabytes of earlier ones"
    assert files.read(Path("/other"), limit=10_000) == bytes(10_000)
    assert files.read(Path("/file"), limit=10_000) == (999).to_bytes(2) * 5_000


def test_installed_files_cannot_be_changed_and_take_no_space() -> None:
    disk = make()
    disk.install("/usr/share/thing", installed({"a": File(b"1", 0o644), "b": File(b"22", 0o644)}))
    files = DiskFiles(Mount(disk))
    assert files.read(Path("/usr/share/thing/b"), limit=9) == b"22"
    with pytest.raises(OSError) as raised:
        files.write(Path("/usr/share/thing/a"), b"x")
    assert raised.value.errno == errno.EROFS
    disk.crash()
    assert disk.used == 0 and DiskFiles(Mount(disk)).size(Path("/usr/share/thing/a")) == 1


def test_an_installed_file_is_read_when_it_is_needed() -> None:
    read = []

    def load(offset: int, size: int) -> bytes:
        read.append(1)
        return b"weights"[offset : offset + size]

    file = InstalledFile(7, load, 0o644)
    assert file.size == 7
    assert not read
    assert file.read(0, 100) == file.content == b"weights"
    assert file.read(2, 3) == b"igh"
    assert len(read) == 1


def test_a_large_installed_file_does_not_stay_in_memory() -> None:
    read = []

    def load(offset: int, size: int) -> bytes:
        read.append(size)
        return b"w" * size

    file = InstalledFile(LOADED + 1, load, 0o644)
    assert file.read(5, 3) == b"www"
    assert file.content == b"w" * (LOADED + 1)
    assert file.read(0, 4) == b"wwww"
    assert read == [3, LOADED + 1, 4]

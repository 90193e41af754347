"""Files of a simulated disk that are written in place: the remains of each write after a crash."""

from random import Random

import pytest

from shoal.netsim.clock import Events
from shoal.netsim.disk.disk import Disk
from shoal.netsim.disk.file import DATA_WRITTEN_S, PAGE, SECTOR, BlockFile
from shoal.netsim.disk.mount import Mount, replay

A, B, C = (letter * PAGE for letter in (b"a", b"b", b"c"))


def written(seed: int) -> tuple[Disk, BlockFile]:
    """Return a synced file of two pages, with a write to each and one after them that are not
    synced.
    """
    disk = Disk(Events(), Random(seed))
    handle = Mount(disk).open_blocks("/file", make=True)
    handle.write(0, A + A)
    handle.sync()
    disk.sync(None)
    finish(disk)
    handle.write(0, B)
    handle.write(PAGE, B)
    handle.write(2 * PAGE, C)
    finish(disk)
    return disk, handle.file


def finish(disk: Disk) -> None:
    disk.events.run_until(disk.busy_until)


def pages(file: BlockFile) -> list[bytes]:
    return [file.read(at, PAGE) for at in range(0, file.size, PAGE)]


def test_written_bytes_are_read_back() -> None:
    handle = Mount(Disk(Events(), Random(1))).open_blocks("/file", make=True)
    handle.write(10, b"abc")
    assert handle.read(0, 100) == bytes(10) + b"abc"
    handle.write(11, b"X")
    handle.resize(12)
    assert (handle.read(9, 100), handle.size()) == (b"\0aX", 12)
    handle.resize(14)
    assert handle.read(10, 100) == b"aX\0\0"


def test_of_unsynced_writes_a_crash_keeps_any_in_any_order() -> None:
    kept = set()
    for seed in range(200):
        disk, file = written(seed)
        disk.crash()
        kept.add(tuple(page[:1] + page[-1:] for page in pages(file)))
        for page in pages(file):
            assert all(len(set(page[at : at + SECTOR])) == 1 for at in range(0, len(page), SECTOR))
    whole = {item for item in kept if all(len(set(page)) == 1 for page in item)}
    assert {(b"aa", b"aa"), (b"bb", b"aa"), (b"aa", b"bb"), (b"bb", b"bb", b"cc")} <= whole
    assert (b"aa", b"aa", b"cc") in whole, "the last one without the ones before"
    assert kept - whole, "torn ones"


def test_synced_writes_survive() -> None:
    for seed in range(50):
        disk, file = written(seed)
        disk.sync(file)
        finish(disk)
        disk.crash()
        assert file.content == B + B + C


def test_an_unfinished_sync_does_not_count() -> None:
    lost = set()
    for seed in range(50):
        disk, file = written(seed)
        disk.sync(file)
        disk.crash()
        lost.add(file.content == B + B + C)
    assert lost == {True, False}


def test_a_lost_sync_shows_at_the_crash() -> None:
    left = set()
    for seed in range(50):
        disk, file = written(seed)
        disk.lost_syncs = True
        disk.sync(file)
        finish(disk)
        disk.crash()
        left.add(file.content)
    assert len(left) > 1


def test_a_disk_that_does_not_tear_keeps_what_was_synced() -> None:
    disk, file = written(1)
    disk.torn = False
    disk.crash()
    assert file.content == A + A


def test_a_cut_may_be_lost_too() -> None:
    left = set()
    for seed in range(50):
        disk, file = written(seed)
        disk.sync(file)
        finish(disk)
        disk.resize(file, 100)
        finish(disk)
        disk.crash()
        left.add(file.content)
    assert left == {B + B + C, B[:100]}


def test_after_a_while_everything_is_durable() -> None:
    disk, file = written(1)
    disk.events.run_until(disk.events.now + DATA_WRITTEN_S)
    disk.torn = False
    disk.crash()
    assert file.content == B + B + C


def test_space_is_accounted_for() -> None:
    disk, file = written(1)
    assert disk.used == 3 * PAGE
    disk.resize(file, 7)
    assert disk.used == 7
    Mount(disk).remove("/file")
    assert disk.used == 0


def test_an_ordinary_file_can_be_written_in_place() -> None:
    disk = Disk(Events(), Random(1))
    mount = Mount(disk)
    mount.create("/file").write(b"12345")
    mount.open_blocks("/file", make=False).write(1, b"XY")
    assert mount.open("/file").read(0, 10) == b"1XY45" and disk.used == 5
    with pytest.raises(FileNotFoundError):
        mount.open_blocks("/absent", make=False)


def test_a_log_can_be_replayed() -> None:
    disk = Disk(Events(), Random(1))
    mount = Mount(disk)
    mount.log = []
    handle = mount.open_blocks("/file", make=True)
    handle.write(0, A)
    handle.write(5, b"x")
    handle.resize(10)
    handle.sync()
    mount.open_blocks("/gone", make=True).write(0, b"y")
    mount.sync_folder("/")
    mount.remove("/gone")
    again = Disk(Events(), Random(2))
    replay(Mount(again), mount.log)
    finish(again)
    again.crash()
    assert Mount(again).open("/file").read(0, 99) == b"aaaaaxaaaa"
    assert len(mount.log) == 9

"""System calls on a simulated disk, and the end of the run that made them."""

import errno
from collections.abc import Callable
from random import Random

import pytest

from shoal.netsim.clock import Events
from shoal.netsim.disk.disk import Disk
from shoal.netsim.disk.mount import Mount


def make() -> Disk:
    return Disk(Events(), Random(1))


def number(call: Callable[[], object]) -> int:
    """Return the errno with which a call fails."""
    with pytest.raises(OSError) as raised:
        call()
    assert raised.value.errno is not None
    return raised.value.errno


def test_names_and_their_errors() -> None:
    mount = Mount(make())
    mount.make_folder("/a")
    mount.create("/a/b").write(b"12345")
    assert number(lambda: mount.create("/a/b")) == errno.EEXIST
    assert number(lambda: mount.make_folder("/a")) == errno.EEXIST
    assert number(lambda: mount.create("/c/d")) == errno.ENOENT
    assert number(lambda: mount.create("/a/b/c")) == errno.ENOTDIR
    assert number(lambda: mount.open("/a/b/c")) == errno.ENOTDIR
    assert number(lambda: mount.open("/a")) == errno.EISDIR
    assert number(lambda: mount.open("/x")) == errno.ENOENT
    assert number(lambda: mount.remove("/a")) == errno.EISDIR
    assert number(lambda: mount.remove("/x")) == errno.ENOENT
    assert number(lambda: mount.rename("/x", "/y")) == errno.ENOENT


def test_a_rename_replaces() -> None:
    disk = make()
    mount = Mount(disk)
    mount.create("/old").write(b"12345")
    mount.create("/new").write(b"123")
    assert disk.used == 8
    mount.rename("/old", "/new")
    assert disk.used == 5 and mount.find("/old") is None
    assert mount.open("/new").read(1, 3) == b"234"
    mount.remove("/new")
    assert disk.used == 0


def test_writes_append_at_the_handles_place() -> None:
    mount = Mount(make())
    handle = mount.create("/file")
    assert (handle.write(b"abc"), handle.write(b"def")) == (3, 3)
    mount.open("/file").write(b"XY")
    assert handle.read(0, 100) == b"XYcdef"


def test_another_program_ends_the_one_before() -> None:
    disk, ended = make(), list[str]()
    first = Mount(disk, lambda: ended.append("first"))
    handle = first.create("/file")
    assert first.lock("/lock") is not None and first.lock("/lock") is None
    second = Mount(disk)
    assert ended == ["first"]
    for call in (lambda: handle.write(b"x"), lambda: first.find("/file"), handle.sync):
        assert number(call) == errno.EIO
    lock = second.lock("/lock")
    assert lock is not None
    second.unlock(lock)
    assert second.lock("/lock") is not None

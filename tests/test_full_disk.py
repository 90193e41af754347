"""A disk that becomes full in the middle of a fetch, and then has space again: real daemons, a real
tmpfs.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.dht.defaults import CHUNK, DISK_RESERVE
from tests.cli.daemons import Daemon, daemons, shoal

CHUNKS = 16
ROOM = 48 << 20  # bytes of the disk beyond its reserve


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    size = f"size={DISK_RESERVE + ROOM}"
    mount = ["mount", "-t", "tmpfs", "-o", size, "shoal-test", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not permit tests to mount a tmpfs")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@dataclass
class World:
    holder: Daemon
    getter: Daemon
    disk: Path
    file: Path  # shared by the provider
    root: str

    def chunks(self) -> int:
        """The number of whole chunks on the getter's disk; none is torn."""
        found = list((self.getter.data / "models" / "chunks").glob("[0-9a-f]*"))
        for path in found:
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        return len(found)

    def fill(self, leave: int = 0) -> None:
        """Fill the disk with another program's data, except for `leave` bytes."""
        room = os.statvfs(self.disk)
        left, piece = room.f_bavail * room.f_frsize - leave, bytes(1 << 16)
        with open(self.disk / "ballast", "wb", buffering=0) as ballast, suppress(OSError):
            for _ in range(left // len(piece) + (0 if leave else 10**6)):
                ballast.write(piece)  # the daemon writes meanwhile: repeat until no space is left

    def empty(self) -> None:
        (self.disk / "ballast").unlink()


@pytest.fixture
def world(small_disk: Path, tmp_path: Path) -> Iterator[World]:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(CHUNKS * CHUNK))
    with daemons() as start:
        holder = start(tmp_path / "holder", "--no-lan", "--up", "1MB", torch=False)
        holder.wait_until(lambda status: bool(status["models"]))
        added = shoal("blob", "add", str(file), "--json", "--data", str(holder.data))
        more = ("--model", "none", "--bootstrap", holder.address)
        getter = start(small_disk / "getter", "--no-lan", *more, torch=False)
        getter.wait_until(lambda status: status["peers"] == 1)
        yield World(holder, getter, small_disk, file, json.loads(added.stdout)["root"])


def until(true: Callable[[], object], limit: float = 60.0) -> None:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < limit
        time.sleep(0.1)


@pytest.mark.ci
@pytest.mark.parametrize("leave", [0, DISK_RESERVE // 2])
def test_a_blob_waits_for_space_and_resumes(world: World, tmp_path: Path, leave: int) -> None:
    """No space is left at all, or only the reserve."""
    data, out = ("--data", str(world.getter.data)), tmp_path / "out"
    get = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli.main", "blob", "get", world.root, str(out), *data],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until(lambda: world.chunks() >= 3)
    world.fill(leave)
    time.sleep(3)
    kept = world.chunks()
    assert 3 <= kept < CHUNKS and get.poll() is None, "it waits"
    time.sleep(4)
    assert world.chunks() == kept
    status = world.getter.ask("status")
    assert status["peers"] == 1, "the node runs, and is linked"
    world.empty()
    _, told = get.communicate(timeout=60)
    assert get.returncode == 0, told
    assert "the disk of" in told and "is full" in told, told
    assert out.read_bytes() == world.file.read_bytes()
    assert world.chunks() > CHUNKS, "with the tree"


@pytest.mark.ci
def test_a_model_that_does_not_fit_is_refused_and_the_same_command_resumes(world: World) -> None:
    until(lambda: world.getter.ask("models")["models"])  # the provider's feed has arrived
    (model,) = world.getter.ask("models")["models"]
    pull = ("model", "pull", f"tiny@{model['root'][:16]}", "--data", str(world.getter.data))
    world.fill(leave=DISK_RESERVE + (1 << 20))
    done = shoal(*pull)
    assert done.returncode == 1 and "is full" in done.stderr, done.stderr
    assert "hint: free some space and repeat the command: it continues where" in done.stderr
    assert world.chunks() == 0
    world.empty()
    running = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli.main", *pull],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until(lambda: world.chunks() >= 3)
    world.fill()  # in the middle
    _, told = running.communicate(timeout=90)
    assert running.returncode == 1 and "is full" in told and "hint: free some space" in told, told
    kept = world.chunks()
    assert kept >= 3
    world.getter.kill()  # the chunks outlive the daemon
    world.empty()
    with daemons() as start:
        again = start(
            world.getter.data, "--no-lan", "--model", "none", "--bootstrap", world.holder.address,
            torch=False,
        )  # fmt: skip
        again.wait_until(lambda status: status["peers"] == 1)
        assert world.chunks() >= kept
        done = shoal(*pull, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["fetched"] < model["weight_bytes"]
        assert not list(again.data.glob("models/chunks/.*")), "nothing half written stays"

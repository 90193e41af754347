"""A daemon that is killed repeatedly while it fetches: no chunk is torn, none is fetched twice.

`KILLS=200 pytest -m ci tests/test_killed_fetch.py` for more kills.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.dht.defaults import CHUNK
from tests.cli.daemons import Daemon, daemons, shoal

KILLS = int(os.environ.get("KILLS", "6"))
CHUNKS = 6 * KILLS + 16
PAUSE_S = 0.6  # maximum of seconds after a new chunk until it is killed
Files = dict[str, tuple[int, int]]


def chunk_files(daemon: Daemon) -> Files:
    """Return each chunk file with properties that would change if it were written again."""
    files = (daemon.data / "models" / "chunks").glob("[0-9a-f]*")
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def check_whole(daemon: Daemon) -> None:
    for path in (daemon.data / "models" / "chunks").glob("[0-9a-f]*"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name, "torn"


def getting(daemon: Daemon, root: str, out: Path) -> subprocess.Popen[str]:
    words = ["blob", "get", root, str(out), "--json", "--data", str(daemon.data)]
    return subprocess.Popen(
        [sys.executable, "-m", "shoal.cli.main", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.ci
def test_kill_9_at_random_instants_of_a_fetch(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", "1"))
    numbers, file, out = random.Random(seed), tmp_path / "file", tmp_path / "out"
    file.write_bytes(numbers.randbytes(CHUNKS * CHUNK))
    with daemons() as start:
        holder = start(tmp_path / "holder", "--no-lan", "--up", "3MB", torch=False)
        holder.wait_until(lambda status: bool(status["models"]))
        added = shoal("blob", "add", str(file), "--json", "--data", str(holder.data))
        root = str(json.loads(added.stdout)["root"])
        more = ("--no-lan", "--model", "none", "--bootstrap", holder.address)
        killed, written = 0, Files()
        while killed < KILLS:
            with daemons() as begin:
                getter = begin(tmp_path / "getter", *more, torch=False)
                getter.wait_until(lambda status: status["peers"] == 1)
                assert written.items() <= chunk_files(getter).items(), "one came twice"
                get, began, before = getting(getter, root, out), time.monotonic(), len(written)
                while len(chunk_files(getter)) <= before and get.poll() is None:
                    assert time.monotonic() - began < 60
                    time.sleep(0.01)
                time.sleep(numbers.random() * PAUSE_S)
                getter.kill()
                get.communicate(timeout=30)
                done = get.returncode == 0
            killed += not done
            now = chunk_files(getter)
            assert written.items() <= now.items(), "a chunk came twice, or was lost"
            written = now
            if done:
                break
        check_whole(getter)
        assert killed >= KILLS // 2 + 1, "it was not killed in the middle"
        with daemons() as begin:
            last = begin(tmp_path / "getter", *more, torch=False)
            last.wait_until(lambda status: status["peers"] == 1)
            get = getting(last, root, out)
            said, told = get.communicate(timeout=300)
            assert get.returncode == 0, told
            assert out.read_bytes() == file.read_bytes()
            assert written.items() <= chunk_files(last).items()
            assert not list(last.data.glob("models/chunks/.*")), "nothing half written stays"
            print(f"{killed} kills, {len(written)} chunks kept, then {json.loads(said)['fetched']}")

"""`shoal blob` over two real daemons: a file goes in at one and comes out at the other."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from .daemons import Daemon, daemons, shoal


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Daemon, Daemon]]:
    with daemons() as start:
        one = start(tmp_path / "one", torch=False)
        one.wait_until(lambda status: bool(status["addresses"]))
        address = ("--bootstrap", one.address)
        two = start(tmp_path / "two", *address, "--disk", "1GiB", torch=False)
        two.wait_until(lambda status: bool(status["peers"] == 1))
        yield one, two


def run(*args: object) -> str:
    done = shoal(*map(str, args))
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_a_file_travels(pair: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    one, two = pair
    path = tmp_path / "file"
    path.write_bytes(random.Random(1).randbytes(5_000_001))
    assert "no blob is here" in run("blob", "list", "--data", one.data)
    added = json.loads(run("blob", "add", path, "--data", one.data, "--json"))
    assert added["size"] == 5_000_001
    assert added["root"] in run("blob", "add", path, "--data", one.data)
    out = tmp_path / "out"
    said = run("blob", "get", added["root"], out, "--data", two.data)
    assert out.read_bytes() == path.read_bytes()
    assert "from 1 peer" in said
    (entry,) = json.loads(run("blob", "list", "--data", two.data, "--json"))["blobs"]
    assert (entry["root"], entry["missing"], entry["own"]) == (added["root"], 0, False)
    assert added["root"] in run("blob", "list", "--data", one.data)
    refused = shoal("blob", "get", "nonsense", str(out), "--data", str(two.data))
    assert refused.returncode != 0
    assert "64 hex digits" in refused.stderr

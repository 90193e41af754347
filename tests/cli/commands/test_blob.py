"""`shoal blob` over two real daemons: a file is added on one and fetched on the other."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import invoke

from ..daemons import Daemon, daemons, shoal

ROOT = "ab" * 32
Captured = pytest.CaptureFixture[str]


def test_ctrl_c_prints_how_to_continue(capsys: Captured, replaced: Any, tmp_path: Path) -> None:
    def cut_off(_op: str, on_event: Any, _asked: Any) -> None:
        on_event({"event": "progress", "done": 1 << 20, "total": 2 << 20})
        raise KeyboardInterrupt

    replaced(cut_off)
    assert invoke(["blob", "get", ROOT, str(tmp_path / "a b")]) == 130
    err = capsys.readouterr().err
    assert "interrupted, 1.0 MiB of 2.0 MiB are here; finished chunks are kept" in err
    assert f"hint: `shoal blob get {ROOT} '{tmp_path}/a b' --data {tmp_path}` continues" in err


def test_unwritable_folder_fetches_nothing(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("nowhere", "file"):
        assert invoke(["blob", "get", ROOT, str(tmp_path / folder / "out")]) == 1
        assert "is not a folder" in capsys.readouterr().err


def test_add_prints_the_command_for_other_nodes(
    fake_daemon: Any, capsys: Captured, tmp_path: Path
) -> None:
    path = tmp_path / "my data"
    path.touch()
    with fake_daemon({"blob_add": {"root": ROOT, "size": 0}}):
        assert invoke(["blob", "add", str(path)]) == 0
    assert f"`shoal blob get {ROOT} 'my data'`" in capsys.readouterr().out


def test_peer_that_sent_wrong_bytes_is_named(
    fake_daemon: Any, capsys: Captured, tmp_path: Path
) -> None:
    got = {"root": ROOT, "size": 9, "fetched": 9, "peers": 1, "seconds": 0.5, "liars": []}
    for liars, said in (([], False), (["12D3KooWBad"], True)):
        with fake_daemon({"blob_get": got | {"liars": liars}}):
            assert invoke(["blob", "get", ROOT, str(tmp_path / "out")]) == 0
        assert ("dropped for sending wrong bytes: 12D3KooWBad" in capsys.readouterr().out) is said


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


@pytest.mark.ci
def test_file_from_one_node_to_another(pair: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    one, two = pair
    path = tmp_path / "file"
    path.write_bytes(random.Random(1).randbytes(5_000_001))
    assert "there are no blobs here" in run("blob", "list", "--data", one.data)
    added = json.loads(run("blob", "add", path, "--data", one.data, "--json"))
    assert added["size"] == 5_000_001
    assert added["root"] in run("blob", "add", path, "--data", one.data)
    out = tmp_path / "out"
    said = run("blob", "get", added["root"], out, "--data", two.data)
    assert out.read_bytes() == path.read_bytes()
    assert "from 1 peer" in said
    (entry,) = json.loads(run("blob", "list", "--data", two.data, "--json"))["blobs"]
    assert (entry["root"], entry["missing"], entry["own"]) == (added["root"], 0, False)
    listed = run("blob", "list", "--data", one.data)
    assert added["root"][:12] in listed and added["root"] not in listed
    run("blob", "get", added["root"][:12], out, "--data", one.data)
    refused = shoal("blob", "get", "nonsense", str(out), "--data", str(two.data))
    assert refused.returncode != 0
    assert "64 hex digits" in refused.stderr

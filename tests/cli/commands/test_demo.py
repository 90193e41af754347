"""`shoal demo`: one real run, and a clean end when it is interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.cli.commands.demo import plan
from shoal.cli.errors import CommandError
from shoal.cli.main import invoke
from shoal.cli.swarm import LocalSwarm

from ...cost import cost
from ..daemons import shoal


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder)}


def processes_with(folder: Path) -> list[psutil.Process]:
    """Return processes whose command line has the folder: the daemons of a demo in it."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.ci
def test_demo(tmp_path: Path) -> None:
    with cost(time.monotonic) as spent:
        ended = shoal("demo", "--json", "--max-tokens", "24", env=environment(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith("starting 3 daemons with the 6 layers of `tiny`\n")
    shown = json.loads(ended.stdout)
    assert [node["layers"] for node in shown["nodes"]] == ["0:2", "2:4", "4:6"]
    assert len({node["peer"] for node in shown["nodes"]}) == 3
    assert shown["tokens"] == 24 and len(shown["text"]) > 24
    assert shown["ttft_ms"] > 0 and shown["tokens_per_s"] > 0 and shown["hop_ms"] >= 0
    assert spent.reference_ms < 30_000
    assert list(tmp_path.iterdir()) == [], "no folder is left"
    assert processes_with(tmp_path) == [], "no process is left"


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted(number: signal.Signals, tmp_path: Path) -> None:
    """No process and no folder stays. The folder is named after the test, and the path of a control
    socket in it must not exceed 107 bytes, so the test's name is short."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli.main", "demo"], env=environment(tmp_path),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("shoal-demo-*/node-*/control.*"))) < 1:
        assert demo.poll() is None, demo.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    demo.send_signal(number)
    _out, err = demo.communicate(timeout=20)
    assert "Traceback" not in err
    if number == signal.SIGKILL:  # the daemons stop when their pipes close
        assert demo.returncode == -signal.SIGKILL
        while processes_with(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return
    assert demo.returncode == 130
    assert list(tmp_path.iterdir()) == []
    while processes_with(tmp_path):  # the workers stop when their pipes close
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_interrupted_while_a_daemon_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon is stopped as well, although the swarm does not know it yet."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(Popen(*args, **options))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    Popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt), LocalSwarm() as swarm:
        swarm.start([])
    assert started[0].returncode is not None, "its end is awaited"
    assert not swarm.folder.exists()


@pytest.mark.ci
def test_keep_leaves_the_daemons_running(tmp_path: Path) -> None:
    ended = shoal("demo", "--nodes", "1", "--keep", "--json", "--max-tokens", "4",
                  env=environment(tmp_path))  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    (folder,) = tmp_path.glob("shoal-demo-*")
    try:
        assert f"shoal stop --data {folder}" in ended.stderr
        answer = shoal("run", "tiny", "x", "--raw", "--max-tokens", "2", "--json",
                       "--data", str(folder / "node-1"))  # fmt: skip
        assert answer.returncode == 0, answer.stderr
    finally:
        assert shoal("stop", "--data", str(folder)).returncode == 0
    assert not folder.exists()
    assert processes_with(tmp_path) == []


def test_daemon_that_ends_is_reported() -> None:
    """The demo prints the daemon's error instead of waiting for it."""
    with LocalSwarm() as swarm:
        node = swarm.start(["--listen", "nowhere"])
        with pytest.raises(CommandError, match=r"node 1 ended: .*`nowhere`"):
            while node.status() is None:
                time.sleep(0.02)
    assert not swarm.folder.exists()


def test_plan() -> None:
    assert plan(3, 6) == [(0, 2), (2, 4), (4, 6)]
    assert plan(1, 6) == [(0, 6)]
    assert len(set(plan(6, 6))) == 6
    assert plan(8, 6)[6:] == plan(6, 6)[:2], "further nodes serve replicas"


def test_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert invoke(["demo"]) == 13
    err = capsys.readouterr().err
    assert err.startswith("error: torch is not installed") and "pip install torch" in err

"""Ends of commands: Ctrl-C, SIGTERM, a closed terminal, even in the background of a script."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.cli.client import is_running
from shoal.cli.endings import endings_as_interrupt, heeded
from tests.marks import in_ci

NODE = """
import sys
sys.modules["torch"] = None
from shoal.cli.main import main
sys.argv[1:] = "node --listen 127.0.0.1 --no-lan --no-port-mapping --memory 1KiB".split()
main()
"""
LONG = """
[sim]
name = "long"
duration = "10h"

[[host]]
name = "h"
count = 2
program = "udp-echo"
settings = { every = "10ms" }
"""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Yield a function that starts a process in its own session, which ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*words: str, ignored: tuple[int, ...] = (), tty: int | None = None,
              **more: object) -> "subprocess.Popen[bytes]":  # fmt: skip
        def prepare() -> None:
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)
            if tty is not None:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        streams = subprocess.DEVNULL if tty is None else tty
        started.append(
            subprocess.Popen(
                [sys.executable, *words], stdin=streams, stdout=streams, stderr=streams,
                start_new_session=True, preexec_fn=prepare, **more,
            )  # type: ignore[call-overload]
        )  # fmt: skip
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_up(data: Path) -> bool:
    return (data / "control.sock").exists() and is_running(data)


def test_a_node_ends_cleanly_when_its_terminal_is_closed(start: Start, tmp_path: Path) -> None:
    """Neither SIGHUP nor writing to the closed terminal may kill the node."""
    ours, theirs = pty.openpty()
    process = start("-c", NODE, tty=theirs)
    os.close(theirs)
    until(lambda: is_up(tmp_path))
    os.close(ours)
    assert process.wait(20) == 0
    assert not (tmp_path / "control.sock").exists()


@pytest.mark.ci
def test_node_in_the_background_of_a_script_handles_ctrl_c(start: Start, tmp_path: Path) -> None:
    """A shell without job control makes it ignore SIGINT, unintentionally. `nohup` makes it ignore
    SIGHUP, intentionally."""
    process = start("-c", NODE, ignored=(signal.SIGINT, signal.SIGHUP))
    until(lambda: is_up(tmp_path))
    process.send_signal(signal.SIGHUP)
    assert is_running(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert not (tmp_path / "control.sock").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, *in_ci(signal.SIGTERM, signal.SIGHUP)])
def test_interrupted_simulation_keeps_its_figures(
    start: Start, tmp_path: Path, number: int
) -> None:
    """The second signal of a closed terminal does not interrupt the writing either."""
    ours, theirs = pty.openpty()
    (tmp_path / "long.toml").write_text(LONG)
    process = start(
        "-m", "shoal.cli.main", "sim", "run", "long.toml", "--out", "out", "--trace", "--no-report",
        ignored=(signal.SIGINT,), tty=theirs, cwd=tmp_path,
    )  # fmt: skip
    os.close(theirs)
    trace = tmp_path / "out" / "trace.msgpack"
    until(lambda: trace.exists() and trace.stat().st_size > 50_000)
    if number == signal.SIGHUP:
        os.close(ours)
    process.send_signal(number)
    assert process.wait(30) == 130
    if number != signal.SIGHUP:
        os.close(ours)
    kept = json.loads((tmp_path / "out" / "run.json").read_text())
    assert kept["ended"] == "interrupted" and kept["virtual"] > 0


def test_repeated_signals_count_once() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with endings_as_interrupt():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert signal.SIGHUP in heeded()

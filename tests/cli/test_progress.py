"""The progress bar on a real terminal, wide and narrow, and its silence elsewhere."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from shoal.cli.progress import sizes

MIB = 1 << 20
CODE = """
import sys, time
from shoal.cli.progress import Bar
with Bar("fetching") as bar:
    for done in range(0, 200 << 20, 20 << 20):
        bar.show(done, 196 << 20)
        time.sleep(0.02)
    print("said meanwhile", flush=True)
"""
CURSOR_BACK = "\x1b[?25h"


def run(columns: int, *, piped: bool = False) -> tuple[str, str]:
    """Return what a terminal with this many columns gets, and what a pipe at stdout gets."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", CODE], stdin=theirs, stderr=theirs,
        stdout=subprocess.PIPE if piped else theirs, env={**env, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 1 << 16):
            shown += piece
    except OSError:  # Linux reports a closed terminal this way
        pass
    out, _ = process.communicate(timeout=30)
    os.close(ours)
    return shown.decode(), (out or b"").decode()


def lines(shown: str) -> list[str]:
    """Return the lines without colours and cursor movements."""
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_bar_takes_one_line_and_restores_the_cursor(columns: int) -> None:
    shown, _ = run(columns)
    bars = [line for line in lines(shown) if "MiB" in line]
    assert any("of 196.0 MiB" in line and "%" in line for line in bars)
    assert max(map(len, bars)) <= columns
    assert all(line.startswith("fetching") for line in bars), "a line is broken"
    assert any("━" in line for line in bars) == (columns >= 80)
    assert CURSOR_BACK in shown and "said meanwhile" in shown


def test_piped_output_does_not_go_to_the_terminal() -> None:
    shown, out = run(80, piped=True)
    assert out == "said meanwhile\n" and "said" not in shown


def test_silent_without_a_terminal() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("said meanwhile\n", "")


def test_sizes() -> None:
    assert sizes(0, None, None) == ""
    assert sizes(43 * MIB, 196 * MIB, None) == "43.0 MiB of 196.0 MiB"
    assert sizes(43 * MIB, 196 * MIB, 2.5 * MIB) == "43.0 MiB of 196.0 MiB, 2.5 MiB/s"

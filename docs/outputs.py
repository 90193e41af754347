"""Writes outputs of commands into the documents: `python docs/outputs.py`; a test compares.

A block of output stands behind a comment that names its command and the lines to show:

    <!-- output of `shoal sim run FILE --seed 7`, lines `^met` -->

What takes real time differs from run to run, so `settled` hides it before a comparison.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DOCUMENTS: Final = (ROOT / "docs" / "netsim.md",)
BLOCK: Final = re.compile(
    r"(<!-- output of `shoal (?P<command>[^`]+)`, lines `(?P<lines>[^`]+)` -->\n```\n)"
    r"(?P<output>.*?)(```\n)",
    re.DOTALL,
)
REAL: Final = re.compile(r"real .*")
ELIDED: Final = "…"


def rewritten(text: str, run: Callable[[str], str]) -> str:
    """The document with the outputs that `run` has for its commands."""
    return BLOCK.sub(
        lambda block: block[1] + shown(run(block["command"]), block["lines"]) + block[5], text
    )


def shown(output: str, lines: str) -> str:
    """The lines that match; `…` stands for those between, a blank line for itself."""
    kept: list[str] = []
    for line in output.splitlines():
        if not line or re.search(lines, line):
            kept.append(line)
        elif kept and kept[-1] != ELIDED:
            kept.append(ELIDED)
    text = "\n".join(kept).replace(f"{ELIDED}\n\n{ELIDED}", ELIDED)
    return text.rstrip(f"\n{ELIDED}") + "\n"


def settled(output: str) -> str:
    """The output without what differs between two runs of the same."""
    return REAL.sub("real", output)


def output_of(command: str) -> str:
    """Return the standard output of a command, run in an empty folder with the examples."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        line = [sys.executable, "-m", "shoal.cli.main", *shlex.split(command)]
        done = subprocess.run(
            line, cwd=folder, capture_output=True, text=True, check=True,
            env=os.environ | {"COLUMNS": "100"},
        )  # fmt: skip
        return done.stdout


if __name__ == "__main__":
    for path in DOCUMENTS:
        path.write_text(rewritten(path.read_text(), output_of))

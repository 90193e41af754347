"""Tests that every benchmark still runs after a change of what it measures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import records

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = records.scripts()
# In one process, because most scripts take a second to import torch or numpy.
HELP = """
import contextlib, importlib, io, sys
sys.path.insert(0, "bench")
for name in sys.argv[1:]:
    script, text = importlib.import_module(name), io.StringIO()
    sys.argv = [f"bench/{name}.py", "--help"]
    try:
        with contextlib.redirect_stdout(text):
            script.main()
    except SystemExit as end:
        assert not end.code, f"{name}: exit code {end.code}"
    assert "--quick" in text.getvalue(), f"{name}: no option --quick"
"""


def test_every_script_has_a_short_run() -> None:
    names = [script.stem for script in SCRIPTS]
    command = [sys.executable, "-c", HELP, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


QUICK = ()

"""Tests that every benchmark can at least be started after a change of what it measures."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_script_finds_what_it_imports() -> None:
    names = ", ".join(path.stem for path in sorted((ROOT / "bench").glob("*.py")))
    program = f"import sys; sys.path.insert(0, 'bench'); import {names}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

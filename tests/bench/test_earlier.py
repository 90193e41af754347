"""Tests that the scripts that compare with a former commit still run its code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.worlds.earlier import BASE, TODAY, checkout, environment

OWN_BASE = re.compile(r'^BASE: Final = "(\w+)"', re.MULTILINE)
SCRIPTS: dict[str, str] = {  # by name: the commit that it compares with
    path.stem: found[1] if (found := OWN_BASE.search(text)) else BASE
    for path in sorted((TODAY / "bench").glob("*.py"))
    if "worlds.earlier" in (text := path.read_text())
}


def test_a_script_compares_with_a_former_commit() -> None:
    assert "netsim_daemons" in SCRIPTS and "node_idle" in SCRIPTS


@pytest.mark.ci
@pytest.mark.parametrize("commit", sorted(set(SCRIPTS.values())))
def test_scripts_import_the_code_of_the_former_commit(commit: str) -> None:
    found = subprocess.run(
        ["git", "cat-file", "-e", commit], cwd=TODAY, capture_output=True, check=False
    )
    if found.returncode:
        pytest.skip("the former commit is not in this clone")
    scripts = [name for name, of in SCRIPTS.items() if of == commit]
    program = f"import {', '.join(scripts)}, shoal; print(shoal.__file__)"
    with checkout(commit) as root:
        places = environment(root)
        places["PYTHONPATH"] += f":{TODAY / 'bench'}"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=root, env=places, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert Path(done.stdout.strip()).is_relative_to(root)

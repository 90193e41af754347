"""A former commit of this repository, measured beside today's code in the same run.

The files are taken from git's history into a temporary folder. Each measurement is a process of its
own, which runs the calling script with `shoal` from one folder or the other. So both do the same
work, and neither is affected by what the other left in memory.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import shoal

TODAY: Final = Path(__file__).resolve().parents[2]
BASE: Final = "981b9fd"
"""20 November 2026, before discovery and the replicated state: what a daemon should cost."""


@contextmanager
def checkout(commit: str = BASE) -> Iterator[Path]:
    """Extract the files of a commit into a temporary folder."""
    command = ["git", "archive", "--format=tar", commit]
    try:
        packed = subprocess.run(command, cwd=TODAY, capture_output=True, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"error: commit {commit} is not in this clone: {error.stderr.decode().strip()}\n"
            "hint: `git fetch --unshallow` brings the history"
        ) from None
    with tempfile.TemporaryDirectory(prefix="shoal-earlier-") as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="tar")
        yield Path(folder)


def moved(*names: str) -> Any:
    """Import a module by the first of these names that exists.

    A script that also runs the code of a former commit needs this for each module that has moved.
    """
    for name in names[:-1]:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or name):
                raise  # the module exists, but something that it imports does not
    return import_module(names[-1])


def environment(root: Path) -> dict[str, str]:
    """Return the environment of a process that imports `shoal` from that folder."""
    return os.environ | {"PYTHONPATH": str(root)}


def measured(root: Path, script: str, *arguments: object) -> dict[str, Any]:
    """Run a script with these arguments and the code in `root`, and return its last line."""
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=root, env=environment(root), stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if Path(found["shoal"]) != root / "shoal":
        raise SystemExit(f"error: expected to measure `{root}`, measured `{found['shoal']}`")
    return found


def answer(found: dict[str, Any]) -> None:
    """Print what `measured` reads."""
    print(json.dumps(found | {"shoal": str(Path(shoal.__file__).parent)}))

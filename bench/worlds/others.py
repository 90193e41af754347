"""Environments with the programs of others for benches, each made once below the cache folder."""

import argparse
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PIP: Final = ("-m", "pip", "install", "-q", "--disable-pip-version-check")
PACKAGES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "hivemind": (("torch==2.13.0",), ("hivemind==1.1.12",)),
    "lattica": (("lattica==1.0.21",),),
    "peft": (("torch==2.13.0",), ("transformers==5.23.0", "peft==0.21.2")),
}
"""What pip installs, in this order: torch first and by this spelling, which takes the CPU build."""


def option(parser: argparse.ArgumentParser, name: str) -> None:
    """Add `--NAME PYTHON`, whose default is the variable SHOAL_BENCH_NAME."""
    parser.add_argument(
        f"--{name}",
        metavar="PYTHON",
        default=os.environ.get(f"SHOAL_BENCH_{name.upper()}"),
        help=f"a Python that has {PACKAGES[name][-1][-1]} (default: one that is made once)",
    )


def python(name: str, given: str | None) -> str:
    """Return `given`, or a Python in an environment with the program `name`, made if need be.

    Raises SystemExit when a package cannot be installed.
    """
    if given:
        return given
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "shoal-bench" / name
    program, made = str(folder / "bin" / "python"), folder / "made"
    wanted = "\n".join(" ".join(packages) for packages in PACKAGES[name])
    with one_at_a_time(folder.with_suffix(".lock")):
        if not made.exists() or made.read_text() != wanted:
            print(f"making an environment with {name}, once, in {folder}", file=sys.stderr)
            make(name, folder)
            made.write_text(wanted)  # last, so that an interrupted attempt is repeated
    return program


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold a lock against other processes, which may need the same environment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # ends with the file, and with the process
        yield


def make(name: str, folder: Path) -> None:
    """Make the environment. Raises SystemExit when a package cannot be installed."""
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        for packages in PACKAGES[name]:
            program = str(folder / "bin" / "python")
            subprocess.run([program, *PIP, *packages], check=True, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"error: {name} could not be installed\nhint: name its Python with --{name}"
        ) from error

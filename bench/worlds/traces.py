"""Finds the folder of recorded inputs beside the project or a folder above it."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path("shared/traces")


def find_traces() -> Path:
    """Return the folder of traces. If it is nowhere, return where it would lie."""
    here = Path(__file__).resolve().parent
    return next((p / FOLDER for p in here.parents if (p / FOLDER).is_dir()), here / FOLDER)

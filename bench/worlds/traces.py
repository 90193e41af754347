"""The folder of recorded inputs, which lies beside the project or beside one of its parents."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path("shared/traces")


def find_traces() -> Path:
    """Return the folder of traces. If it is nowhere, return where it would lie."""
    here = Path(__file__).resolve().parent
    return next((p / FOLDER for p in here.parents if (p / FOLDER).is_dir()), here / FOLDER)

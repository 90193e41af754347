"""Kernels of the CPU in C++: products, attention and whole steps. `../compute/native` calls
them.

Public: `library_path`, `VARIABLE`. Imports no other package of shoal.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

VARIABLE: Final = "SHOAL_KERNELS"
"""The environment variable that chooses the kernels (`../compute/native/choice.py`)."""


def library_path() -> Path | None:
    """Return the path of the library, or None if it was not built."""
    found = find_spec(f"{__name__}._native")
    return Path(found.origin) if found is not None and found.origin else None

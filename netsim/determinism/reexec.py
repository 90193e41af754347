"""Restart of this program in a form in which two runs are equal to the last bit.

Sets of strings are iterated in the order of their hashes, sets of plain objects in the order of
their addresses in memory. Both are the same in every process if PYTHONHASHSEED is fixed, the system
places memory without randomness, and all threads share one heap. (Otherwise glibc's threads take
another heap when they find one locked, which depends on the load.)
"""

import ctypes
import os
import sys
from typing import Final

from ..errors import SimError

_FIXED: Final = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1"}
_MARK: Final = "SHOAL_SIM_STRICT"
_ADDR_NO_RANDOMIZE: Final = 0x0040000  # linux/personality.h
_QUERY: Final = 0xFFFFFFFF


def is_exact() -> bool:
    """Whether hashes and addresses are the same in every process like this one."""
    fixed = all(os.environ.get(name) == value for name, value in _FIXED.items())
    return fixed and not _places_at_random()


def reexec() -> None:
    """Return if `is_exact` holds; otherwise replace this process by one for which it does.

    Standard streams, folder and arguments stay. Raises SimError if the system refuses.
    """
    if is_exact():
        return
    if os.environ.get(_MARK):
        raise SimError(
            "this system does not let a program fix its memory addresses\n"
            "hint: leave `strict` out of the scenario; equal seeds may then differ in rare orders"
        )
    if _places_at_random():
        _personality(_personality(_QUERY) | _ADDR_NO_RANDOMIZE)
    sys.stdout.flush()
    sys.stderr.flush()
    environment = {**os.environ, **_FIXED, _MARK: "1"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _places_at_random() -> bool:
    """Whether the system randomizes the addresses of each process; only Linux is asked."""
    return sys.platform == "linux" and not _personality(_QUERY) & _ADDR_NO_RANDOMIZE


def _personality(persona: int) -> int:
    """Call personality(2); return the previous value."""
    return int(ctypes.CDLL(None).personality(ctypes.c_ulong(persona)))

"""Restart of this program in a mode in which two runs are identical bit for bit.

Python iterates over a set of strings in the order of their hashes, and over a set of plain objects
in the order of their memory addresses. Both orders are the same in every process if PYTHONHASHSEED
is fixed, the operating system does not randomize memory addresses, and all threads share one heap.
(By default, a thread in glibc switches to another heap when its heap is locked, which depends on
the load.)
"""

import ctypes
import os
import sys
from typing import Final

from ..errors import SimError

# Environment variables that `is_exact` requires.
_FIXED: Final = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1"}
# Environment variable that marks a restarted process, so that it does not restart again.
_MARK: Final = "SHOAL_SIM_STRICT"
_ADDR_NO_RANDOMIZE: Final = 0x0040000  # linux/personality.h
_QUERY: Final = 0xFFFFFFFF  # makes personality(2) return the value without changing it


def is_exact() -> bool:
    """Return whether hashes and memory addresses are the same in every process that starts like
    this one.
    """
    fixed = all(os.environ.get(name) == value for name, value in _FIXED.items())
    return fixed and not places_at_random()


def reexec() -> None:
    """Replace this process with one for which `is_exact` returns True. Do nothing if it already
    does.

    The new process keeps the standard streams, the working directory and the arguments. Raises
    SimError if the operating system does not allow fixed memory addresses.
    """
    if is_exact():
        return
    if os.environ.get(_MARK):
        raise SimError(
            "this system does not let a program fix its memory addresses\n"
            "hint: leave `strict` out of the scenario; equal seeds may then differ in rare orders"
        )
    if places_at_random():
        _personality(_personality(_QUERY) | _ADDR_NO_RANDOMIZE)
    sys.stdout.flush()
    sys.stderr.flush()
    environment = {**os.environ, **_FIXED, _MARK: "1"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def places_at_random() -> bool:
    """Return whether the operating system randomizes the memory addresses of each process. Returns
    False on systems other than Linux, without a check.
    """
    return sys.platform == "linux" and not _personality(_QUERY) & _ADDR_NO_RANDOMIZE


def _personality(persona: int) -> int:
    """Call personality(2), and return the value that was set before."""
    return int(ctypes.CDLL(None).personality(ctypes.c_ulong(persona)))

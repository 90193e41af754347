"""Chooses the kernels of this machine: the best set of instructions with which they compute what
torch does.

`SHOAL_KERNELS` chooses otherwise: `off`, or the name of a set.
"""

import functools
import os
import platform
import sys
from dataclasses import dataclass
from typing import Final

import torch

from ...kernels import VARIABLE, library_path
from .check import difference
from .library import KINDS, Kernels, NoSuchKernels

_X86: Final = ("avx512bf16", "avx512", "avx2")
_ARM: Final = ("neondot", "neon")
SETS: Final = {
    "x86_64": _X86,
    "AMD64": _X86,
    "aarch64": _ARM,
    "arm64": _ARM,
}
"""The sets for each architecture, as Python names it, the best one first. `portable` is for
tests."""


@dataclass(frozen=True, slots=True)
class KernelsInUse:
    """The kernels in use, or None if torch computes everything.

    `refused` says why each better set, or each set at all, is not used. `slow` are the dtypes whose
    matrices torch multiplies, and why.
    """

    kernels: Kernels | None
    refused: dict[str, str]
    slow: dict[torch.dtype, str]


def kernels() -> Kernels | None:
    """Return the kernels of this machine, or None if there are none or they are switched off.

    They compute with the number of threads that torch has at the first call.
    """
    return choice().kernels


@functools.cache
def choice() -> KernelsInUse:
    """Choose among the kernels of this machine, at the first call."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "off":
        return KernelsInUse(None, dict.fromkeys(_sets(), f"`{VARIABLE}` is `off`"), {})
    others = [name for name in _sets() if wanted and name != wanted]
    refused = dict.fromkeys(others, f"`{VARIABLE}` is `{wanted}`")
    for name in (wanted,) if wanted else _sets():
        found, reason = _tried(name)
        if found is not None:
            return KernelsInUse(found, refused, _slow(found, timed=not wanted))
        refused[name] = reason
    return KernelsInUse(None, refused, {})


def _sets() -> tuple[str, ...]:
    return SETS.get(platform.machine(), ())


def _tried(name: str) -> tuple[Kernels | None, str]:
    """Return kernels that compute what torch does, or None and why there are none."""
    path = library_path()
    if path is None:
        return None, "the installation has no kernels: it found no C++ compiler"
    try:
        found = Kernels(path, name, torch.get_num_threads())
    except NoSuchKernels as error:
        if name in _sets():
            return None, "this processor lacks the instructions"
        return None, _reported(str(error))
    except (OSError, ValueError, AttributeError) as error:
        return None, _reported(str(error))
    problem = difference(found)
    return (found, "") if problem is None else (None, _reported(problem))


def _reported(problem: str) -> str:
    print(f"engine: native kernels are not used: {problem}", file=sys.stderr)
    return problem


def _slow(found: Kernels, *, timed: bool) -> dict[torch.dtype, str]:
    """Return the dtypes whose matrices torch multiplies. With `timed` it is measured which ones."""
    from .timing import slower  # whose torch products are those of a module that imports this one

    slow = {}
    if torch.cpu._is_amx_tile_supported():
        slow[torch.bfloat16] = "this processor has matrix units (AMX), which torch uses"
    for dtype in KINDS:
        if timed and dtype not in slow and (times := slower(found, dtype)):
            slow[dtype] = f"torch takes {1 / times:.0%} of the time of these kernels"
    return slow

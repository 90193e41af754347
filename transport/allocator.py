"""What the C library does with freed memory, as far as it can be told (glibc).

A batch of a lane is up to 512 KiB, and so are the buffers it passes through. By default glibc gives
blocks of that size back to the kernel when they are freed, at once or with the end of the heap,
and the next batch pays for them again, page by page: 96 page faults for a call of 256 KiB, which
made it cost nearly twice as much (measured). With fixed thresholds the process keeps a few
megabytes instead.
"""

import ctypes
from typing import Final

# malloc.h
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
MMAP_BYTES: Final = 4 * 1024 * 1024
"""Blocks from this size on come from the kernel and go back to it by themselves, in bytes."""
TRIM_BYTES: Final = 16 * 1024 * 1024
"""Free memory at the end of the heap that the process keeps, in bytes."""


def give_back() -> None:
    """What is free in the heap goes back to the kernel: some milliseconds, in which a thread that
    allocates may wait. Does nothing where the C library has no such thing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_freed_memory() -> bool:
    """Set both thresholds for this process; False where its C library has no such thing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES))

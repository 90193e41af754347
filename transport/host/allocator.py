"""Settings of the C library's allocator (glibc) that make it reuse freed memory.

A batch of a lane is up to 512 KiB, and so are the buffers that it passes through. By default, glibc
returns blocks of that size to the kernel when they are freed, either at once or when it trims the
end of the heap. The kernel then has to map memory for the next batch again, page by page. A
measured call of 256 KiB had 96 page faults, which nearly doubled its cost. With fixed thresholds,
the process keeps a few megabytes instead.
"""

import ctypes
from typing import Final

# malloc.h
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
MMAP_BYTES: Final = 4 * 1024 * 1024
"""Blocks of at least this size, in bytes, are mapped separately, and unmapped when they are
freed."""
TRIM_BYTES: Final = 16 * 1024 * 1024
"""Most free memory at the end of the heap that the process keeps, in bytes."""


def give_back() -> None:
    """Return the heap's free memory to the kernel. This takes a few milliseconds, during which
    other threads may have to wait for memory. Do nothing if the C library does not support this."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_freed_memory() -> bool:
    """Set both thresholds for this process. Return False if the C library does not support them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES))

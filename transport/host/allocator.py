"""Memory without zeros for callers that overwrite it, and settings of the C library's allocator
(glibc) that make it reuse freed memory.

A batch of a lane is up to 512 KiB, and so are the buffers that it passes through. By default, glibc
returns blocks of that size to the kernel when they are freed, either at once or when it trims the
end of the heap. The kernel then has to map memory for the next batch again, page by page. A
measured call of 256 KiB had 96 page faults, which nearly doubled its cost. With fixed thresholds,
the process keeps a few megabytes instead.
"""

import ctypes
from typing import Final

from OpenSSL._util import ffi
from OpenSSL._util import no_zero_allocator as allocate

_PAGE: Final = 4096  # bytes; memory that is aligned to this is written to disk without a copy


def blank(size: int) -> memoryview:
    """Return `size` bytes of uninitialized memory. The caller must overwrite all of them before it
    passes them on. The memory begins at a page boundary, so that `RealFiles.stage` can write it to
    disk without a copy. A `bytearray` would not be aligned and would be filled with zeros first."""
    memory = allocate("char[]", size + _PAGE)
    start = -int(ffi.cast("uintptr_t", memory)) % _PAGE
    return memoryview(ffi.buffer(memory))[start : start + size]


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

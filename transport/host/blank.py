"""Uninitialized memory for callers that fill it completely."""

from typing import Final

from OpenSSL._util import ffi
from OpenSSL._util import no_zero_allocator as allocate

_PAGE: Final = 4096  # bytes; memory aligned to a page goes to disk without a copy


def blank(size: int) -> memoryview:
    """Return `size` bytes of uninitialized memory, which the caller must fill before it passes
    them on. They begin at a page boundary, so that `RealFiles.stage` writes them without a copy.
    A `bytearray` is not aligned and is zeroed first."""
    memory = allocate("char[]", size + _PAGE)
    start = -int(ffi.cast("uintptr_t", memory)) % _PAGE
    return memoryview(ffi.buffer(memory))[start : start + size]

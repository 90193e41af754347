"""Uninitialized memory for callers that overwrite all of it."""

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

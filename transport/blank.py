"""Memory that is about to be filled."""

from typing import Final

from OpenSSL._util import ffi
from OpenSSL._util import no_zero_allocator as allocate

_PAGE: Final = 4096  # bytes; disks take memory that begins at a multiple of it without a copy


def blank(size: int) -> memoryview:
    """`size` bytes of whatever was there before: the caller fills them all before it passes them
    on. They begin at a page's start, so that a disk takes them as they are
    (`RealFiles.stage`); a `bytearray` would do neither, and zero itself first."""
    memory = allocate("char[]", size + _PAGE)
    start = -int(ffi.cast("uintptr_t", memory)) % _PAGE
    return memoryview(ffi.buffer(memory))[start : start + size]

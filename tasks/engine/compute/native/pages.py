"""Memory for packed weights in large pages of the operating system.

A step reads all weights, 2 MiB after 2 MiB, so a table of small pages misses at every one. The
allocator of C gives out small pages again that it got back, and those stay small.
"""

import contextlib
import ctypes
import mmap
import sys
import threading
from typing import Final

import torch

_LARGE: Final = 2 << 20  # bytes
_REGION: Final = 256 << 20
_ALIGNED: Final = 64


class Pages:
    """Regions of large pages, each shared by matrices, and freed with the last of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.region = mmap.mmap(-1, mmap.PAGESIZE)
        self._next = self._end = 0

    def take(self, size: int) -> torch.Tensor:
        """Return memory of `size` bytes for a matrix. Large matrices get a part of a region, small
        ones memory of their own."""
        if size < _LARGE // 2 or not sys.platform.startswith("linux"):
            return torch.empty(size, dtype=torch.uint8)
        with self._lock:
            if size > self._end - self._next:
                self._begin(max(size, _REGION))
            taken = torch.frombuffer(self.region, dtype=torch.uint8, count=size, offset=self._next)
            self._next += -(-size // _ALIGNED) * _ALIGNED
        return taken

    def _begin(self, size: int) -> None:
        """Reserve addresses. Pages exist once something is written."""
        self.region = mmap.mmap(-1, size + _LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without large pages
            self.region.madvise(mmap.MADV_HUGEPAGE)
        address = torch.frombuffer(self.region, dtype=torch.uint8).data_ptr()
        self._next = -address % _LARGE
        self._end = self._next + size


def give_back() -> None:
    """Return the memory of freed tensors to the system. glibc keeps what loading and measuring have
    freed."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)

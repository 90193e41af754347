"""Copies of sessions' KV in host memory, for devices with memory of their own. No I/O.

A session whose blocks are needed by others leaves them, and comes back with the same bits. The
copies are not blocks of the pool: they are counted apart, and have a limit of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class HostCopy:
    """The KV of one session, as `Compute.copied_kv` returned it, with its size in bytes."""

    values: Any
    size: int


class HostCopies:
    """Memory for all copies of one worker. `limit` returns the bytes that they may have now."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self.used = 0
        """Bytes of all copies."""

    def take(self, size: int) -> bool:
        """Count a copy, unless it exceeds the limit. Return whether it was counted."""
        if self.used + size > self._limit():
            return False
        self.used += size
        return True

    def give_back(self, copy: HostCopy) -> None:
        """Count a copy no more."""
        self.used -= copy.size

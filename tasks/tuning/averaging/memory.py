"""Memory for vectors that is used again, because fresh memory costs more than what is done with it.

The kernel clears each page when it is first touched. For the hundreds of megabytes of a round that
takes as long as receiving them.
"""

import weakref
from typing import Final

import numpy as np
from numpy.typing import NDArray

Octets = NDArray[np.uint8]
_SPARE: Final = 4  # pieces of each size that wait to be used again


class Memory:
    """Memory of one run. A piece comes back here once nothing refers to its array, or to a view of
    that, any more."""

    def __init__(self) -> None:
        self._spare: dict[int, list[Octets]] = {}

    def octets(self, size: int) -> Octets:
        """Return an array of `size` bytes, whose content is arbitrary."""
        waiting = self._spare.setdefault(size, [])
        try:
            piece = waiting.pop()
        except IndexError:
            piece = np.empty(size, np.uint8)
        # Views of an array refer to the array that owns the memory. Through a buffer, that is the
        # one returned here, so it lives as long as they do.
        lent: Octets = np.frombuffer(piece.data, np.uint8)
        weakref.finalize(lent, _give_back, waiting, piece).atexit = False
        return lent

    def vector(self, values: int) -> NDArray[np.float32]:
        """Return an array of `values` float32, whose content is arbitrary."""
        return self.octets(4 * values).view(np.float32)


def _give_back(waiting: list[Octets], piece: Octets) -> None:
    """Keep a piece for the next one that needs it. Runs in whichever thread dropped the array."""
    if len(waiting) < _SPARE:
        waiting.append(piece)

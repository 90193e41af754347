"""Memory for vectors that is used again, because fresh memory costs more than what is done with it.

The kernel clears each page when it is first touched. For the hundreds of megabytes of a round that
takes as long as receiving them.
"""

import weakref
from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

Octets = NDArray[np.uint8]
SPARE: Final = 8  # pieces that wait to be used again, of whichever sizes peers have sent


class SpareMemory:
    """Memory of one run. A piece comes back here once nothing refers to its array, or to a view of
    that, any more."""

    def __init__(self) -> None:
        self.spare = deque[Octets](maxlen=SPARE)

    def octets(self, size: int) -> Octets:
        """Return an array of `size` bytes, whose content is arbitrary."""
        piece = self._found(size)
        if piece is None:
            piece = np.empty(size, np.uint8)
        # Views of an array refer to the array that owns the memory. Through a buffer, that is the
        # one returned here, so it lives as long as they do.
        lent: Octets = np.frombuffer(piece.data, np.uint8)
        # This may run in any thread. Each operation on the deque is atomic, and drops the oldest
        # piece if there are too many.
        weakref.finalize(lent, self.spare.append, piece).atexit = False
        return lent

    def _found(self, size: int) -> Octets | None:
        """Take a spare piece of this size, or return None."""
        try:
            for _ in range(len(self.spare)):
                piece = self.spare.popleft()
                if piece.size == size:
                    return piece
                self.spare.append(piece)
        except IndexError:
            pass  # another thread took the last one
        return None

    def vector(self, values: int) -> NDArray[np.float32]:
        """Return an array of `values` float32, whose content is arbitrary."""
        return self.octets(4 * values).view(np.float32)
